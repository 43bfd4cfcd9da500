// The preconditions of attention, of its statistics and of the attention layer. Code below these functions relies on
// them and checks nothing again.
#pragma once

#include "views/arguments.hpp"
#include "weights/packed_attention.hpp"

namespace mha {

/// Throws as mha/errors.hpp says, or brings all views to [B, H, T, D], in place: the arguments have a kilobyte, and to
/// copy them would take a tenth of the time of the smallest call.
void validate(AttentionArguments& arguments, AttentionOutput output);

/// The same for attention_statistics.
StatisticsArguments validate(AttentionArguments inputs, AttentionStatistics results);

/// The same for attention_gradient.
void validate(GradientArguments& arguments);

/// The same for a layer call.
LayerArguments validate(const PackedAttention& layer, LayerArguments arguments);

}  // namespace mha

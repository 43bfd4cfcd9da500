// Every precondition of a call, one function for each rule. What passes here needs no check further down.
#pragma once

#include "mha/multi_head_attention.hpp"
#include "views/arguments.hpp"

namespace mha {

/// Throws what mha/errors.hpp says, or puts all leading axes in place. The arguments are a kilobyte: what a copy of them
/// takes is a tenth of the smallest call.
void validate(AttentionArguments& arguments);

/// The same for attention_statistics.
StatisticsArguments validate(AttentionArguments inputs, AttentionStatistics results);

/// The same for a layer call.
LayerArguments validate(const MultiHeadAttentionConfig& config, DType dtype, LayerArguments arguments);

/// Resolves the zeros of the config and checks the weights against it.
MultiHeadAttentionConfig validate(MultiHeadAttentionConfig config, const MultiHeadAttentionWeights& weights);

}  // namespace mha

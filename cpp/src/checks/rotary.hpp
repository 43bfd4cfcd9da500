// The preconditions of rotary positions: of their table, of the layer that has one, and of a call of that layer.
#pragma once

#include "mha/multi_head_attention.hpp"
#include "views/arguments.hpp"
#include "weights/rotary_table.hpp"

namespace mha {

void validate_rotary(const TensorView& cos, const TensorView& sin);

/// The table of a layer of `dtype`, whose heads have `head_dim` features.
void check_rotary_fits(const char* function, const RotaryEmbedding& rotary, DType dtype, Index head_dim);

/// All rows of a call stand at positions of the table. The other arguments have been checked.
void check_positions(const char* function, const RotaryTable& rotary, const LayerArguments& call);

}  // namespace mha

// The preconditions of steps on queries and keys: of a table of rotary positions, of the steps of a layer, and
// of a call of a layer that has such a table.
#pragma once

#include "mha/multi_head_attention.hpp"
#include "views/arguments.hpp"
#include "weights/rotary_table.hpp"

namespace mha {

void validate_rotary(const TensorView& cos, const TensorView& sin);

void validate_rotate(const RotaryTable& rotary, const TensorView& x, const std::int64_t* positions,
                     const MutableTensorView& out, bool backwards);

/// The steps fit a layer of `dtype` and `sizes`.
void check_steps(const char* function, const QueryKeySteps& steps, DType dtype, const MultiHeadAttentionConfig& sizes);

/// There are none: nothing is turned by them.
void refuse_positions(const char* function, const AttentionOptions& options);

/// All rows of a call stand at positions of the table. The other arguments have been checked.
void check_positions(const char* function, const RotaryTable& rotary, const LayerArguments& call);

}  // namespace mha

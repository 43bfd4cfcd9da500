// Whether two strided views may touch the same memory.
#pragma once

#include "mha/tensor_view.hpp"

namespace mha {

/// True if an element of `a` may share bytes with one of `b`. Exact for views that lie apart and for interleaved views
/// of one packed buffer (q, k and v of [B, T, 3, H, D]); says true in doubt.
bool may_overlap(const TensorView& a, const TensorView& b);

/// True if two index tuples of `view` may name the same element, as in a broadcast view.
bool may_overlap_itself(const TensorView& view);

}  // namespace mha

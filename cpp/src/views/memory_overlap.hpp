// Whether two strided views may touch the same memory. Both have passed check_tensor().
#pragma once

#include "mha/tensor_view.hpp"

namespace mha {

/// True if an element of `a` may share bytes with an element of `b`. Exact for views of separate memory and for
/// interleaved views of one buffer, such as q, k and v of [B, T, 3, H, D]; true where it cannot tell.
bool may_overlap(const TensorView& a, const TensorView& b);

/// True if two indices of `view` may name the same element, as in a broadcast view.
bool may_overlap_itself(const TensorView& view);

}  // namespace mha

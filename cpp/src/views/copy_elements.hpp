// A copy from one view to another, of any strides.
#pragma once

#include "mha/tensor_view.hpp"

namespace mha {

/// Copies each element of `from` to `to`, which has the same shape and dtype.
void copy_elements(const TensorView& from, const MutableTensorView& to);

}  // namespace mha

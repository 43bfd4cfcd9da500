// Copies between views of any strides.
#pragma once

#include "mha/tensor_view.hpp"

namespace mha {

/// Copies a view to another one of the same shape and dtype.
void copy_elements(const TensorView& from, const MutableTensorView& to);

}  // namespace mha

// The preconditions of linear_gradient().
#pragma once

#include "mha/linear_gradient.hpp"

namespace mha {

void validate_linear_gradient(const TensorView& x, const TensorView& weight, const TensorView& dout,
                              const LinearGradients& gradients);

}  // namespace mha

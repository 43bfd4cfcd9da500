// The preconditions of norm_gradient(), activate() and activation_gradient().
#pragma once

#include "mha/activate.hpp"
#include "mha/norm_gradient.hpp"

namespace mha {

void validate_norm_gradient(NormKind kind, const TensorView& x, const TensorView& weight, double eps,
                            const TensorView& dout, const NormGradients& gradients);

void validate_activate(const TensorView& x, const TensorView& up, const MutableTensorView& out);

void validate_activation_gradient(const TensorView& x, const TensorView& up, const TensorView& dout,
                                  const ActivationGradients& gradients);

}  // namespace mha

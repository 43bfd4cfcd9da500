// The preconditions of adamw() and gradient_norm().
#pragma once

#include "mha/adamw.hpp"

namespace mha {

void validate_adamw(const MutableTensorView& weight, const TensorView& gradient, const MutableTensorView& m,
                    const MutableTensorView& v, const AdamWStep& step);

void validate_gradient_norm(const TensorView* gradients, Index count);

}  // namespace mha

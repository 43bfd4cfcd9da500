// The preconditions of adamw() and sum_of_squares().
#pragma once

#include "mha/adamw.hpp"

namespace mha {

void validate_adamw(const MutableTensorView& weight, const TensorView& gradient, const MutableTensorView& m,
                    const MutableTensorView& v, const AdamWStep& step);

void validate_sum_of_squares(const TensorView& x);

}  // namespace mha

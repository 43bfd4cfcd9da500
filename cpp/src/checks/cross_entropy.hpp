// The preconditions of cross_entropy().
#pragma once

#include "mha/cross_entropy.hpp"

namespace mha {

/// Returns N.
Index validate_cross_entropy(const TensorView& x, const TensorView& weight, const TensorView& bias,
                             const std::int64_t* targets, const MutableTensorView& loss,
                             const CrossEntropyGradients& gradients, const CrossEntropyOptions& options);

}  // namespace mha

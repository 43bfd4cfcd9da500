// Gradients of the norms of norm.hpp.
#pragma once

#include "mha/errors.hpp"
#include "mha/export.h"
#include "mha/norm_kind.hpp"
#include "mha/tensor_view.hpp"

namespace mha {

/// Where gradients by the arguments of a norm go; an empty view: not wanted. All have the dtype of x and share no
/// memory with each other and with the arguments.
struct NormGradients {
  MutableTensorView x = {};       // the shape of x
  MutableTensorView weight = {};  // [E], if there is a weight
  MutableTensorView bias = {};    // [E], for NormKind::layer
};

/// From `dout`, the gradient of a function by the result of a norm, the gradients by the arguments of the norm. The
/// norm of x is computed again.
///
/// Gradients of weight and bias are sums over rows: of spans of 64 rows in the accumulator's type, whose sums are added
/// in order, in double precision. Gradients of x depend on no other row. So no bit depends on the number of threads.
///
/// @param x      [..., E], up to four axes; any strides
/// @param weight [E] or empty: 1
/// @param eps    of the norm; at least 0
/// @param dout   the shape of x
/// @throws std::invalid_argument, DTypeError, AllocationError before anything is written
MHA_API void norm_gradient(NormKind kind, const TensorView& x, const TensorView& weight, double eps,
                           const TensorView& dout, const NormGradients& gradients, int num_threads = 0);

}  // namespace mha

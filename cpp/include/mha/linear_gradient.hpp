// The gradient of linear(): from the gradient of its result to the gradients of its arguments.
#pragma once

#include "mha/export.h"
#include "mha/tensor_view.hpp"

namespace mha {

/// Where gradients are written; empty: not wanted, and not computed.
struct LinearGradients {
  MutableTensorView x;       // [..., in_features], otherwise of the shape of dout
  MutableTensorView weight;  // [out_features, in_features]
  MutableTensorView bias;    // [out_features]
};

/// The gradients of a function f of x W^T + b, which was computed from the same `x` and `weight`.
///
/// @param x       [..., in_features], up to four axes; may be empty if the gradient of the weight is not wanted
/// @param weight  [out_features, in_features]; may be empty if the gradient of x is not wanted
/// @param dout    [..., out_features] the gradient of f by the result
/// @param gradients written whole; must not overlap an input or each other
///
/// The gradient of x is dout W, with the bits of linear() by the transposed weights: a row depends on the same row of
/// dout alone. The gradients of weight and bias are sums over rows, in f32 for elements of 16 bits: of spans of 128 rows,
/// which are added in order. So bits do not depend on threads. Without rows they are 0.
/// @throws std::invalid_argument, DTypeError, AllocationError before anything is written
MHA_API void linear_gradient(const TensorView& x, const TensorView& weight, const TensorView& dout,
                             const LinearGradients& gradients, int num_threads = 0);

}  // namespace mha

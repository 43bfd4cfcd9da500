// Runs the sums over rows of the gradient of a linear map.
#pragma once

#include "mha/tensor_view.hpp"

namespace mha {

/// weight = dout^T x and bias = the column sums of dout, over rows. Outputs may be empty.
///
/// @param adds     add the sums to the outputs. Calls over parts of the rows, each of whole spans of 128 rows, then have
///                 the bits of one call. Not for elements of 16 bits
/// @param x, dout  [..., features], with the same rows and of one dtype
void run_linear_gradient(const TensorView& x, const TensorView& dout, const MutableTensorView& weight,
                         const MutableTensorView& bias, int num_threads, bool adds = false);

}  // namespace mha

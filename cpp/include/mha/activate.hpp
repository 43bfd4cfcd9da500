// Activations of whole tensors, and their gradients.
#pragma once

#include "mha/activation.hpp"
#include "mha/errors.hpp"
#include "mha/export.h"
#include "mha/tensor_view.hpp"

namespace mha {

/// out = activation(x), or activation(x) * up: what FeedForward does between its projections, bit for bit.
///
/// @param x   up to four axes; any strides
/// @param up  the shape of x, or empty: 1
/// @param out the shape of x; must not overlap x or up
/// @throws std::invalid_argument, DTypeError, AllocationError before anything is written
MHA_API void activate(Activation activation, const TensorView& x, const TensorView& up, const MutableTensorView& out,
                      int num_threads = 0);

/// Where gradients by the arguments of activate() go; an empty view: not wanted. Both have the shape and dtype of x and
/// share no memory with each other and with the arguments.
struct ActivationGradients {
  MutableTensorView x = {};
  MutableTensorView up = {};  // only if there is an up
};

/// From `dout`, the gradient of a function by the result of activate(), the gradients by its arguments. Where relu has
/// no derivative, at 0, it counts as 0.
MHA_API void activation_gradient(Activation activation, const TensorView& x, const TensorView& up,
                                 const TensorView& dout, const ActivationGradients& gradients, int num_threads = 0);

}  // namespace mha

// The weights of one linear map, y = x W^T + b, as arguments of layers and as outputs of copy_weights().
#pragma once

#include "mha/tensor_view.hpp"

namespace mha {

/// In the layout of torch.nn.Linear. `View` is TensorView (LinearWeights) or MutableTensorView (LinearWeightOutputs).
template <class View>
struct BasicLinearWeights {
  View weight;  // [out_features, in_features]
  View bias;    // [out_features], or empty: none
  /// [out_features], of a matrix in int8 and of no other: element (i, j) is scale[i] times the integer.
  View scale;

  BasicLinearWeights() = default;
  BasicLinearWeights(const View& matrix, const View& bias_vector = {}, const View& scales = {})
      : weight(matrix), bias(bias_vector), scale(scales) {}
};

using LinearWeights = BasicLinearWeights<TensorView>;
/// Where copies go. Empty views are passed over.
using LinearWeightOutputs = BasicLinearWeights<MutableTensorView>;

}  // namespace mha

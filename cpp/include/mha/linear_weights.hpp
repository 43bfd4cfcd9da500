// The weights of one linear map, y = x W^T + b, as arguments of layers and as outputs of copy_weights().
#pragma once

#include "mha/tensor_view.hpp"
#include "mha/weight_format.hpp"

namespace mha {

/// In the layout of torch.nn.Linear. `View` is TensorView (LinearWeights) or MutableTensorView (LinearWeightOutputs).
template <class View>
struct BasicLinearWeights {
  View weight;  // [out_features, in_features]; in blocks [out_features, bytes of a row], whose dtype is int8
  View bias;    // [out_features], or empty: none
  /// [out_features], of a matrix in int8 and of no other: element (i, j) is scale[i] times the integer.
  View scale;
  /// Of the matrix, if it lies in blocks, as in a GGUF file; it then stays in this format, whatever the format of the
  /// layer is. `plain` for numbers.
  WeightFormat block_format = WeightFormat::plain;

  BasicLinearWeights() = default;
  BasicLinearWeights(const View& matrix, const View& bias_vector = {}, const View& scales = {},
                     WeightFormat format_of_blocks = WeightFormat::plain)
      : weight(matrix), bias(bias_vector), scale(scales), block_format(format_of_blocks) {}

  Index out_features() const { return weight.extents[0]; }
  Index in_features() const {
    if (!has_blocks(block_format)) return weight.extents[1];
    return weight.extents[1] / block_bytes(block_format) * block_features(block_format);
  }
};

using LinearWeights = BasicLinearWeights<TensorView>;
/// Where copies go. Empty views are passed over.
using LinearWeightOutputs = BasicLinearWeights<MutableTensorView>;

}  // namespace mha

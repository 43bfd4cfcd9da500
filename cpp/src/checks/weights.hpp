// The preconditions of weights: dtypes and scales of each format, and the arrays that weights are copied to.
#pragma once

#include "checks/rules.hpp"
#include "mha/transformer.hpp"

namespace mha {

/// The most input features of int8 weights. A sum of so many products fits 32 bits: weights are in [-128, 127],
/// quantized rows in [-254, 254].
constexpr Index kMostInt8Features = 0x7fffffff / (128 * 254);

/// Checks the dtypes of a layer's weights, and the shapes of their scales. `views` are all weights, the matrices first;
/// `scales` are those of the matrices in the same order.
void check_weights(const char* function, WeightFormat format, Named views, Named scales);

/// The arguments of copy_weights(): each output that is not empty has the shape and dtype of the weight.
void validate(const MultiHeadAttention& layer, const MultiHeadAttention::WeightOutputs& outputs);
void validate(const FeedForward& layer, const FeedForward::WeightOutputs& outputs);

}  // namespace mha

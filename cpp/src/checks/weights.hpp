// What the weights of projections must satisfy, by their format.
#pragma once

#include "checks/rules.hpp"
#include "mha/transformer.hpp"

namespace mha {

/// The most input features of int8 weights: sums of so many products of -128 ... 127 and -254 ... 254 fit 32 bits.
constexpr Index kMostInt8Features = 0x7fffffff / (128 * 254);

/// `views` are those of a layer, its matrices first, and `scales` those of the matrices, in order. Looks at dtypes, and
/// at the shapes of scales.
void check_weights(const char* function, WeightFormat format, Named views, Named scales);

/// Of copy_weights(): where each weight of the layer goes.
void validate(const MultiHeadAttention& layer, const MultiHeadAttention::WeightOutputs& outputs);
void validate(const FeedForward& layer, const FeedForward::WeightOutputs& outputs);

}  // namespace mha

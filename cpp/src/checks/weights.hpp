// What the weights of layers must satisfy, as they are given to constructors and copied out again.
#pragma once

#include "mha/transformer.hpp"

namespace mha {

/// The most input features of int8 weights: sums of so many products of -128 ... 127 and -254 ... 254 fit 32 bits.
constexpr Index kMostInt8Features = 0x7fffffff / (128 * 254);

/// Resolves the zeros of the config and checks the weights against it.
MultiHeadAttentionConfig validate(MultiHeadAttentionConfig config, const MultiHeadAttentionWeights& weights);
void validate_feed_forward(const FeedForwardWeights& weights, WeightFormat format);
void validate_norm(const TensorView& weight, const TensorView& bias, double eps);

/// Of copy_weights(): where each weight of the layer goes.
void validate(const MultiHeadAttention& layer, const MultiHeadAttention::WeightOutputs& outputs);
void validate(const FeedForward& layer, const FeedForward::WeightOutputs& outputs);

}  // namespace mha

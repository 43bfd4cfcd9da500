// The preconditions of weights: those that constructors of layers are given, and the arrays that weights are copied to.
#pragma once

#include <cstdint>

#include "kernels/kernel_table.hpp"
#include "mha/linear.hpp"
#include "mha/transformer.hpp"

namespace mha {

/// Replaces the zeros of the config, which stand for defaults, and checks the weights and the steps against it.
MultiHeadAttentionConfig validate(MultiHeadAttentionConfig config, const MultiHeadAttentionWeights& weights,
                                  const QueryKeySteps& steps);
void validate_linear(const char* function, const LinearWeights& weights, WeightFormat format);
void validate_dequantize(const LinearWeights& weights, const MutableTensorView& out);
void validate_dequantized_rows(const Linear& layer, const std::int64_t* features, Index count,
                               const MutableTensorView& rows);
void validate_feed_forward(const FeedForwardWeights& weights, WeightFormat format);
/// `f` is the kind of norm, for messages.
void validate_norm(const char* f, const TensorView& weight, const TensorView& bias, double eps);

/// The arguments of copy_weights(): each output that is not empty has the shape and dtype of the weight.
void validate(const MultiHeadAttention& layer, const MultiHeadAttention::WeightOutputs& outputs);
void validate(const Linear& layer, const LinearWeightOutputs& outputs);
void validate(const FeedForward& layer, const FeedForward::WeightOutputs& outputs);

}  // namespace mha

// The preconditions of layer norms, feed-forward networks, and stacks of transformer layers.
#pragma once

#include "checks/attention.hpp"
#include "weights/layer_parts.hpp"

namespace mha {

void validate_norm(const TensorView& weight, const TensorView& bias, double eps);
void validate_feed_forward(const FeedForwardWeights& weights, WeightFormat format);

/// A call of LayerNorm or FeedForward: x and out have `features` elements on the last axis.
void validate_rows(const char* function, DType dtype, Index features, const TensorView& x,
                   const MutableTensorView& out);

/// The sizes that all layers of a stack share.
struct StackSizes {
  DType dtype;
  Index embed_dim;   // E
  Index memory_dim;  // Em, the features of the memory; 0 in a stack without cross-attention
};

/// The parts of a layer fit each other and, if it is not null, `first`: the sizes of the first layer. Returns the sizes.
StackSizes validate_block(const char* function, Index layer, const Block& block, const StackSizes* first);

/// The norm behind the last layer fits the layers.
void validate_final_norm(const char* function, const NormWeights& norm, const StackSizes& sizes);

/// The arguments of one call of a stack. validate() brings x, out and memory to [B, T, features].
struct StackArguments {
  const char* function;  // its name, for messages
  TensorView x;
  MutableTensorView out;
  AttentionOptions options;
  TensorView memory;  // empty without cross-attention, and if there are memory_caches
  AttentionOptions memory_options;
  const MutableTensorView* weights = nullptr;  // one for each layer, or null; so are the caches
  KVCache* const* caches = nullptr;
  const KVCache* const* memory_caches = nullptr;
  const std::int64_t* new_lengths = nullptr;
  const RaggedBatch* ragged = nullptr;
};
StackArguments validate(const StackSizes& sizes, Index layers, StackArguments arguments);

/// The arguments of self-attention and cross-attention of one layer in that call, validated.
LayerArguments self_arguments(const StackArguments& arguments, Index layer, const Block& block);
LayerArguments cross_arguments(const StackArguments& arguments, Index layer, const Block& block);

}  // namespace mha

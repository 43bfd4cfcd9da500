// Preconditions of the blocks of a transformer.
#pragma once

#include "checks/attention.hpp"
#include "weights/layer_parts.hpp"

namespace mha {

void validate_norm(const TensorView& weight, const TensorView& bias, double eps);
void validate_feed_forward(const FeedForwardWeights& weights, WeightFormat format);

/// A call of LayerNorm or FeedForward, whose last axis has `features` elements.
void validate_rows(const char* function, DType dtype, Index features, const TensorView& x,
                   const MutableTensorView& out);

/// What the layers of a stack have in common.
struct StackSizes {
  DType dtype;
  Index embed_dim;   // E
  Index memory_dim;  // Em; 0: an encoder
};

/// The parts of a layer fit each other, and `first` if that is not null: the sizes of the first layer.
StackSizes validate_block(const char* function, Index layer, const Block& block, const StackSizes* first);

/// So does the norm behind the last layer.
void validate_final_norm(const char* function, const NormWeights& norm, const StackSizes& sizes);

/// One call of a stack. validate() brings x, out and memory to [B, T, features].
struct StackArguments {
  const char* function;  // for messages
  TensorView x;
  MutableTensorView out;
  AttentionOptions options;
  TensorView memory;  // empty: an encoder, or there are memory_caches
  AttentionOptions memory_options;
  const MutableTensorView* weights = nullptr;  // [layers] or null, as are the caches
  KVCache* const* caches = nullptr;
  const KVCache* const* memory_caches = nullptr;
  const std::int64_t* new_lengths = nullptr;
  const RaggedBatch* ragged = nullptr;
};
StackArguments validate(const StackSizes& sizes, Index layers, StackArguments arguments);

/// Attention of one layer in that call, validated.
LayerArguments self_arguments(const StackArguments& arguments, Index layer, const Block& block);
LayerArguments cross_arguments(const StackArguments& arguments, Index layer, const Block& block);

}  // namespace mha

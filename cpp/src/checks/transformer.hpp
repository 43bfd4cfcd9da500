// The preconditions of layer norms, feed-forward networks, and stacks of transformer layers.
#pragma once

#include "checks/attention.hpp"
#include "weights/packed_transformer_layer.hpp"

namespace mha {

/// A call of LayerNorm or FeedForward: x and out have `features` elements on the last axis.
void validate_rows(const char* function, DType dtype, Index features, const TensorView& x,
                   const MutableTensorView& out);
/// A call of Linear: `out` has `out_features` there.
void validate_linear_rows(const char* function, DType dtype, Index in_features, Index out_features, const TensorView& x,
                          const MutableTensorView& out);

/// The parts of experts fit each other.
void validate_experts(const PackedExperts& experts, const TensorView& correction);

/// A call of add_and_normalize.
void validate_add_and_normalize(const Norm* norm, const TensorView& x, const TensorView& residual,
                                const MutableTensorView& sum, const MutableTensorView& out);

/// The sizes that all layers of a stack share.
struct StackSizes {
  DType dtype;
  Index embed_dim;   // E
  Index memory_dim;  // Em, the features of the memory; 0 in a stack without cross-attention
  bool has_rotary;   // whether some of the layers have one
};

/// The parts of a layer fit each other and, if it is not null, `before`: the sizes of the layers before. Returns the
/// sizes with this one.
StackSizes validate_layer(const char* function, Index i, const PackedTransformerLayer& layer, const StackSizes* before);

/// The norm after the last layer fits the layers.
void validate_final_norm(const char* function, const NormWeights& norm, const StackSizes& sizes);

/// The arguments of one call of a stack. validate() brings x, out and memory to [B, T, features].
struct StackArguments {
  const char* function;         // the stack, for messages
  const char* cross_attention;  // its attention to memory, likewise
  TensorView x;
  MutableTensorView out;
  AttentionOptions options;
  TransformerExtras extras;
  const RaggedBatch* ragged = nullptr;
  const RaggedBatch* memories = nullptr;  // of a ragged batch: its rows over the sequences of memory_caches

  /// Of the self-attention of one layer.
  const AttentionOptions& options_of(Index layer) const {
    return extras.layer_options ? extras.layer_options[layer] : options;
  }
};
StackArguments validate(const StackSizes& sizes, Index layers, StackArguments arguments);

/// The arguments of self-attention and cross-attention of one layer in that call, validated.
LayerArguments self_arguments(const StackArguments& arguments, Index i, const PackedTransformerLayer& layer);
LayerArguments cross_arguments(const StackArguments& arguments, Index i, const PackedTransformerLayer& layer);

}  // namespace mha

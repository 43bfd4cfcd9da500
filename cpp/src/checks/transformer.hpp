// Preconditions of LayerNorm, FeedForward and TransformerStack.
#pragma once

#include "checks/attention.hpp"
#include "weights/layer_parts.hpp"

namespace mha {

/// A call of LayerNorm or FeedForward, whose last axis has `features` elements.
void validate_rows(const char* function, DType dtype, Index features, const TensorView& x,
                   const MutableTensorView& out);

/// What the layers of a stack have in common.
struct StackSizes {
  DType dtype;
  Index embed_dim;   // E
  Index memory_dim;  // Em; 0: no layer reads a memory
};

/// The parts of a layer fit each other, and `first` if that is not null: the sizes of the first layer.
StackSizes validate_block(const char* function, Index layer, const Block& block, const StackSizes* first);

/// So does the norm behind the last layer.
void validate_final_norm(const char* function, const NormWeights& norm, const StackSizes& sizes);

/// One call of a stack. validate() brings x, out and memory to [B, T, features].
struct StackArguments {
  const char* function;         // the stack, for messages
  const char* cross_attention;  // its attention to memory, likewise
  TensorView x;
  MutableTensorView out;
  AttentionOptions options;
  TransformerExtras extras;
  const RaggedBatch* ragged = nullptr;

  /// Of the self-attention of one layer.
  const AttentionOptions& options_of(Index layer) const {
    return extras.layer_options ? extras.layer_options[layer] : options;
  }
};
StackArguments validate(const StackSizes& sizes, Index layers, StackArguments arguments);

/// Attention of one layer in that call, validated.
LayerArguments self_arguments(const StackArguments& arguments, Index layer, const Block& block);
LayerArguments cross_arguments(const StackArguments& arguments, Index layer, const Block& block);

}  // namespace mha

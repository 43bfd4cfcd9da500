// The gradient of scaled dot-product attention: from the gradient of its result to the gradients of its arguments.
//
// Axis letters as in attention.hpp.
#pragma once

#include "mha/attention.hpp"
#include "mha/varlen.hpp"

namespace mha {

/// Where gradients are written; empty: not wanted, and not computed. The last four have the dtype of lse.
struct AttentionGradients {
  MutableTensorView query;          // [B, H, Tq, D], where a batch of one that is repeated has all B, as key and value
  MutableTensorView key;            // [B, Hk, Tk, D]
  MutableTensorView value;          // [B, Hk, Tk, Dv]
  MutableTensorView attn_mask;      // the shape of options.attn_mask, which must be added to scores
  MutableTensorView alibi_slopes;   // the shape of options.alibi_slopes
  MutableTensorView position_bias;  // [H, 2 R + 1]
  MutableTensorView sinks;          // [H]
};

/// The gradients of a function f of the result of scaled_dot_product_attention(), which was called with the same
/// `query`, `key`, `value` and `options`.
///
/// @param out   [B, H, Tq, Dv] the result of that call
/// @param lse   [B, H, Tq] and its other result
/// @param dout  [B, H, Tq, Dv] the gradient of f by out
/// @param dlse  [B, H, Tq] the gradient of f by lse; empty: f does not depend on it
/// @param gradients written whole; must not overlap an input or each other
///
/// Weights are computed again from lse, block by block; nothing of size Tq Tk is stored. Masked memory reaches no
/// gradient, not even a NaN: masked keys and rows that see no key have gradients of exactly 0. `softcap` and `scale` are
/// constants. Elements of 16 bits are computed in f32 and rounded once. Bits depend neither on threads nor on the other
/// sequences of a batch, apart from gradients that are summed over the batch.
/// @throws std::invalid_argument, DTypeError, AllocationError before anything is written
MHA_API void attention_gradient(const TensorView& query, const TensorView& key, const TensorView& value,
                                const TensorView& out, const TensorView& lse, const TensorView& dout,
                                const AttentionGradients& gradients, const AttentionOptions& options = {},
                                const TensorView& dlse = {});

/// The same for scaled_dot_product_attention_varlen(), with arguments of its shapes.
MHA_API void attention_gradient_varlen(const TensorView& query, const TensorView& key, const TensorView& value,
                                       const RaggedBatch& batch, const TensorView& out, const TensorView& lse,
                                       const TensorView& dout, const AttentionGradients& gradients,
                                       const AttentionOptions& options = {}, const TensorView& dlse = {});

}  // namespace mha

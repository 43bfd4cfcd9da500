// The oracle in C++: the textbook equation in double precision, one loop for each sum, no blocking and no tricks. The
// twin of mha_native.reference. Linked by tests and benchmarks only; it validates nothing.
#pragma once

#include <vector>

#include "mha/multi_head_attention.hpp"

namespace mha::reference {

/// Dense row-major results, in double precision whatever the dtype of the inputs.
struct Attention {
  std::vector<double> out;      // [B, H, Tq, Dv]
  std::vector<double> lse;      // [B, H, Tq]; for a row that sees no key its sink, or minus infinity
  std::vector<double> weights;  // [B, H, Tq, Tk]; 0 where a key does not take part
  // [B, H, Tq, Tk]; the results of attention_weights at the stages before
  std::vector<double> scaled, capped, masked;
};

/// softmax(scale * query key^T + masks) value, with the shapes and options of mha::scaled_dot_product_attention.
Attention scaled_dot_product_attention(const TensorView& query, const TensorView& key, const TensorView& value,
                                       const AttentionOptions& options = {});

/// The layer: `out` is [B, Tq, out_dim], `lse` and `weights` belong to its heads, with columns for the keys that it
/// adds.
Attention multi_head_attention(const MultiHeadAttentionConfig& config, const MultiHeadAttentionWeights& weights,
                               const TensorView& query, const TensorView& key, const TensorView& value,
                               const AttentionOptions& options = {});

}  // namespace mha::reference

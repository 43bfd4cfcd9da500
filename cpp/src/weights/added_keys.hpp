// Keys and values of the layer itself, which every row sees besides those of the call: bias_k and bias_v of torch, and
// a key and a value of zeros (add_zero_attn). How a call attends to them: execute/added_shard.hpp.
#pragma once

#include <vector>

#include "mha/multi_head_attention.hpp"

namespace mha {

class AddedKeys {
 public:
  AddedKeys(const MultiHeadAttentionConfig& config, const MultiHeadAttentionWeights& weights, DType dtype);

  Index count() const { return count_; }
  /// [batch, Hk, count, D] and [batch, Hk, count, Dv]; the same for every batch element.
  TensorView keys(Index batch) const { return view(keys_, batch, head_dim_); }
  TensorView values(Index batch) const { return view(values_, batch, value_head_dim_); }

  /// Writes what was given out again, [Hk * D] and [Hk * Dv]; empty views are passed over.
  void unpack(const MutableTensorView& key, const MutableTensorView& value) const;

 private:
  TensorView view(const std::vector<std::byte>& rows, Index batch, Index columns) const {
    return {rows.data(), dtype_, {batch, kv_heads_, count_, columns}, {0, columns, kv_heads_ * columns, 1}};
  }

  DType dtype_;
  bool has_bias_kv_;
  Index count_, kv_heads_, head_dim_, value_head_dim_;
  std::vector<std::byte> keys_, values_;  // [count, Hk, D], [count, Hk, Dv]: the key of the weights comes first
};

}  // namespace mha

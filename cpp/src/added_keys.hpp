// Keys and values of the layer itself, which every row sees besides those of the call: bias_k and bias_v of torch, and
// a key and a value of zeros (add_zero_attn).
//
// They are a shard of the keys that no mask, bound, position or cache knows of. It is attended to first. Its
// log-sum-exp is then a sink of each row among the keys of the call, so that their softmax is the one over all keys. At
// last the values of the shard join, by its share of the weight.
#pragma once

#include <vector>

#include "make_plan.hpp"
#include "run_plan.hpp"

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

/// The added keys in one call of the layer. Its phases refer to it: it must outlive them, and stay where it is.
class AddedShard {
 public:
  /// Memory for the results of `rows` rows.
  static double bytes(const MultiHeadAttentionConfig& config, DType dtype, double rows);

  /// @param query  [B, H, Tq, D], projected
  /// @param out    [B, H, Tq, Dv], of the keys of the call: what the values of the shard join
  /// @param memory bytes() of it
  AddedShard(const AddedKeys& keys, const LayerArguments& call, const TensorView& query, const MutableTensorView& out,
             std::byte* memory, const KernelTable& table);
  AddedShard(const AddedShard&) = delete;
  AddedShard& operator=(const AddedShard&) = delete;

  /// [B, H, Tq]: a sink for each row among the keys of the call.
  TensorView lse() const { return lse_; }
  /// [B, H, Tq]: of all keys. Attention to the keys of the call, with those sinks, is to write it.
  MutableTensorView total_lse() const { return total_lse_; }

  /// Attention to the shard, and how many phases.
  int attend_phases(const Workers& workers, Phase* phases);
  /// When all has been attended to: the values of the shard join `out`, and its weights get their share.
  Phase join_phase() const;

 private:
  template <class Element, class Sum>
  void join_row(Index row) const;
  static void run_join(const void* context, Index task, int worker);

  MutableTensorView out_, shard_out_;  // [B, H, Tq, Dv]
  MutableTensorView lse_, total_lse_;  // [B, H, Tq]
  MutableTensorView weights_;          // [B, H, Tq, count], or empty
  AttentionPlan attend_plan_{}, weigh_plan_{};
  AttentionRun attend_{}, weigh_{};
};

}  // namespace mha

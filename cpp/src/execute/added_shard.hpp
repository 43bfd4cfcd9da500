// The keys that a layer adds to the keys of a call (weights/added_keys.hpp), in one call.
//
// They are a shard of the keys that no mask, bound, position or cache knows of. It is attended to first. Its
// log-sum-exp is then a sink of each row among the keys of the call, so that their softmax is the one over all keys. At
// last the values of the shard join, by its share of the weight.
#pragma once

#include "execute/run_plan.hpp"
#include "plan/make_plan.hpp"
#include "weights/added_keys.hpp"

namespace mha {

/// The added keys in one call of the layer, over memory. Its phases refer to it: it must outlive them, and stay
/// where it is.
class AddedShard {
 public:
  /// Memory for the results of `rows` rows.
  static double bytes(const MultiHeadAttentionConfig& config, DType dtype, double rows);

  /// @param query  [B, H, Tq, D], projected
  /// @param out    [B, H, Tq, Dv], of the keys of the call; the values of the shard are merged into it
  /// @param memory bytes() of it
  AddedShard(const AddedKeys& keys, const LayerArguments& call, const TensorView& query, const MutableTensorView& out,
             std::byte* memory, const Workers& workers, const KernelTable& table);
  AddedShard(const AddedShard&) = delete;
  AddedShard& operator=(const AddedShard&) = delete;

  /// [B, H, Tq]: a sink for each row among the keys of the call.
  TensorView lse() const { return lse_; }
  /// [B, H, Tq]: of all keys. Attention to the keys of the call, with those sinks, is to write it.
  MutableTensorView total_lse() const { return total_lse_; }

  /// Attention to the shard, and how many phases.
  int attend_phases(Phase* phases) const;
  /// When all has been attended to: the values of the shard join `out`, and its weights get their share.
  Phase join_phase() const;

 private:
  template <class Element, class Sum>
  void join_row(Index row) const;
  static void run_join(const void* context, Index task, int worker);

  MutableTensorView out_, shard_out_;  // [B, H, Tq, Dv]
  MutableTensorView lse_, total_lse_;  // [B, H, Tq]
  MutableTensorView weights_;          // [B, H, Tq, count], or empty
  AttentionPlan attend_plan_{}, weights_plan_{};
  AttentionRun attend_run_{}, weights_run_{};
};

}  // namespace mha

// One call of a layer up to its heads: project in, attend, concatenate. The last step is the projection out, which the
// attention layer and the layers of a transformer each do in their own way.
//
// Types fix the order of calls: a sized object takes its parts of a Layout; CallMemory borrows them, with the scratch
// of each worker; an object bound to that memory has phases.
#pragma once

#include <optional>

#include "execute/added_shard.hpp"
#include "execute/head_rows.hpp"
#include "execute/projection_phase.hpp"
#include "execute/run_plan.hpp"
#include "platform/layout.hpp"
#include "weights/packed_attention.hpp"

namespace mha {

/// Most phases that an AttentionCall has: project in; the steps on each row of a head; two for the added keys, two
/// for the others, one to join them; two for the weights.
constexpr int kMostAttentionPhases = 9;

/// How many tokens the sequences of a call have in its cache, before it and after it: [sequences of the call].
struct CacheLengths {
  const std::int64_t *before, *after;
};

/// The sizes of one call, before there is memory.
class SizedAttentionCall {
 public:
  /// Takes its memory from `layout`. `arguments` are validated; where their query, key and value lie is not looked at.
  SizedAttentionCall(const PackedAttention& layer, const LayerArguments& arguments, const KernelTable& table,
                     int threads, Layout& layout);

  /// Of each worker.
  std::size_t scratch_bytes() const;

 private:
  friend class AttentionCall;

  DType dtype() const { return layer_.dtype(); }
  const DTypeKernels& kernels() const { return table_.kernels[static_cast<int>(dtype())]; }
  /// Of the dtype of keys and values.
  const DTypeKernels& attention_kernels() const {
    return arguments_.cache ? table_.kernels[static_cast<int>(attended_as(arguments_.cache->config().dtype))]
                            : kernels();
  }
  Index new_keys() const { return arguments_.key ? arguments_.key.extents[1] : 0; }
  Index sequences() const { return arguments_.ragged ? arguments_.ragged->size : arguments_.query.extents[0]; }
  CacheLengths lengths_in_cache(std::byte* memory) const;

  double shared_bytes(int threads) const;

  const PackedAttention& layer_;
  const LayerArguments arguments_;
  const KernelTable& table_;
  std::size_t query_at_, key_at_, value_at_, heads_at_, lengths_at_, sums_at_, shared_at_, schedule_at_, added_at_;
  bool may_share_;  // spans of keys between sequences of a cache
};

/// The call, over memory. Phases refer to it: it must outlive them, and stay where it is.
class AttentionCall {
 public:
  /// Multiply-adds, about.
  static double work(const PackedAttention& layer, const LayerArguments& arguments);

  /// @param sized            must outlive the call
  /// @param memory           has the layout and the scratch that `sized` took
  /// @param query,key,value  [B, T, features]
  AttentionCall(const SizedAttentionCall& sized, const CallMemory& memory, const TensorView& query,
                const TensorView& key, const TensorView& value);
  AttentionCall(const SizedAttentionCall&& temporary, const CallMemory& memory, const TensorView& query,
                const TensorView& key, const TensorView& value) = delete;
  AttentionCall(const AttentionCall&) = delete;
  AttentionCall& operator=(const AttentionCall&) = delete;

  /// Returns how many it has written.
  int phases(Phase* phases) const;
  /// The result of the phases: the heads, concatenated: [B, Tq, H * Dv].
  TensorView heads() const { return heads_; }

 private:
  void add_head_rows(const MutableTensorView& query, const MutableTensorView& key, const MutableTensorView& value,
                     const AttentionOptions& options);

  const SizedAttentionCall& sized_;
  const MutableTensorView heads_;
  ProjectionRun project_in_;
  std::optional<HeadRowsRun> head_rows_;
  std::optional<AddedShard> shard_;
  AttentionPlan attend_plan_, weights_plan_;
  AttentionRun attend_run_{}, weights_run_{};
};

/// x [B, T, features] to out [B, segments, T, columns].
Projection projection(const PackedLinear& linear, const DTypeKernels& kernels, const TensorView& x,
                      const MutableTensorView& out);

}  // namespace mha

// One call of a layer up to its heads: project in, attend, concatenate. What is left is the projection out, which the
// layer and the blocks of a transformer each do in their own way.
#pragma once

#include <optional>

#include "execute/added_shard.hpp"
#include "execute/projection_phase.hpp"
#include "execute/run_plan.hpp"
#include "platform/layout.hpp"
#include "weights/packed_attention.hpp"

namespace mha {

/// Most phases that an AttentionCall has: project in; two for the added keys, two for the others, one to join them; two
/// for the weights.
constexpr int kMostAttentionPhases = 8;

/// Sizes first, when memory is laid out; then pointers, when there is memory. Phases refer to the call: it must outlive
/// them, and stay where it is.
class AttentionCall {
 public:
  /// Multiply-adds, about.
  static double work(const PackedAttention& layer, const LayerArguments& arguments);

  /// Takes its memory from `layout`. `arguments` are validated; where their query, key and value lie is not looked at.
  AttentionCall(const PackedAttention& layer, const LayerArguments& arguments, const KernelTable& table, int threads,
                Layout& layout);
  AttentionCall(const AttentionCall&) = delete;
  AttentionCall& operator=(const AttentionCall&) = delete;

  /// Of each worker.
  std::size_t scratch_bytes() const;

  /// Says where everything is: `memory` is what was laid out, the tensors are [B, T, features].
  void place(std::byte* memory, const Workers& workers, const TensorView& query, const TensorView& key,
             const TensorView& value);
  /// Returns how many it has written.
  int phases(Phase* phases);
  /// The heads, concatenated: [B, Tq, H * Dv]. What phases() write.
  TensorView heads() const;
  /// When the phases have been run: the cache has grown.
  void finish() const;

 private:
  DType dtype() const { return layer_.dtype(); }
  const DTypeKernels& kernels() const { return table_.kernels[static_cast<int>(dtype())]; }
  /// Of the dtype of keys and values.
  const DTypeKernels& attention_kernels() const {
    return arguments_.cache ? table_.kernels[static_cast<int>(arguments_.cache->config().dtype)] : kernels();
  }
  Index new_keys() const { return arguments_.key ? arguments_.key.extents[1] : 0; }
  const std::int64_t* lengths_after(std::int64_t* lengths) const;

  const PackedAttention& layer_;
  const LayerArguments arguments_;
  const KernelTable& table_;
  std::size_t query_at_, key_at_, value_at_, heads_at_, lengths_at_, sums_at_, schedule_at_, added_at_;

  std::byte* memory_ = nullptr;
  std::optional<ProjectionRun> project_in_;
  std::optional<AddedShard> shard_;
  AttentionPlan attend_plan_, weigh_plan_;
  AttentionRun attend_{}, weigh_{};
};

/// x [B, T, features] to out [B, segments, T, columns].
Projection projection(const PackedLinear& linear, const DTypeKernels& kernels, const TensorView& x,
                      const MutableTensorView& out);

}  // namespace mha

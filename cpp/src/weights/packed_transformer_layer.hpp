// The weights of one layer of a transformer, as pointers to its packed parts.
#pragma once

#include "weights/norm_weights.hpp"
#include "weights/packed_attention.hpp"
#include "weights/packed_experts.hpp"
#include "weights/packed_feed_forward.hpp"

namespace mha {

constexpr int kMostSublayers = 3;

struct PackedTransformerLayer {
  const PackedAttention* self_attention;
  const PackedAttention* cross_attention;  // null: none, as in an encoder
  const PackedFeedForward* feed_forward;   // null: there are experts
  // The norms of self-attention, of cross-attention if there is one, of feed-forward; null: none.
  const NormWeights *norms[kMostSublayers], *output_norms[kMostSublayers];
  NormPlacement norm_placement;
  const PackedExperts* experts = nullptr;   // null: there is a feed_forward
  const NormWeights* final_norm = nullptr;  // after the last layer of a stack; null: none

  int num_sublayers() const { return cross_attention ? 3 : 2; }
  /// Null: the sublayer reads the residual stream, as after the last one.
  const NormWeights* norm_before(int sublayer) const {
    return norm_placement != NormPlacement::after && sublayer < num_sublayers() ? norms[sublayer] : nullptr;
  }
  const NormWeights* norm_after(int sublayer) const {
    return norm_placement == NormPlacement::after ? norms[sublayer] : nullptr;
  }
  double feed_forward_work(double rows) const { return experts ? experts->work(rows) : feed_forward->work(rows); }
  bool is_parallel() const { return norm_placement == NormPlacement::parallel; }
  bool has_norm_before() const { return norm_before(0) || norm_before(1) || norm_before(2); }
};

}  // namespace mha

// The weights of one layer of a transformer, as pointers to its packed parts.
#pragma once

#include "weights/norm_weights.hpp"
#include "weights/packed_attention.hpp"
#include "weights/packed_feed_forward.hpp"

namespace mha {

struct PackedTransformerLayer {
  const PackedAttention* self_attention;
  const PackedAttention* cross_attention;  // null: none, as in an encoder
  const PackedFeedForward* feed_forward;
  const NormWeights* norms[3];  // those of self-attention, of cross-attention if there is one, of feed-forward
  NormPlacement norm_placement;
  const NormWeights* final_norm = nullptr;  // behind the last layer of a stack; null: none

  bool norm_comes_first() const { return norm_placement == NormPlacement::before; }
};

}  // namespace mha

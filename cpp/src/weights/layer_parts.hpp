// The weights of one layer of a transformer, as pointers to its packed parts.
#pragma once

#include "weights/norm_weights.hpp"
#include "weights/packed_attention.hpp"
#include "weights/packed_feed_forward.hpp"

namespace mha {

struct Block {
  const PackedAttention* self_attention;
  const PackedAttention* cross_attention;  // null: the layer reads no memory
  const PackedFeedForward* feed_forward;
  const NormWeights* norms[3];  // of self-attention, cross-attention if there is one, feed-forward
  NormPlacement norm_placement;
  const NormWeights* final_norm = nullptr;  // of the result of the last layer; null: none

  bool norm_comes_first() const { return norm_placement == NormPlacement::before; }
};

}  // namespace mha

// The weights of one layer of a transformer, as pointers to its packed parts.
#pragma once

#include "weights/norm_weights.hpp"
#include "weights/packed_attention.hpp"
#include "weights/packed_feed_forward.hpp"

namespace mha {

/// One layer of an encoder or of a decoder.
struct Block {
  const PackedAttention* self_attention;
  const PackedAttention* cross_attention;  // null: none, as in an encoder
  const PackedFeedForward* feed_forward;
  const NormWeights* norms[3];  // those of self-attention, of cross-attention if there is one, of feed-forward
  bool norm_first;              // pre-LN; otherwise post-LN
  const NormWeights* final_norm = nullptr;  // behind the last layer of a stack; null: none
};

}  // namespace mha

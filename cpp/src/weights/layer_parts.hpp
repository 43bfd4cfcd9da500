// The weights of one layer of a transformer, as pointers to its packed parts.
#pragma once

#include "weights/norm_weights.hpp"
#include "weights/packed_attention.hpp"
#include "weights/packed_feed_forward.hpp"

namespace mha {

/// A layer of an encoder, or of a decoder.
struct Block {
  const PackedAttention* self_attention;
  const PackedAttention* cross_attention;  // null: an encoder's
  const PackedFeedForward* feed_forward;
  const NormWeights* norms[3];  // of self-attention, cross-attention if there is one, feed-forward
  bool norm_first;
  const NormWeights* final_norm = nullptr;  // of the result, behind the last layer; null: none
};

}  // namespace mha

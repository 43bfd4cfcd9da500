// Attention over a ragged batch: sequences of different length, one after another, without padding.
//
// Nq and Nk are the query and key rows of all sequences together; B, H, Hk, D, Dv as in attention.hpp.
#pragma once

#include "mha/attention.hpp"

namespace mha {

/// Where the sequences lie: sequence b has the query rows [cu_seqlens_q[b], cu_seqlens_q[b + 1]), and its keys
/// likewise. Every row belongs to one sequence: offsets begin with 0, never fall, and end with Nq or Nk. A sequence may
/// be empty.
struct RaggedBatch {
  Index size = 0;                              // B
  const std::int64_t* cu_seqlens_q = nullptr;  // [B + 1]
  const std::int64_t* cu_seqlens_k = nullptr;  // [B + 1]; may be cu_seqlens_q
  /// [B], over a cache: the cache's sequence that each sequence continues, no two the same; null: b, for all B of the
  /// cache.
  const std::int64_t* sequences = nullptr;
};

/// scaled_dot_product_attention() of each sequence with its own keys. The bits of a row are those that it has in a
/// dense call on its sequence alone.
///
/// @param query [Nq, H, D]; any strides
/// @param key   [Nk, Hk, D]
/// @param value [Nk, Hk, Dv]
/// @param out   [Nq, H, Dv]; written whole; must not overlap an input
/// @param lse   [Nq, H] or empty
/// @param options as for a dense call, where positions, key_lengths and the window count from the beginning of each
///              sequence. Of other shape are
///                attn_mask [H|1, Nq|1, K|1], K the keys of the longest sequence: entry j of a row is for key j of its
///                          sequence, and entries beyond its last key are not read
///                key_mask  [Nk]
/// @throws std::invalid_argument, DTypeError, AllocationError before anything is written
MHA_API void scaled_dot_product_attention_varlen(const TensorView& query, const TensorView& key,
                                                 const TensorView& value, const RaggedBatch& batch,
                                                 const MutableTensorView& out, const MutableTensorView& lse = {},
                                                 const AttentionOptions& options = {});

}  // namespace mha

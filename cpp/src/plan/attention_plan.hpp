// One call of attention as plain data: addresses, strides, integers, and the kernels to run. Everything about element
// types, ranks, broadcasting and options of the caller is settled before a plan exists (make_plan.hpp); the code
// that runs a plan (execute/run_plan.hpp) reads nothing else.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/kernel_table.hpp"
#include "plan/key_value_source.hpp"
#include "plan/strided.hpp"

namespace mha {

/// Number of spans (kSpanKeys) that `keys` keys reach into.
constexpr Index spans_of(Index keys) { return (keys + kSpanKeys - 1) / kSpanKeys; }

/// If a key-value head has at most so many query rows, its keys may be shared out among threads span by span: the rows
/// of one tile, or of one decode tile.
inline Index most_shared_rows(const DTypeKernels& kernels) {
  return std::max<Index>(kernels.query_tile_rows, kMaxDecodeRows);
}

struct AttentionPlan {
  const DTypeKernels* kernels;
  // For attention weights and scores: kernels->weights or kernels->scores. Null: attended values, by kernels->attend or
  // kernels->decode.
  void (*write)(const AttentionTile&, void* scratch);
  bool suits_decode;  // tiles of few rows go to kernels->decode

  bool is_wide;  // query, out and attn_mask are of the accumulator's type, keys and values of a 16-bit type
  Index batch, kv_heads;
  Index group;  // query heads that share one key-value head: their rows are computed in one tile
  Index query_length, key_length, head_dim, value_dim;
  // [batch + 1], of a ragged batch: the rows of all sequences lie one after another along one axis, sequence b from
  // starts[b] to starts[b + 1], and all batch strides are 0. Null: a dense batch.
  const std::int64_t *query_starts, *key_starts;

  Input query;
  KeyValues key_values;
  Output out;
  Output lse;       // data null: not wanted
  Input attn_mask;  // data null: none
  bool attn_mask_is_boolean;
  const std::byte* key_mask;            // [batch, key], one boolean for all heads and queries; null: none
  Index key_mask_batch, key_mask_step;  // bytes
  Input block_mask;                     // one boolean for each kKeyBlock queries and as many keys; data null: none

  bool is_causal;
  std::int64_t window_left, window_right;  // -1: unbounded
  std::int64_t query_offset;
  const std::int64_t* query_offsets;  // [batch] or null
  const std::int64_t* key_lengths;    // [batch] or null
  const std::int64_t* query_lengths;  // [batch] or null; rows from there on are padding, which sees no key
  double scale;
  double softcap;           // 0: none
  Input alibi_slopes;       // one for each head, of the accumulator's type; data null: none
  Input position_bias;      // for each row one for each distance, of the accumulator's type; data null: none
  Index farthest_distance;  // distances from minus this one to this one have entries of their own
  Input sinks;              // one for each row; data null: none
  DType sink_dtype;         // the accumulator's type, or the query's
  bool has_dropout;         // the next three are fields of AttentionTile, too
  std::uint32_t dropout_below;
  double dropout_factor;
  std::uint64_t dropout_seed;
  DType accumulator;

  Index tiles_per_head;  // query tiles of one (batch, key-value head); 0 for a ragged batch
  Index query_tiles;     // of one key-value head, all batch elements together
  bool has_few_rows() const { return most_rows <= kMaxDecodeRows; }
  Index tiles() const { return kv_heads * query_tiles; }
  Index spans;                // parts that the keys of a tile can be shared out in; 1: they are not shared out
  Index most_rows;            // query rows of a key-value head in a sequence
  double work;                // about so many multiply-adds
  std::size_t scratch_bytes;  // scratch of a kernel, for each thread

  Index queries_of(Index b) const { return query_starts ? query_starts[b + 1] - query_starts[b] : query_length; }
  /// Keys of batch element b: those from key_lengths[b] on do not exist.
  Index keys_of(Index b) const {
    return key_lengths ? key_lengths[b] : key_starts ? key_starts[b + 1] - key_starts[b] : key_length;
  }
  Index tiles_of(Index b) const {
    return (group * queries_of(b) + kernels->query_tile_rows - 1) / kernels->query_tile_rows;
  }
};

}  // namespace mha

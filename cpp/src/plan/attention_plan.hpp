// The watershed: above it views, options and types; below it bytes and integers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/kernel_table.hpp"
#include "plan/key_value_source.hpp"
#include "plan/strided.hpp"

namespace mha {

/// Spans that `keys` keys begin.
constexpr Index spans_of(Index keys) { return (keys + kSpanKeys - 1) / kSpanKeys; }

/// Most query rows of a key-value head whose keys threads share out: one tile, or as many as decode takes.
inline Index most_shared_rows(const DTypeKernels& kernels) {
  return std::max<Index>(kernels.query_tile_rows, kMaxDecodeRows);
}

struct AttentionPlan {
  const DTypeKernels* kernels;
  void (*write)(const AttentionTile&, void* scratch);  // kernels->weigh or score; null: kernels->attend and decode
  bool suits_decode;                                   // tiles of few rows go to kernels->decode

  bool is_wide;        // query, out and attn_mask are of the accumulator's type, keys and values of a narrower one
  Index batch, kv_heads;
  Index group;  // query heads that share one key-value head; their rows lie in one tile
  Index query_length, key_length, head_dim, value_dim;
  // [batch + 1], a ragged batch: the rows of all its elements lie along one axis, those of element b from starts[b] on;
  // the batch strides are 0. Null: dense.
  const std::int64_t *query_starts, *key_starts;

  Input query;
  KeyValues key_values;
  Output out;
  Output lse;       // data null: not wanted
  Input attn_mask;  // data null: none
  bool attn_mask_is_boolean;
  const std::byte* key_mask;  // [batch, key]; null: none
  Index key_mask_batch, key_mask_step;

  bool is_causal;
  std::int64_t window_left, window_right;  // -1: unbounded
  std::int64_t query_offset;
  const std::int64_t* query_offsets;  // [batch] or null
  const std::int64_t* key_lengths;    // [batch] or null
  const std::int64_t* query_lengths;  // [batch] or null; rows behind them are padding, which sees no key
  double scale;
  double softcap;                 // 0: none
  const std::byte* alibi_slopes;  // [head], of the accumulator's type; null: none
  Index alibi_slope_stride;       // bytes
  Input sinks;                    // one for each row, of the accumulator's type; data null: none
  DType accumulator;

  Index tiles_per_head;  // query tiles of one (batch, key-value head); 0 for a ragged batch
  Index query_tiles;     // of one key-value head, in all batch elements
  Index tiles() const { return kv_heads * query_tiles; }
  Index spans;                // of keys, that a tile can be shared out in; 1: it cannot
  bool has_few_rows;          // in every tile: as many as decode takes
  double work;                // multiply-adds, about
  std::size_t scratch_bytes;  // of one thread

  Index queries_of(Index b) const { return query_starts ? query_starts[b + 1] - query_starts[b] : query_length; }
  /// That exist: those behind key_lengths do not.
  Index keys_of(Index b) const {
    return key_lengths ? key_lengths[b] : key_starts ? key_starts[b + 1] - key_starts[b] : key_length;
  }
  Index tiles_of(Index b) const {
    return (group * queries_of(b) + kernels->query_tile_rows - 1) / kernels->query_tile_rows;
  }
};

}  // namespace mha

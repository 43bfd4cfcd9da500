// Where the rows of a cache lie, as plain data: kept by cache/, planned by plan/, written by execute/.
#pragma once

#include <cstdint>

#include "mha/tensor_view.hpp"

namespace mha {

/// Tables of pages: one for each sequence, which share the rows of one pool. Without `pages` each sequence has rows of
/// its own, and token t lies in row t.
struct PageTables {
  // [B, table_row]: token t of sequence b lies in row pages[b, t / page_rows] * page_rows + t % page_rows. Every entry
  // is a page of the pool, and there is one more after the last page that a sequence can have, so that prefetching a
  // block ahead of the tokens finds some row. Null: no pages.
  const std::int32_t* pages = nullptr;
  Index table_row = 0;
  Index page_rows = 0;  // a multiple of kKeyBlock

  const std::int32_t* table_of(Index sequence) const { return pages ? pages + sequence * table_row : nullptr; }
  Index row_of(Index sequence, Index token) const {
    if (!pages) return token;
    return table_of(sequence)[token / page_rows] * page_rows + token % page_rows;
  }
  /// How many of `count` tokens, from `token` on, lie in rows that follow one another.
  Index run_of(Index sequence, Index token, Index count) const {
    if (!pages) return count;
    const std::int32_t* const table = table_of(sequence);
    Index page = token / page_rows + 1;
    while (page * page_rows < token + count && table[page] == table[page - 1] + 1) ++page;
    const Index end = page * page_rows;
    return end < token + count ? end - token : count;
  }
};

/// The memory of a cache. Along B the stride is 0 where sequences share a pool of pages.
struct CacheMemory {
  MutableTensorView keys, values;  // [B, Hk, rows, D] and [B, Hk, rows, Dv], dense rows
  PageTables tables;
  MutableTensorView key_scales, value_scales;  // [B, Hk, rows, 1] of f32, for rows of int8; else none
};

}  // namespace mha

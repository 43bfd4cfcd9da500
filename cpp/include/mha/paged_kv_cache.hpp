// A KVCache whose tokens lie in pages of one pool, which sequences share: for many sequences of different lengths, and
// for those that begin alike.
#pragma once

#include <cstdint>

#include "mha/export.h"
#include "mha/kv_cache.hpp"

namespace mha {

/// Sizes of a paged cache. The dtype is one of KVCacheConfig.
struct PagedKVCacheConfig {
  Index num_pages = 0;       // of all sequences together, at most 2^31 - 2
  Index page_size = 64;      // tokens of a page: a multiple of 64
  Index batch_size = 1;      // B: sequences
  Index num_kv_heads = 1;    // Hk
  Index head_dim = 1;        // D
  Index value_head_dim = 0;  // Dv; 0: D
  DType dtype = DType::f32;
};

/// Replaces a KVCache in every call, with the same results in every bit. Its capacity is the whole pool: one sequence
/// may have all pages. Memory order: keys [Hk, num_pages * page_size, D], values [Hk, num_pages * page_size, Dv]; token
/// t of sequence b lies in row page_table(b)[t / page_size] * page_size + t % page_size. keys() and values() are views
/// [B, Hk, num_pages * page_size, D] of this memory in which all sequences are the same one.
///
/// Where a KVCache copies tokens, sequences share pages: reorder() and fork() cost as many steps as there are pages. A
/// page that several sequences have is copied before one of them appends to it. A call takes the pages for all its
/// tokens before it computes anything, and gives them back if it fails or is cancelled; if there are too few, it is a
/// std::invalid_argument, and nothing is changed.
///
/// rollback(), release() and clear() give back pages that no token lies in any more. keep_last(count) gives back whole
/// pages from the front: from `count` to count + page_size - 1 tokens stay, of sequences that had so many.
class MHA_API PagedKVCache : public KVCache {
 public:
  /// @throws std::invalid_argument, DTypeError, AllocationError
  explicit PagedKVCache(const PagedKVCacheConfig& config);

  Index num_pages() const;
  Index page_size() const;
  /// Pages that no sequence has.
  Index free_pages() const;
  /// How many pages a sequence has, and which ones, in the order of its tokens. The pointer is valid until the cache is
  /// changed.
  Index pages_of(Index sequence) const;
  const std::int32_t* page_table(Index sequence) const;

  /// Sequence `into`, which must have no tokens, gets the first `length` tokens of `sequence`; -1: all of them. The two
  /// share their pages.
  void fork(Index sequence, Index into, Index length = -1);
  /// Forgets the tokens of one sequence.
  void release(Index sequence);
  /// Copies the N = num_pages() - free_pages() pages that sequences have, each once and in the order of their numbers,
  /// to out [N, Hk, page_size, columns], with zeros where no token lies.
  ///
  /// @param rows  keys(), values(), key_scales() or value_scales() of this cache
  void copy_pages(const TensorView& rows, const MutableTensorView& out) const;
  /// Replaces everything by N pages, which sequences may share, or does nothing at all.
  ///
  /// @param key, value              [N, Hk, page_size, D] and [N, Hk, page_size, Dv] in the dtype of the cache
  /// @param key_scale, value_scale  [N, Hk, page_size, 1] of float32 for a cache of int8, else empty
  /// @param tables   [B, table_columns]: the pages of each sequence, 0 to N - 1, in the order of its tokens, then -1
  /// @param lengths  [B]
  /// @throws std::invalid_argument, DTypeError
  void assign_pages(const TensorView& key, const TensorView& value, const TensorView& key_scale,
                    const TensorView& value_scale, const std::int64_t* tables, Index table_columns,
                    const std::int64_t* lengths);
  /// Whether the count of every page is how often the tables of all sequences name it, and as many pages are free as
  /// free_pages() says. For tests: it is always true.
  bool check_pages() const;
};

}  // namespace mha

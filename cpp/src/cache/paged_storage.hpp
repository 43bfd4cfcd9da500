// Rows of one pool, cut into pages, and for each sequence a table of its pages: keys [Hk, pages * page_size, D] and
// values [Hk, pages * page_size, Dv]. Sequences share pages; a page of several is copied before one of them
// writes to it.
#pragma once

#include "cache/cache_storage.hpp"
#include "cache/page_pool.hpp"
#include "mha/paged_kv_cache.hpp"

namespace mha {

class PagedStorage final : public CacheStorage {
 public:
  /// @throws AllocationError
  explicit PagedStorage(const PagedKVCacheConfig& config);

  const PagePool& pool() const { return pool_; }
  Index page_size() const { return page_size_; }
  Index pages_of(Index sequence) const { return held_[sequence]; }
  const std::int32_t* table_of(Index sequence) const { return tables_ + sequence * table_row_; }

  void reserve(const char* function, Index count, const std::int64_t* new_lengths) override;
  void give_back() noexcept override;
  void advance(Index count, const std::int64_t* new_lengths) override;
  void check_room_of_all(const char* function, Index count, const std::int64_t* new_lengths) const override;
  void rollback(std::int64_t count, const std::int64_t* counts) override;
  void reorder(const std::int64_t* index) override;
  void keep_last(std::int64_t count) override;
  void clear() override;

  /// Sequence `into`, which has no tokens, gets the first `length` of `sequence`.
  void fork(Index sequence, Index into, Index length);
  void release(Index sequence);
  /// Copies the pages that some sequence has, of `rows`, which is one tensor of memory(), to [N, Hk, page_size, columns],
  /// with zeros where no token lies.
  void read_pages(const TensorView& rows, const MutableTensorView& out) const;
  /// Replaces everything by these pages, as stored. Row b of `tables` has the pages of sequence b.
  void assign_pages(const TensorView& key, const TensorView& value, const TensorView& key_scale,
                    const TensorView& value_scale, const std::int64_t* tables, Index table_columns,
                    const std::int64_t* lengths);
  /// Whether every page is counted as often as tables name it, and all others are free.
  bool is_consistent() const;

 private:
  Index pages_for(Index tokens) const { return (tokens + page_size_ - 1) / page_size_; }
  std::int32_t* table(Index sequence) { return tables_ + sequence * table_row_; }
  /// Gives pages back that no token lies in.
  void trim(Index sequence) noexcept;
  void copy_page(std::int32_t from, std::int32_t to) const;
  void show_tables() { set_tables({tables_, table_row_, page_size_}); }

  const Index page_size_;
  const Index table_row_;                 // entries of a table: all pages, and one that who looks ahead may read
  std::int32_t *tables_, *other_tables_;  // [B, table_row]; the second is for reorder()
  std::int32_t* const uses_;              // [num_pages]
  std::int64_t* const held_;              // [B]: pages of each sequence
  std::int64_t* const other_lengths_;     // [B], for reorder()
  std::int64_t* const replaced_;  // [B]: the shared page that reserve() has copied, as long as it may be given back; -1
  PagePool pool_;
};

}  // namespace mha

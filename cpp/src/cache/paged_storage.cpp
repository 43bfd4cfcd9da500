#include "cache/paged_storage.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "views/sizes.hpp"

namespace mha {
namespace {

/// Numbers of 64 bits that hold `count` of 32 bits.
Index pairs_of(Index count) { return (count + 1) / 2; }

[[noreturn]] void too_few(const char* function, Index needed, Index free, Index page_size) {
  throw std::invalid_argument(std::string(function) + ": the cache has too few free pages of " +
                              std::to_string(page_size) + " tokens: " + std::to_string(needed) + " needed, " +
                              std::to_string(free) + " free");
}

KVCacheConfig as_cache(const PagedKVCacheConfig& c) {
  return {c.batch_size, c.num_kv_heads,   saturated_product(c.num_pages, c.page_size),
          c.head_dim,   c.value_head_dim, c.dtype};
}

/// Two tables for each sequence, the counts of the pages, and four numbers for each sequence.
Index integers_of(const PagedKVCacheConfig& c) {
  const double tables = double(c.batch_size) * (double(c.num_pages) + 1);
  allocatable((tables + double(c.num_pages)) * sizeof(std::int64_t));
  return 2 * pairs_of(c.batch_size * (c.num_pages + 1)) + pairs_of(c.num_pages) + 3 * c.batch_size;
}

}  // namespace

PagedStorage::PagedStorage(const PagedKVCacheConfig& c)
    : CacheStorage(as_cache(c), as_cache(c).capacity, true, integers_of(c)),
      page_size_(c.page_size),
      table_row_(c.num_pages + 1),
      tables_(reinterpret_cast<std::int32_t*>(integers_)),
      other_tables_(tables_ + 2 * pairs_of(c.batch_size * table_row_)),
      uses_(other_tables_ + 2 * pairs_of(c.batch_size * table_row_)),
      held_(reinterpret_cast<std::int64_t*>(uses_ + 2 * pairs_of(c.num_pages))),
      other_lengths_(held_ + c.batch_size),
      replaced_(other_lengths_ + c.batch_size),
      pool_(uses_, c.num_pages) {
  std::fill_n(replaced_, c.batch_size, -1);
  show_tables();
}

void PagedStorage::reserve(const char* function, Index count, const std::int64_t* new_lengths) {
  const Index batch = config().batch_size;
  const auto more = [&](Index b) { return new_lengths ? Index(new_lengths[b]) : count; };
  const auto last_page = [&](Index b) -> std::int32_t& { return table(b)[lengths_[b] / page_size_]; };
  // A page that others have, too, and in which the next token would lie, is left to them. Of all that have it the last
  // one finds that it has it alone.
  Index needed = 0;
  for (Index b = 0; b < batch; ++b) {
    if (more(b) == 0) continue;
    needed += pages_for(lengths_[b] + more(b)) - held_[b];
    if (lengths_[b] % page_size_ == 0 || pool_.uses(last_page(b)) == 1) continue;
    replaced_[b] = last_page(b);
    pool_.release(last_page(b));
    ++needed;
  }
  if (const Index free = pool_.free_pages(); needed > free) {
    for (Index b = 0; b < batch; ++b)
      if (const std::int64_t page = std::exchange(replaced_[b], -1); page >= 0) pool_.share(std::int32_t(page));
    too_few(function, needed, free, page_size_);
  }
  for (Index b = 0; b < batch; ++b) {
    if (replaced_[b] >= 0 && last_page(b) == replaced_[b] && more(b) > 0) {
      last_page(b) = pool_.take(-1);
      copy_page(std::int32_t(replaced_[b]), last_page(b));
    }
    for (const Index pages = more(b) > 0 ? pages_for(lengths_[b] + more(b)) : 0; held_[b] < pages; ++held_[b])
      table(b)[held_[b]] = pool_.take(held_[b] > 0 ? table(b)[held_[b] - 1] : -1);
  }
}

void PagedStorage::give_back() noexcept {
  for (Index b = 0; b < config().batch_size; ++b) {
    trim(b);
    const std::int64_t page = std::exchange(replaced_[b], -1);
    if (page < 0) continue;
    std::int32_t& copy = table(b)[lengths_[b] / page_size_];
    pool_.release(copy);
    copy = std::int32_t(page);
    pool_.share(copy);
  }
}

void PagedStorage::advance(Index count, const std::int64_t* new_lengths) {
  CacheStorage::advance(count, new_lengths);
  std::fill_n(replaced_, config().batch_size, -1);
}

void PagedStorage::check_room_of_all(const char* function, Index count, const std::int64_t* new_lengths) const {
  Index needed = 0;
  for (Index b = 0; b < config().batch_size; ++b) needed += pages_for(new_lengths ? Index(new_lengths[b]) : count);
  if (needed > pool_.pages()) too_few(function, needed, pool_.pages(), page_size_);
}

void PagedStorage::trim(Index b) noexcept {
  for (const Index pages = pages_for(lengths_[b]); held_[b] > pages; --held_[b]) pool_.release(table(b)[held_[b] - 1]);
}

void PagedStorage::copy_page(std::int32_t from, std::int32_t to) const {
  for (const Rows& rows : all_rows()) {
    const Index bytes = page_size_ * rows.row;
    for (Index h = 0; h < config().num_kv_heads; ++h) {
      std::byte* const head = rows.data + h * rows.head;
      std::memcpy(head + to * bytes, head + from * bytes, static_cast<std::size_t>(bytes));
    }
  }
}

void PagedStorage::rollback(std::int64_t count, const std::int64_t* counts) {
  for (Index b = 0; b < config().batch_size; ++b) {
    lengths_[b] -= counts ? counts[b] : count;
    trim(b);
  }
}

void PagedStorage::reorder(const std::int64_t* index) {
  const Index batch = config().batch_size;
  for (Index b = 0; b < batch; ++b) {
    const Index from = index[b];
    std::copy_n(table_of(from), held_[from], other_tables_ + b * table_row_);
    other_lengths_[b] = lengths_[from];
    std::for_each_n(table_of(from), held_[from], [this](std::int32_t page) { pool_.share(page); });
  }
  for (Index b = 0; b < batch; ++b)
    std::for_each_n(table_of(b), held_[b], [this](std::int32_t page) { pool_.release(page); });
  std::swap(tables_, other_tables_);
  show_tables();
  for (Index b = 0; b < batch; ++b) {
    lengths_[b] = other_lengths_[b];
    held_[b] = pages_for(lengths_[b]);
  }
}

void PagedStorage::keep_last(std::int64_t count) {
  for (Index b = 0; b < config().batch_size; ++b) {
    const Index pages = std::max<Index>(lengths_[b] - count, 0) / page_size_;
    for (Index i = 0; i < pages; ++i) pool_.release(table(b)[i]);
    std::copy_n(table(b) + pages, held_[b] - pages, table(b));
    held_[b] -= pages;
    lengths_[b] -= pages * page_size_;
  }
}

void PagedStorage::clear() {
  std::fill_n(lengths_, config().batch_size, 0);
  std::fill_n(held_, config().batch_size, 0);
  std::fill_n(replaced_, config().batch_size, -1);
  pool_.clear();
}

void PagedStorage::fork(Index sequence, Index into, Index length) {
  lengths_[into] = length;
  held_[into] = pages_for(length);
  std::copy_n(table(sequence), held_[into], table(into));
  std::for_each_n(table(into), held_[into], [this](std::int32_t page) { pool_.share(page); });
}

void PagedStorage::release(Index sequence) {
  lengths_[sequence] = 0;
  trim(sequence);
}

// Here each page is a sequence of its own, with one page.
void PagedStorage::read_pages(const TensorView& rows, const MutableTensorView& out) const {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(pool_.pages()), 0);
  for (Index b = 0; b < config().batch_size; ++b)
    for (Index i = 0; i < held_[b]; ++i) {
      std::int64_t& of_page = tokens[static_cast<std::size_t>(table_of(b)[i])];
      of_page = std::max<std::int64_t>(of_page, std::min(lengths_[b] - i * page_size_, page_size_));
    }
  std::vector<std::int32_t> used;
  std::vector<std::int64_t> lengths;
  for (std::size_t page = 0; page < tokens.size(); ++page) {
    if (tokens[page] == 0) continue;
    used.push_back(std::int32_t(page));
    lengths.push_back(tokens[page]);
  }
  read({Index(used.size()), lengths.data(), {used.data(), 1, page_size_}}, rows, out);
}

void PagedStorage::assign_pages(const TensorView& key, const TensorView& value, const TensorView& key_scale,
                                const TensorView& value_scale, const std::int64_t* tables, Index table_columns,
                                const std::int64_t* lengths) {
  const Index pages = key.extents[0];
  std::vector<std::int32_t> taken(static_cast<std::size_t>(pages));
  std::iota(taken.begin(), taken.end(), 0);
  const std::vector<std::int64_t> none(static_cast<std::size_t>(pages), 0);
  clear();
  write_stored({pages, none.data(), {taken.data(), 1, page_size_}}, key, value, key_scale, value_scale, nullptr);
  for (Index b = 0; b < config().batch_size; ++b, tables += table_columns) {
    lengths_[b] = lengths[b];
    held_[b] = pages_for(lengths[b]);
    std::transform(tables, tables + held_[b], table(b), [](std::int64_t page) { return std::int32_t(page); });
    std::for_each_n(table(b), held_[b], [this](std::int32_t page) { pool_.take_or_share(page); });
  }
}

bool PagedStorage::is_consistent() const {
  std::vector<std::int32_t> named(static_cast<std::size_t>(pool_.pages()), 0);
  for (Index b = 0; b < config().batch_size; ++b) {
    if (held_[b] != pages_for(lengths_[b]) || replaced_[b] >= 0) return false;
    std::for_each_n(table_of(b), held_[b], [&](std::int32_t page) { ++named[static_cast<std::size_t>(page)]; });
  }
  Index free = 0;
  for (Index page = 0; page < pool_.pages(); ++page) {
    const std::int32_t uses = named[static_cast<std::size_t>(page)];
    if (uses != pool_.uses(std::int32_t(page))) return false;
    free += uses == 0;
  }
  return free == pool_.free_pages();
}

}  // namespace mha

// The memory of a KVCache, and how tokens are written to it and moved within it.
#include "mha/kv_cache.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>

#include "checks/kv_cache.hpp"
#include "views/sizes.hpp"

namespace mha {
namespace {

constexpr std::size_t kAlignment = 64;

/// Copies `count` rows of `columns` elements of `size` bytes to dense rows. Rows are `row` bytes apart, and neighbours in
/// a row `step` elements.
void copy_rows(std::byte* to, const std::byte* from, Index count, Index row, Index columns, Index step, Index size) {
  const Index bytes = columns * size;
  if (step == 1 && row == bytes) {
    if (count > 0) std::memcpy(to, from, static_cast<std::size_t>(count * bytes));
    return;
  }
  for (Index t = 0; t < count; ++t, to += bytes, from += row) {
    if (step == 1) {
      std::memcpy(to, from, static_cast<std::size_t>(bytes));
      continue;
    }
    for (Index c = 0; c < columns; ++c)
      std::memcpy(to + c * size, from + c * step * size, static_cast<std::size_t>(size));
  }
}

}  // namespace

struct KVCache::Impl {
  /// Where the keys, or the values, lie: [B, Hk, capacity, columns], dense.
  struct Rows {
    std::byte* data;
    Index row;             // bytes of one token of one head
    Index head, sequence;  // bytes from one head, or one sequence, to the next
  };

  explicit Impl(const KVCacheConfig& sizes) : config(sizes) {
    const Index size = size_of(config.dtype);
    const auto rows = [&](Index columns) {
      const Index head = config.capacity * columns * size;
      return Rows{nullptr, columns * size, head, head * config.num_kv_heads};
    };
    // As if nothing were 0: the products below leave out some of the factors.
    const double tokens = std::max(double(config.batch_size), 1.0) * std::max(double(config.capacity), 1.0);
    const double bytes_of_token =
        double(config.num_kv_heads) * (double(config.head_dim) + double(config.value_head_dim)) * double(size);
    allocatable(tokens * bytes_of_token + double(config.batch_size) * 2 * sizeof(std::int64_t));
    keys = rows(config.head_dim);
    values = rows(config.value_head_dim);
    const std::size_t key_bytes = whole_lines(config.batch_size * keys.sequence);
    const std::size_t value_bytes = whole_lines(config.batch_size * values.sequence);
    const std::size_t length_bytes = whole_lines(config.batch_size * Index{sizeof(std::int64_t)});
    const std::size_t total = key_bytes + value_bytes + 2 * length_bytes + kAlignment;
    // calloc gives pages that the operating system clears when they are first touched, so a cache of which little is
    // used takes little memory. It does not align them to cache lines; std::align() below does.
    memory.reset(std::calloc(total, 1));
    if (!memory) throw AllocationError(total);
    void* aligned = memory.get();
    std::size_t space = total;
    std::byte* const base = static_cast<std::byte*>(std::align(kAlignment, total - kAlignment, aligned, space));
    keys.data = base;
    values.data = base + key_bytes;
    lengths = reinterpret_cast<std::int64_t*>(base + key_bytes + value_bytes);
    readers = reinterpret_cast<std::int64_t*>(base + key_bytes + value_bytes + length_bytes);
  }

  static std::size_t whole_lines(Index bytes) {
    return (static_cast<std::size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
  }

  MutableTensorView view(const Rows& rows, Index columns) const {
    return {rows.data, config.dtype, {config.batch_size, config.num_kv_heads, config.capacity, columns}};
  }

  /// Writes the first new_lengths[b] (null: all) tokens of each sequence b of `from` behind token starts[b] (null: 0).
  void write(const Rows& to, const TensorView& from, const std::int64_t* starts,
             const std::int64_t* new_lengths) const {
    const Index size = size_of(config.dtype);
    for (Index b = 0; b < config.batch_size; ++b)
      for (Index h = 0; h < config.num_kv_heads; ++h)
        copy_rows(to.data + b * to.sequence + h * to.head + (starts ? starts[b] : 0) * to.row,
                  static_cast<const std::byte*>(from.data) + (b * from.strides[0] + h * from.strides[1]) * size,
                  new_lengths ? new_lengths[b] : from.extents[2], byte_stride(from, 2), from.extents[3],
                  from.strides[3], size);
  }

  void copy_sequence(Index to, Index from) const {
    for (const Rows& rows : {keys, values})
      for (Index h = 0; h < config.num_kv_heads; ++h) {
        std::byte* const head = rows.data + h * rows.head;
        std::memcpy(head + to * rows.sequence, head + from * rows.sequence,
                    static_cast<std::size_t>(lengths[from] * rows.row));
      }
    lengths[to] = lengths[from];
  }

  /// Sequence `first` becomes sequence index[first], that one becomes what it names in turn, and so on round a circle
  /// that leads back to `first`. It is done piece by piece; a piece of `first` is kept aside for the last one of the
  /// circle.
  void rotate(Index first, const std::int64_t* index) const {
    constexpr Index kPiece = 4096;  // bytes on the stack: few enough that the piece and its copies fit level 1
    alignas(kAlignment) std::byte aside[kPiece];
    Index longest = 0;
    for (Index b = index[first]; b != first; b = index[b]) longest = std::max<Index>(longest, lengths[b]);
    longest = std::max<Index>(longest, lengths[first]);
    for (const Rows& rows : {keys, values})
      for (Index h = 0; h < config.num_kv_heads; ++h)
        for (Index at = 0; at < longest * rows.row; at += kPiece) {
          std::byte* const head = rows.data + h * rows.head + at;
          const auto live = [&](Index b) {
            return static_cast<std::size_t>(std::clamp<Index>(lengths[b] * rows.row - at, 0, kPiece));
          };
          std::memcpy(aside, head + first * rows.sequence, live(first));
          Index b = first;
          for (; index[b] != first; b = index[b])
            std::memcpy(head + b * rows.sequence, head + index[b] * rows.sequence, live(index[b]));
          std::memcpy(head + b * rows.sequence, aside, live(first));
        }
    const std::int64_t first_length = lengths[first];
    Index b = first;
    for (; index[b] != first; b = index[b]) lengths[b] = lengths[index[b]];
    lengths[b] = first_length;
  }

  struct Free {
    void operator()(void* block) const { std::free(block); }
  };

  KVCacheConfig config;
  Rows keys, values;
  std::int64_t* lengths;
  std::int64_t* readers;  // [B], for reorder(): how many sequences are still to become this one
  std::unique_ptr<void, Free> memory;
};

KVCache::KVCache(const KVCacheConfig& config) : impl_(std::make_unique<Impl>(validate(config))) {}
KVCache::~KVCache() = default;
KVCache::KVCache(KVCache&&) noexcept = default;
KVCache& KVCache::operator=(KVCache&&) noexcept = default;

const KVCacheConfig& KVCache::config() const { return impl_->config; }
TensorView KVCache::keys() const { return impl_->view(impl_->keys, impl_->config.head_dim); }
TensorView KVCache::values() const { return impl_->view(impl_->values, impl_->config.value_head_dim); }
MutableTensorView KVCache::keys() { return impl_->view(impl_->keys, impl_->config.head_dim); }
MutableTensorView KVCache::values() { return impl_->view(impl_->values, impl_->config.value_head_dim); }
const std::int64_t* KVCache::lengths() const { return impl_->lengths; }

Index KVCache::longest(Index count, const std::int64_t* new_lengths) const {
  Index longest = 0;
  for (Index b = 0; b < impl_->config.batch_size; ++b) {
    const Index more = new_lengths ? std::min<Index>(std::max<Index>(new_lengths[b], 0), count) : count;
    const Index most = std::numeric_limits<Index>::max() - impl_->lengths[b];
    longest = std::max<Index>(longest, impl_->lengths[b] + std::min(more, most));
  }
  return longest;
}

void KVCache::append(const TensorView& key, const TensorView& value, const std::int64_t* new_lengths) {
  TensorView k = key, v = value;
  validate_tokens("KVCache.append", *this, k, v);
  validate_growth("KVCache.append", impl_->config, impl_->lengths, k.extents[2], new_lengths);
  impl_->write(impl_->keys, k, impl_->lengths, new_lengths);
  impl_->write(impl_->values, v, impl_->lengths, new_lengths);
  advance(k.extents[2], new_lengths);
}

void KVCache::advance(Index count, const std::int64_t* new_lengths) {
  validate_growth("KVCache.advance", impl_->config, impl_->lengths, count, new_lengths);
  for (Index b = 0; b < impl_->config.batch_size; ++b) impl_->lengths[b] += new_lengths ? new_lengths[b] : count;
}

void KVCache::assign(const TensorView& key, const TensorView& value, const std::int64_t* new_lengths) {
  TensorView k = key, v = value;
  validate_tokens("KVCache.assign", *this, k, v);
  std::fill_n(impl_->readers, impl_->config.batch_size, 0);  // stands for the lengths of an empty cache here
  validate_growth("KVCache.assign", impl_->config, impl_->readers, k.extents[2], new_lengths);
  impl_->write(impl_->keys, k, nullptr, new_lengths);
  impl_->write(impl_->values, v, nullptr, new_lengths);
  clear();
  advance(k.extents[2], new_lengths);
}

void KVCache::rollback(std::int64_t count) {
  validate_rollback(impl_->config, impl_->lengths, count, nullptr);
  for (Index b = 0; b < impl_->config.batch_size; ++b) impl_->lengths[b] -= count;
}

void KVCache::rollback(const std::int64_t* counts) {
  if (counts == nullptr && impl_->config.batch_size > 0)
    throw std::invalid_argument("KVCache.rollback: counts must be given");
  validate_rollback(impl_->config, impl_->lengths, 0, counts);
  for (Index b = 0; b < impl_->config.batch_size; ++b) impl_->lengths[b] -= counts[b];
}

void KVCache::reorder(const std::int64_t* index) {
  const Index batch = impl_->config.batch_size;
  validate_reorder(impl_->config, index);
  std::int64_t* const readers = impl_->readers;
  std::fill_n(readers, batch, 0);
  for (Index b = 0; b < batch; ++b) readers[index[b]] += index[b] != b;
  // A sequence that no other one will become can be overwritten. After that the sequence that it was copied from may be
  // free to be overwritten, too.
  constexpr std::int64_t kDone = -1;
  for (Index start = 0; start < batch; ++start)
    for (Index b = start; readers[b] == 0 && index[b] != b; b = index[b]) {
      impl_->copy_sequence(b, index[b]);
      readers[b] = kDone;
      --readers[index[b]];
    }
  // What is left are circles, in which each sequence is to become exactly one other.
  for (Index first = 0; first < batch; ++first) {
    if (readers[first] <= 0 || index[first] == first) continue;
    impl_->rotate(first, index);
    for (Index b = first; readers[b] != kDone; b = index[b]) readers[b] = kDone;
  }
}

void KVCache::keep_last(std::int64_t count) {
  validate_keep_last(count);
  const KVCacheConfig& config = impl_->config;
  for (Index b = 0; b < config.batch_size; ++b) {
    const Index drop = impl_->lengths[b] - count;
    if (drop <= 0) continue;
    for (const Impl::Rows& rows : {impl_->keys, impl_->values})
      for (Index h = 0; h < config.num_kv_heads; ++h) {
        std::byte* const head = rows.data + b * rows.sequence + h * rows.head;
        std::memmove(head, head + drop * rows.row, static_cast<std::size_t>(count * rows.row));
      }
    impl_->lengths[b] = count;
  }
}

void KVCache::clear() { std::fill_n(impl_->lengths, impl_->config.batch_size, 0); }

}  // namespace mha

#include "cache/dense_storage.hpp"

#include <algorithm>
#include <cstring>

namespace mha {

DenseStorage::DenseStorage(const KVCacheConfig& config)
    : CacheStorage(config, config.capacity, false, config.batch_size), readers_(integers_) {}
DenseStorage::DenseStorage(const KVCacheConfig& config, const MutableTensorView& keys, const MutableTensorView& values)
    : CacheStorage(config, keys, values, config.batch_size), readers_(integers_) {}

void DenseStorage::copy_sequence(Index to, Index from) const {
  for (const Rows& rows : all_rows())
    for (Index h = 0; h < config().num_kv_heads; ++h) {
      std::byte* const head = rows.data + h * rows.head;
      std::memcpy(head + to * rows.sequence, head + from * rows.sequence,
                  static_cast<std::size_t>(lengths_[from] * rows.row));
    }
  lengths_[to] = lengths_[from];
}

/// Sequence `first` becomes sequence index[first], that one becomes the sequence that it names, and so on round a cycle
/// that leads back to `first`. It is done piece by piece; a piece of `first` is kept aside for the last one of
/// the circle.
void DenseStorage::rotate(Index first, const std::int64_t* index) const {
  constexpr Index kPiece = 4096;  // bytes on the stack: few enough that the piece and its copies fit level 1
  alignas(64) std::byte aside[kPiece];
  Index longest = 0;
  for (Index b = index[first]; b != first; b = index[b]) longest = std::max<Index>(longest, lengths_[b]);
  longest = std::max<Index>(longest, lengths_[first]);
  for (const Rows& rows : all_rows())
    for (Index h = 0; h < config().num_kv_heads; ++h)
      for (Index at = 0; at < longest * rows.row; at += kPiece) {
        std::byte* const head = rows.data + h * rows.head + at;
        const auto live = [&](Index b) {
          return static_cast<std::size_t>(std::clamp<Index>(lengths_[b] * rows.row - at, 0, kPiece));
        };
        std::memcpy(aside, head + first * rows.sequence, live(first));
        Index b = first;
        for (; index[b] != first; b = index[b])
          std::memcpy(head + b * rows.sequence, head + index[b] * rows.sequence, live(index[b]));
        std::memcpy(head + b * rows.sequence, aside, live(first));
      }
  const std::int64_t first_length = lengths_[first];
  Index b = first;
  for (; index[b] != first; b = index[b]) lengths_[b] = lengths_[index[b]];
  lengths_[b] = first_length;
}

void DenseStorage::rollback(std::int64_t count, const std::int64_t* counts) {
  for (Index b = 0; b < config().batch_size; ++b) lengths_[b] -= counts ? counts[b] : count;
}

void DenseStorage::reorder(const std::int64_t* index) {
  const Index batch = config().batch_size;
  std::fill_n(readers_, batch, 0);
  for (Index b = 0; b < batch; ++b) readers_[index[b]] += index[b] != b;
  // A sequence that no other one will become can be overwritten. After that the sequence that it was copied from may be
  // free to be overwritten, too.
  constexpr std::int64_t kDone = -1;
  for (Index start = 0; start < batch; ++start)
    for (Index b = start; readers_[b] == 0 && index[b] != b; b = index[b]) {
      copy_sequence(b, index[b]);
      readers_[b] = kDone;
      --readers_[index[b]];
    }
  // The rest are cycles, in which each sequence becomes exactly one other.
  for (Index first = 0; first < batch; ++first) {
    if (readers_[first] <= 0 || index[first] == first) continue;
    rotate(first, index);
    for (Index b = first; readers_[b] != kDone; b = index[b]) readers_[b] = kDone;
  }
}

void DenseStorage::keep_last(std::int64_t count) {
  for (Index b = 0; b < config().batch_size; ++b) {
    const Index drop = lengths_[b] - count;
    if (drop <= 0) continue;
    for (const Rows& rows : all_rows())
      for (Index h = 0; h < config().num_kv_heads; ++h) {
        std::byte* const head = rows.data + b * rows.sequence + h * rows.head;
        std::memmove(head, head + drop * rows.row, static_cast<std::size_t>(count * rows.row));
      }
    lengths_[b] = count;
  }
}

void DenseStorage::clear() { std::fill_n(lengths_, config().batch_size, 0); }

}  // namespace mha

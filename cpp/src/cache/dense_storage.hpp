// Rows of its own for each sequence, token t in row t: keys [B, Hk, capacity, D] and values [B, Hk, capacity, Dv].
#pragma once

#include "cache/cache_storage.hpp"

namespace mha {

class DenseStorage final : public CacheStorage {
 public:
  /// @throws AllocationError
  explicit DenseStorage(const KVCacheConfig& config);
  /// In memory of the caller's.
  /// @throws AllocationError
  DenseStorage(const KVCacheConfig& config, const MutableTensorView& keys, const MutableTensorView& values);

  void reserve(const char*, Index, const std::int64_t*) override {}  // all rows are there
  void give_back() noexcept override {}
  void check_room_of_all(const char*, Index, const std::int64_t*) const override {}
  void rollback(std::int64_t count, const std::int64_t* counts) override;
  void reorder(const std::int64_t* index) override;
  void keep_last(std::int64_t count) override;
  void clear() override;

 private:
  void copy_sequence(Index to, Index from) const;
  void rotate(Index first, const std::int64_t* index) const;

  std::int64_t* const readers_;  // [B], for reorder(): how many sequences are still to become this one
};

}  // namespace mha

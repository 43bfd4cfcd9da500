// Room for the tokens of one call in its caches: all of it before anything runs, and given back if the call ends early.
#pragma once

#include "cache/cache_storage.hpp"

namespace mha {

class CacheGrowth {
 public:
  /// Reserves the rows of `tokens` more tokens in each of `count` caches, or new_lengths[b] of sequence b (null:
  /// `tokens`). Arguments are checked before; `caches` and `new_lengths` must outlive the object.
  /// @throws std::invalid_argument in the name of `function`, if a cache has no room; all are as before then
  CacheGrowth(const char* function, KVCache* const* caches, Index count, Index tokens, const std::int64_t* new_lengths);
  /// Gives everything back unless finish() has been called.
  ~CacheGrowth();
  CacheGrowth(const CacheGrowth&) = delete;
  CacheGrowth& operator=(const CacheGrowth&) = delete;

  /// The rows are written: they are tokens from now on.
  void finish();

 private:
  void give_back() noexcept;

  KVCache* const* const caches_;
  Index count_;
  const Index tokens_;
  const std::int64_t* const new_lengths_;
};

}  // namespace mha

// A KVCache that Python threads may hold together.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include <mha/kv_cache.hpp>

namespace mha::bindings {

/// Who is in a call that uses a cache.
struct CacheUsers {
  std::int32_t process;  // forks between the process that loaded this module and the process of the calls
  std::int32_t
      count;  // calls that only read, or one of the negative numbers of shared_cache.cpp for one that changes it
};

/// A KVCache, or a PagedKVCache.
struct SharedCache {
  explicit SharedCache(std::unique_ptr<KVCache> made, bool pages = false)
      : owned(std::move(made)), cache(*owned), has_pages(pages) {}

  const std::unique_ptr<KVCache> owned;
  KVCache& cache;
  const bool has_pages;  // a call that appends moves pages
  std::atomic<CacheUsers> users{CacheUsers{0, 0}};
};

/// A call that uses a cache. Calls run without the GIL: two that change one cache at the same time would write past its
/// end, so the second is refused. Becomes a RuntimeError.
///
/// In a child of fork() the calls that other threads were in have no end. They count no longer: tokens that one of them
/// has appended in part lie after the lengths, where they are not seen. But if one was moving tokens, the contents
/// of the cache are unknown, and all calls are refused until one replaces everything.
class CacheUse {
 public:
  enum Kind {
    reads,
    changes,   // writes after the lengths, or changes only the lengths; of a cache with pages as `moves`
    moves,     // writes where tokens are
    replaces,  // likewise, and all that was there is gone
  };
  CacheUse(SharedCache& cache, Kind kind);
  ~CacheUse();
  CacheUse(const CacheUse&) = delete;
  CacheUse& operator=(const CacheUse&) = delete;

 private:
  std::atomic<CacheUsers>& users_;
  CacheUsers mine_;  // as this call has left it
};

}  // namespace mha::bindings

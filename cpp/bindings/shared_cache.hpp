// A KVCache that Python threads may hold together.
#pragma once

#include <atomic>
#include <stdexcept>

#include <mha/kv_cache.hpp>

namespace mha::bindings {

/// A cache, and who is in a call that uses it: calls that only read, or -1 for one that changes it.
struct SharedCache {
  explicit SharedCache(const KVCacheConfig& config) : cache(config) {}

  KVCache cache;
  std::atomic<int> users{0};
};

/// A call that uses a cache. Calls run without the GIL: two that change one cache at the same time would write past its
/// end, so the second is refused. Becomes a RuntimeError.
class CacheUse {
 public:
  enum Kind { reads, changes };
  CacheUse(SharedCache& cache, Kind kind) : users_(cache.users), is_reader_(kind == reads) {
    int now = 0;
    while (!users_.compare_exchange_weak(now, is_reader_ ? now + 1 : -1))
      if (is_reader_ ? now < 0 : now != 0)
        throw std::runtime_error("KVCache: another thread is in a call that uses this cache");
  }
  ~CacheUse() { users_ += is_reader_ ? -1 : 1; }
  CacheUse(const CacheUse&) = delete;
  CacheUse& operator=(const CacheUse&) = delete;

 private:
  std::atomic<int>& users_;
  const bool is_reader_;
};

}  // namespace mha::bindings

#include "shared_cache.hpp"

#include <pthread.h>

#include <stdexcept>

namespace mha::bindings {
namespace {

constexpr std::int32_t kChanging = -1;
constexpr std::int32_t kMoving = -2;

std::atomic<std::int32_t> forks_so_far{0};
const int counts_forks = pthread_atfork(nullptr, nullptr, [] { ++forks_so_far; });

}  // namespace

CacheUse::CacheUse(SharedCache& cache, Kind kind) : users_(cache.users) {
  const std::int32_t process = forks_so_far.load(std::memory_order_relaxed);
  CacheUsers now = users_.load();
  do {
    const bool is_of_parent = now.process != process;
    if (is_of_parent && now.count == kMoving && kind != replaces)
      throw std::runtime_error(
          "KVCache: another thread was moving the tokens of this cache when this process was forked; clear() makes it "
          "usable again");
    const std::int32_t count = is_of_parent ? 0 : now.count;
    if (kind == reads ? count < 0 : count != 0)
      throw std::runtime_error("KVCache: another thread is in a call that uses this cache");
    mine_ = {process, kind == reads ? count + 1 : kind == changes && !cache.has_pages ? kChanging : kMoving};
  } while (!users_.compare_exchange_weak(now, mine_));
}

CacheUse::~CacheUse() {
  CacheUsers now = mine_;
  while (now.process == mine_.process) {
    const std::int32_t count = now.count > 0 ? now.count - 1 : 0;
    if (users_.compare_exchange_weak(now, CacheUsers{now.process, count})) return;
  }
}

}  // namespace mha::bindings

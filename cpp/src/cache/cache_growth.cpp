#include "cache/cache_growth.hpp"

namespace mha {

CacheGrowth::CacheGrowth(const char* function, KVCache* const* caches, Index count, Index tokens,
                         const std::int64_t* new_lengths)
    : caches_(caches), count_(0), tokens_(tokens), new_lengths_(new_lengths) {
  try {
    for (; count_ < count; ++count_) caches[count_]->storage().reserve(function, tokens, new_lengths);
  } catch (...) {
    give_back();
    throw;
  }
}

CacheGrowth::~CacheGrowth() { give_back(); }

void CacheGrowth::finish() {
  for (Index i = 0; i < count_; ++i) caches_[i]->storage().advance(tokens_, new_lengths_);
  count_ = 0;
}

void CacheGrowth::give_back() noexcept {
  for (Index i = 0; i < count_; ++i) caches_[i]->storage().give_back();
}

}  // namespace mha

// The functions that a PagedKVCache adds to a KVCache.
#include "mha/paged_kv_cache.hpp"

#include "cache/paged_storage.hpp"
#include "checks/kv_cache.hpp"

namespace mha {
namespace {

PagedStorage& pages(KVCache& cache) { return dynamic_cast<PagedStorage&>(cache.storage()); }
const PagedStorage& pages(const KVCache& cache) { return dynamic_cast<const PagedStorage&>(cache.storage()); }

}  // namespace

PagedKVCache::PagedKVCache(const PagedKVCacheConfig& config)
    : KVCache(std::make_unique<PagedStorage>(validate(config))) {}

Index PagedKVCache::num_pages() const { return pages(*this).pool().pages(); }
Index PagedKVCache::page_size() const { return pages(*this).page_size(); }
Index PagedKVCache::free_pages() const { return pages(*this).pool().free_pages(); }

Index PagedKVCache::pages_of(Index sequence) const {
  validate_sequence("PagedKVCache.pages_of", "sequence", config(), sequence);
  return pages(*this).pages_of(sequence);
}

const std::int32_t* PagedKVCache::page_table(Index sequence) const {
  validate_sequence("PagedKVCache.page_table", "sequence", config(), sequence);
  return pages(*this).table_of(sequence);
}

void PagedKVCache::fork(Index sequence, Index into, Index length) {
  pages(*this).fork(sequence, into, validate_fork(config(), lengths(), sequence, into, length));
}

void PagedKVCache::release(Index sequence) {
  validate_sequence("PagedKVCache.release", "sequence", config(), sequence);
  pages(*this).release(sequence);
}

bool PagedKVCache::check_pages() const { return pages(*this).is_consistent(); }

}  // namespace mha

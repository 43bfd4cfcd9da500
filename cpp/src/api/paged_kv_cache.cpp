// The functions that a PagedKVCache adds to a KVCache.
#include "mha/paged_kv_cache.hpp"

#include <algorithm>
#include <iterator>
#include <stdexcept>

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

void PagedKVCache::copy_pages(const TensorView& rows, const MutableTensorView& out) const {
  const TensorView all[] = {keys(), values(), key_scales(), value_scales()};
  const TensorView* const own = std::find_if(std::begin(all), std::end(all), [&](const TensorView& each) {
    return each && each.data == rows.data && each.extents[3] == rows.extents[3];
  });
  if (own == std::end(all))
    throw std::invalid_argument(
        "PagedKVCache.copy_pages: rows must be the keys, the values or their scales of this cache");
  validate_copy("PagedKVCache.copy_pages", *this, *own, out, num_pages() - free_pages(), page_size());
  pages(*this).read_pages(*own, out);
}

void PagedKVCache::assign_pages(const TensorView& key, const TensorView& value, const TensorView& key_scale,
                                const TensorView& value_scale, const std::int64_t* tables, Index table_columns,
                                const std::int64_t* lengths) {
  validate_pages("PagedKVCache.assign_pages", *this, key, value, key_scale, value_scale, tables, table_columns,
                 lengths);
  pages(*this).assign_pages(key, value, key_scale, value_scale, tables, table_columns, lengths);
}

bool PagedKVCache::check_pages() const { return pages(*this).is_consistent(); }

}  // namespace mha

// A KVCache: its arguments are checked here, its tokens are kept by a storage.
#include "mha/kv_cache.hpp"

#include <algorithm>
#include <limits>

#include "cache/dense_storage.hpp"
#include "checks/kv_cache.hpp"
#include "platform/dispatch.hpp"

namespace mha {

KVCache::KVCache(const KVCacheConfig& config) : KVCache(std::make_unique<DenseStorage>(validate(config))) {}
KVCache::KVCache(const MutableTensorView& keys, const MutableTensorView& values, const std::int64_t* lengths)
    : KVCache(std::make_unique<DenseStorage>(validate_memory(keys, values, lengths), keys, values)) {
  if (lengths) storage_->advance(0, lengths);
}
KVCache::KVCache(std::unique_ptr<CacheStorage> storage) : storage_(std::move(storage)) {}
KVCache::~KVCache() = default;
KVCache::KVCache(KVCache&&) noexcept = default;
KVCache& KVCache::operator=(KVCache&&) noexcept = default;

const KVCacheConfig& KVCache::config() const { return storage_->config(); }
TensorView KVCache::keys() const { return storage_->memory().keys; }
TensorView KVCache::values() const { return storage_->memory().values; }
MutableTensorView KVCache::keys() { return storage_->memory().keys; }
MutableTensorView KVCache::values() { return storage_->memory().values; }
TensorView KVCache::key_scales() const { return storage_->memory().key_scales; }
TensorView KVCache::value_scales() const { return storage_->memory().value_scales; }
const std::int64_t* KVCache::lengths() const { return storage_->lengths(); }

void KVCache::copy_keys(const MutableTensorView& out) const {
  validate_copy("KVCache.copy_keys", *this, keys(), out, config().batch_size, longest());
  storage_->read(keys(), out);
}

void KVCache::copy_values(const MutableTensorView& out) const {
  validate_copy("KVCache.copy_values", *this, values(), out, config().batch_size, longest());
  storage_->read(values(), out);
}

void KVCache::copy_key_scales(const MutableTensorView& out) const {
  validate_copy("KVCache.copy_key_scales", *this, key_scales(), out, config().batch_size, longest());
  storage_->read(key_scales(), out);
}

void KVCache::copy_value_scales(const MutableTensorView& out) const {
  validate_copy("KVCache.copy_value_scales", *this, value_scales(), out, config().batch_size, longest());
  storage_->read(value_scales(), out);
}

Index KVCache::longest(Index count, const std::int64_t* new_lengths) const {
  const std::int64_t* const now = lengths();
  Index longest = 0;
  for (Index b = 0; b < config().batch_size; ++b) {
    const Index more = new_lengths ? std::min<Index>(std::max<Index>(new_lengths[b], 0), count) : count;
    const Index most = std::numeric_limits<Index>::max() - now[b];
    longest = std::max<Index>(longest, now[b] + std::min(more, most));
  }
  return longest;
}

void KVCache::append(const TensorView& key, const TensorView& value, const std::int64_t* new_lengths) {
  TensorView k = key, v = value;
  validate_tokens("KVCache.append", *this, k, v);
  validate_growth("KVCache.append", config(), lengths(), k.extents[2], new_lengths);
  storage_->reserve("KVCache.append", k.extents[2], new_lengths);
  storage_->write(k, v, new_lengths, active_kernels());
  storage_->advance(k.extents[2], new_lengths);
}

void KVCache::advance(Index count, const std::int64_t* new_lengths) {
  validate_growth("KVCache.advance", config(), lengths(), count, new_lengths);
  storage_->reserve("KVCache.advance", count, new_lengths);
  storage_->advance(count, new_lengths);
}

void KVCache::assign(const TensorView& key, const TensorView& value, const std::int64_t* new_lengths) {
  TensorView k = key, v = value;
  validate_tokens("KVCache.assign", *this, k, v);
  validate_growth("KVCache.assign", config(), nullptr, k.extents[2], new_lengths);
  storage_->check_room_of_all("KVCache.assign", k.extents[2], new_lengths);
  storage_->clear();
  storage_->reserve("KVCache.assign", k.extents[2], new_lengths);
  storage_->write(k, v, new_lengths, active_kernels());
  storage_->advance(k.extents[2], new_lengths);
}

void KVCache::assign_stored(const TensorView& key, const TensorView& value, const TensorView& key_scale,
                            const TensorView& value_scale, const std::int64_t* new_lengths) {
  constexpr char kName[] = "KVCache.assign_stored";
  TensorView k = key, v = value, k_scale = key_scale, v_scale = value_scale;
  validate_stored_tokens(kName, *this, k, v, k_scale, v_scale);
  validate_growth(kName, config(), nullptr, k.extents[2], new_lengths);
  storage_->check_room_of_all(kName, k.extents[2], new_lengths);
  storage_->clear();
  storage_->reserve(kName, k.extents[2], new_lengths);
  storage_->write_stored(k, v, k_scale, v_scale, new_lengths);
  storage_->advance(k.extents[2], new_lengths);
}

void KVCache::rollback(std::int64_t count) {
  validate_rollback(config(), lengths(), count, nullptr);
  storage_->rollback(count, nullptr);
}

void KVCache::rollback(const std::int64_t* counts) {
  if (counts == nullptr && config().batch_size > 0)
    throw std::invalid_argument("KVCache.rollback: counts must be given");
  validate_rollback(config(), lengths(), 0, counts);
  storage_->rollback(0, counts);
}

void KVCache::reorder(const std::int64_t* index) {
  validate_reorder(config(), index);
  storage_->reorder(index);
}

void KVCache::keep_last(std::int64_t count) {
  validate_keep_last(count);
  storage_->keep_last(count);
}

void KVCache::clear() { storage_->clear(); }

}  // namespace mha

// mha/mha.h: caches, with pages and without, and attention to them.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <type_traits>

#include "c_api/conversions.hpp"

namespace mha::c_api {
namespace {

KVCache& cache_of(mha_cache* cache) { return object(cache, "cache"); }

/// The cache, if it has pages.
template <class Handle>
auto paged_or_null(Handle* cache) {
  return dynamic_cast<std::conditional_t<std::is_const_v<Handle>, const PagedKVCache*, PagedKVCache*>>(&object(*cache));
}
template <class Handle>
auto& paged_of(Handle* cache) {
  given(cache, "cache");
  if (auto* const paged = paged_or_null(cache)) return *paged;
  throw std::invalid_argument("cache: expected one with pages");
}

}  // namespace
}  // namespace mha::c_api

using namespace mha;
using namespace mha::c_api;

mha_status mha_cache_create(const mha_cache_config* config, mha_cache** cache) noexcept {
  return guarded(__func__, [&] {
    const mha_cache_config& from = given(config, "config");
    create(cache, "cache",
           KVCacheConfig{from.batch_size, from.num_kv_heads, from.capacity, from.head_dim, from.value_head_dim,
                         dtype_of("dtype", from.dtype)});
  });
}

mha_status mha_cache_create_over(const mha_tensor* keys, const mha_tensor* values, const int64_t* lengths,
                                 mha_cache** cache) noexcept {
  return guarded(__func__, [&] { create(cache, "cache", view(keys, "keys"), view(values, "values"), lengths); });
}

void mha_cache_destroy(mha_cache* cache) noexcept { destroy(cache); }

mha_cache_config mha_cache_config_of(const mha_cache* cache) noexcept {
  const KVCacheConfig& c = object(*cache).config();
  return {c.batch_size, c.num_kv_heads, c.capacity, c.head_dim, c.value_head_dim, static_cast<mha_dtype>(c.dtype)};
}

const int64_t* mha_cache_lengths(const mha_cache* cache) noexcept { return object(*cache).lengths(); }
ptrdiff_t mha_cache_longest(const mha_cache* cache, ptrdiff_t count, const int64_t* new_lengths) noexcept {
  return object(*cache).longest(count, new_lengths);
}
mha_tensor mha_cache_keys(mha_cache* cache) noexcept { return tensor_of(object(*cache).keys()); }
mha_tensor mha_cache_values(mha_cache* cache) noexcept { return tensor_of(object(*cache).values()); }

mha_status mha_cache_append(mha_cache* cache, const mha_tensor* key, const mha_tensor* value,
                            const int64_t* new_lengths) noexcept {
  return guarded(__func__, [&] { cache_of(cache).append(view(key, "key"), view(value, "value"), new_lengths); });
}

mha_status mha_cache_assign(mha_cache* cache, const mha_tensor* key, const mha_tensor* value,
                            const int64_t* new_lengths) noexcept {
  return guarded(__func__, [&] { cache_of(cache).assign(view(key, "key"), view(value, "value"), new_lengths); });
}

mha_tensor mha_cache_key_scales(const mha_cache* cache) noexcept { return tensor_of(object(*cache).key_scales()); }
mha_tensor mha_cache_value_scales(const mha_cache* cache) noexcept { return tensor_of(object(*cache).value_scales()); }
mha_status mha_cache_copy_key_scales(const mha_cache* cache, const mha_tensor* out) noexcept {
  return guarded(__func__, [&] { object(cache, "cache").copy_key_scales(view(out, "out")); });
}
mha_status mha_cache_copy_value_scales(const mha_cache* cache, const mha_tensor* out) noexcept {
  return guarded(__func__, [&] { object(cache, "cache").copy_value_scales(view(out, "out")); });
}

mha_status mha_cache_assign_stored(mha_cache* cache, const mha_tensor* key, const mha_tensor* value,
                                   const mha_tensor* key_scale, const mha_tensor* value_scale,
                                   const int64_t* new_lengths) noexcept {
  return guarded(__func__, [&] {
    cache_of(cache).assign_stored(view(key, "key"), view(value, "value"), view(key_scale, "key_scale"),
                                  view(value_scale, "value_scale"), new_lengths);
  });
}

mha_status mha_cache_advance(mha_cache* cache, ptrdiff_t count, const int64_t* new_lengths) noexcept {
  return guarded(__func__, [&] { cache_of(cache).advance(count, new_lengths); });
}

mha_status mha_cache_rollback(mha_cache* cache, const int64_t* counts) noexcept {
  return guarded(__func__, [&] { cache_of(cache).rollback(&given(counts, "counts")); });
}

mha_status mha_cache_rollback_by(mha_cache* cache, int64_t count) noexcept {
  return guarded(__func__, [&] { cache_of(cache).rollback(count); });
}

mha_status mha_cache_reorder(mha_cache* cache, const int64_t* index) noexcept {
  return guarded(__func__, [&] { cache_of(cache).reorder(&given(index, "index")); });
}

mha_status mha_cache_keep_last(mha_cache* cache, int64_t count) noexcept {
  return guarded(__func__, [&] { cache_of(cache).keep_last(count); });
}

mha_status mha_cache_clear(mha_cache* cache) noexcept {
  return guarded(__func__, [&] { cache_of(cache).clear(); });
}

mha_status mha_scaled_dot_product_attention_cached(const mha_tensor* query, const mha_cache* cache,
                                                   const mha_tensor* out, const mha_tensor* lse,
                                                   const mha_attention_options* options) noexcept {
  return guarded(__func__, [&] {
    scaled_dot_product_attention(view(query, "query"), object(cache, "cache"), view(out, "out"), view(lse, "lse"),
                                 options_of(options));
  });
}

mha_status mha_attention_weights_cached(const mha_tensor* query, const mha_cache* cache, const mha_tensor* weights,
                                        const mha_attention_options* options, mha_score_stage stage) noexcept {
  return guarded(__func__, [&] {
    attention_weights(view(query, "query"), object(cache, "cache"), view(weights, "weights"), options_of(options),
                      enumerator<ScoreStage>("stage", "mha_score_stage", stage, MHA_WEIGHTS + 1));
  });
}

mha_status mha_attention_statistics_cached(const mha_tensor* query, const mha_cache* cache,
                                           const mha_statistics* results,
                                           const mha_attention_options* options) noexcept {
  return guarded(__func__, [&] {
    attention_statistics(view(query, "query"), object(cache, "cache"), statistics_of(results), options_of(options));
  });
}

mha_status mha_cache_copy_keys(const mha_cache* cache, const mha_tensor* out) noexcept {
  return guarded(__func__, [&] { object(cache, "cache").copy_keys(view(out, "out")); });
}
mha_status mha_cache_copy_values(const mha_cache* cache, const mha_tensor* out) noexcept {
  return guarded(__func__, [&] { object(cache, "cache").copy_values(view(out, "out")); });
}

mha_status mha_paged_cache_create(const mha_paged_cache_config* config, mha_cache** cache) noexcept {
  return guarded(__func__, [&] {
    const mha_paged_cache_config& from = given(config, "config");
    mha_cache** const handle = &given(cache, "cache");
    auto made = std::make_unique<PagedKVCache>(PagedKVCacheConfig{from.num_pages, from.page_size, from.batch_size,
                                                                  from.num_kv_heads, from.head_dim, from.value_head_dim,
                                                                  dtype_of("dtype", from.dtype)});
    *handle = reinterpret_cast<mha_cache*>(static_cast<KVCache*>(made.release()));
  });
}

ptrdiff_t mha_paged_cache_num_pages(const mha_cache* cache) noexcept {
  const PagedKVCache* const paged = paged_or_null(cache);
  return paged ? paged->num_pages() : 0;
}
ptrdiff_t mha_paged_cache_page_size(const mha_cache* cache) noexcept {
  const PagedKVCache* const paged = paged_or_null(cache);
  return paged ? paged->page_size() : 0;
}
ptrdiff_t mha_paged_cache_free_pages(const mha_cache* cache) noexcept {
  const PagedKVCache* const paged = paged_or_null(cache);
  return paged ? paged->free_pages() : 0;
}
ptrdiff_t mha_paged_cache_pages_of(const mha_cache* cache, ptrdiff_t sequence) noexcept {
  return value_or(__func__, ptrdiff_t{0}, [&] { return paged_of(cache).pages_of(sequence); });
}
const int32_t* mha_paged_cache_page_table(const mha_cache* cache, ptrdiff_t sequence) noexcept {
  return value_or(__func__, nullptr, [&] { return paged_of(cache).page_table(sequence); });
}
bool mha_paged_cache_check_pages(const mha_cache* cache) noexcept {
  const PagedKVCache* const paged = paged_or_null(cache);
  return !paged || value_or(__func__, false, [&] { return paged->check_pages(); });
}

mha_status mha_paged_cache_fork(mha_cache* cache, ptrdiff_t sequence, ptrdiff_t into, ptrdiff_t length) noexcept {
  return guarded(__func__, [&] { paged_of(cache).fork(sequence, into, length); });
}

mha_status mha_paged_cache_release(mha_cache* cache, ptrdiff_t sequence) noexcept {
  return guarded(__func__, [&] { paged_of(cache).release(sequence); });
}

mha_status mha_paged_cache_copy_pages(const mha_cache* cache, const mha_tensor* rows, const mha_tensor* out) noexcept {
  return guarded(__func__, [&] { paged_of(cache).copy_pages(view(rows, "rows"), view(out, "out")); });
}

mha_status mha_paged_cache_assign_pages(mha_cache* cache, const mha_tensor* key, const mha_tensor* value,
                                        const mha_tensor* key_scale, const mha_tensor* value_scale,
                                        const int64_t* tables, ptrdiff_t table_columns,
                                        const int64_t* lengths) noexcept {
  return guarded(__func__, [&] {
    paged_of(cache).assign_pages(view(key, "key"), view(value, "value"), view(key_scale, "key_scale"),
                                 view(value_scale, "value_scale"), tables, table_columns, lengths);
  });
}

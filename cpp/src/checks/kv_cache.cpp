#include "checks/kv_cache.hpp"

#include <algorithm>

#include "checks/rules.hpp"
#include "views/describe.hpp"
#include "views/leading_axes.hpp"
#include "views/memory_overlap.hpp"

namespace mha {
namespace {

[[noreturn]] void fail(const char* function, const std::string& rule) {
  throw std::invalid_argument(std::string(function) + ": " + rule);
}

std::string heads_of(Index num_kv_heads, Index head_dim, Index value_head_dim) {
  return "num_kv_heads " + std::to_string(num_kv_heads) + ", head_dim " + std::to_string(head_dim) +
         ", value_head_dim " + std::to_string(value_head_dim);
}

}  // namespace

KVCacheConfig validate(KVCacheConfig c) {
  if (c.value_head_dim == 0) c.value_head_dim = c.head_dim;
  const auto check = [](const char* name, Index size, Index least) {
    if (size < least)
      fail("KVCache",
           std::string(name) + " must be at least " + std::to_string(least) + "; got " + std::to_string(size));
  };
  check("batch_size", c.batch_size, 0);
  check("num_kv_heads", c.num_kv_heads, 1);
  check("capacity", c.capacity, 0);
  check("head_dim", c.head_dim, 1);
  check("value_head_dim", c.value_head_dim, 1);
  if (static_cast<int>(c.dtype) >= kNumDTypes)
    throw DTypeError(std::string("KVCache: dtype must be one that attention computes in; got ") + name_of(c.dtype));
  return c;
}

Index validate_growth(const char* f, const KVCacheConfig& config, const std::int64_t* lengths, Index count,
                      const std::int64_t* new_lengths) {
  Index longest = 0;
  for (Index b = 0; b < config.batch_size; ++b) {
    const std::int64_t more = new_lengths ? new_lengths[b] : count;
    if (more < 0 || more > count)
      fail(f, "new_lengths must lie in [0, T] = [0, " + std::to_string(count) + "]; got " + std::to_string(more) +
                  " for sequence " + std::to_string(b));
    if (more > config.capacity - lengths[b])
      fail(f, "the cache has a capacity of " + std::to_string(config.capacity) + " tokens, and sequence " +
                  std::to_string(b) + " would have " + std::to_string(lengths[b]) + " + " + std::to_string(more));
    longest = std::max<Index>(longest, lengths[b] + more);
  }
  return longest;
}

void validate_rollback(const KVCacheConfig& config, const std::int64_t* lengths, std::int64_t count,
                       const std::int64_t* counts) {
  if (!counts && count < 0) fail("KVCache.rollback", "count must be at least 0; got " + std::to_string(count));
  for (Index b = 0; b < config.batch_size; ++b) {
    const std::int64_t less = counts ? counts[b] : count;
    if (less < 0 || less > lengths[b])
      fail("KVCache.rollback", "count must be from 0 to what a sequence has: sequence " + std::to_string(b) + " has " +
                                   std::to_string(lengths[b]) + " tokens; got " + std::to_string(less));
  }
}

void validate_reorder(const KVCacheConfig& config, const std::int64_t* index) {
  if (index == nullptr && config.batch_size > 0) fail("KVCache.reorder", "index must be given");
  for (Index b = 0; b < config.batch_size; ++b)
    if (index[b] < 0 || index[b] >= config.batch_size)
      fail("KVCache.reorder", "index must name sequences, 0 to " + std::to_string(config.batch_size - 1) + "; got " +
                                  std::to_string(index[b]) + " for sequence " + std::to_string(b));
}

void validate_keep_last(std::int64_t count) {
  if (count < 0) fail("KVCache.keep_last", "count must be at least 0; got " + std::to_string(count));
}

void validate_tokens(const char* f, const KVCache& cache, TensorView& key, TensorView& value) {
  const auto all = {std::pair<const char*, TensorView>{"key", key}, {"value", value}};
  const KVCacheConfig& c = cache.config();
  if (key.dtype != c.dtype || value.dtype != c.dtype)
    throw DTypeError(std::string(f) + ": key and value must have the dtype of the cache, " + name_of(c.dtype) +
                     "; got " + dtypes_of(all));
  const auto check = [&](const char* name, TensorView& view, Index width, const TensorView& memory) {
    const TensorView given = view;
    check_tensor(f, name, given);
    add_leading_axes(view, 4);
    if (given.rank < 2 || view.extents[0] != c.batch_size || view.extents[1] != c.num_kv_heads ||
        view.extents[3] != width)
      fail(f, std::string(name) + " must be [" + std::to_string(c.batch_size) + ", " + std::to_string(c.num_kv_heads) +
                  ", T, " + std::to_string(width) + "]; got " + shapes_of(all));
    if (may_overlap(memory, view)) fail(f, std::string(name) + " must not overlap the cache in memory");
  };
  check("key", key, c.head_dim, cache.keys());
  check("value", value, c.value_head_dim, cache.values());
  if (may_overlap(cache.values(), key) || may_overlap(cache.keys(), value))
    fail(f, "key and value must not overlap the cache in memory");
  if (value.extents[2] != key.extents[2]) fail(f, "value must have the length of key; got " + shapes_of(all));
}

Index validate_cache(const char* f, const KVCache& cache, const MultiHeadAttentionConfig& layer, DType dtype,
                     const TensorView& query, const TensorView& key, const AttentionOptions& options,
                     const std::int64_t* new_lengths, const char* key_lengths_name) {
  const KVCacheConfig& c = cache.config();
  const Index batch = (query ? query : key).extents[0];
  const bool is_narrower = size_of(c.dtype) < size_of(dtype) && accumulator_of(c.dtype) == dtype;
  if (c.dtype != dtype && !is_narrower)
    throw DTypeError(std::string(f) + ": cache must have the dtype of the layer, " + name_of(dtype) +
                     (dtype == DType::f32 ? ", or float16 or bfloat16" : "") + "; got " + name_of(c.dtype));
  if (c.batch_size != batch)
    fail(f, "cache must have the batch size of the call, " + std::to_string(batch) + "; got " +
                std::to_string(c.batch_size));
  if (c.num_kv_heads != layer.num_kv_heads || c.head_dim != layer.head_dim || c.value_head_dim != layer.value_head_dim)
    fail(f, "cache must have the heads of the layer, " +
                heads_of(layer.num_kv_heads, layer.head_dim, layer.value_head_dim) + "; got " +
                heads_of(c.num_kv_heads, c.head_dim, c.value_head_dim));
  if (options.key_lengths)
    fail(f, key_lengths_name + std::string(" are those of the cache and must not be given with one"));
  if (key && (options.query_offsets || options.query_offset != 0))
    fail(f, "query_offset is the length of the cache and must not be given with one");
  if (new_lengths && query && query.extents[1] != key.extents[1])
    fail(f, "with new_lengths query and key must have one length; got query " + shape_of(query) + ", key " +
                shape_of(key));
  return validate_growth(f, c, cache.lengths(), key ? key.extents[1] : 0, new_lengths);
}

}  // namespace mha

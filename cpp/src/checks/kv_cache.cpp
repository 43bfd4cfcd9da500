#include "checks/kv_cache.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "cache/cache_storage.hpp"
#include "checks/rules.hpp"
#include "kernels/kernel_table.hpp"
#include "views/describe.hpp"
#include "views/leading_axes.hpp"
#include "views/memory_overlap.hpp"
#include "views/ragged_batch.hpp"

namespace mha {
namespace {

[[noreturn]] void fail(const char* function, const std::string& rule) {
  throw std::invalid_argument(std::string(function) + ": " + rule);
}

void check_size(const char* f, const char* name, Index size, Index least) {
  if (size < least)
    fail(f, std::string(name) + " must be at least " + std::to_string(least) + "; got " + std::to_string(size));
}

/// The common fields of all caches, with zeros replaced.
template <class Config>
void check_heads(const char* f, Config& c) {
  if (c.value_head_dim == 0) c.value_head_dim = c.head_dim;
  check_size(f, "batch_size", c.batch_size, 0);
  check_size(f, "num_kv_heads", c.num_kv_heads, 1);
  check_size(f, "head_dim", c.head_dim, 1);
  check_size(f, "value_head_dim", c.value_head_dim, 1);
  if (static_cast<int>(attended_as(c.dtype)) >= kNumDTypes)
    throw DTypeError(std::string(f) + ": dtype must be one that attention computes in, or int8; got " +
                     name_of(c.dtype));
}

std::string heads_of(Index num_kv_heads, Index head_dim, Index value_head_dim) {
  return "num_kv_heads " + std::to_string(num_kv_heads) + ", head_dim " + std::to_string(head_dim) +
         ", value_head_dim " + std::to_string(value_head_dim);
}

/// How many tokens a sequence will have, which it has room for.
Index checked_length(const char* f, const KVCacheConfig& config, const std::int64_t* lengths, Index sequence,
                     std::int64_t more) {
  const std::int64_t now = lengths ? lengths[sequence] : 0;
  if (more > config.capacity - now)
    fail(f, "the cache has a capacity of " + std::to_string(config.capacity) + " tokens, and sequence " +
                std::to_string(sequence) + " would have " + std::to_string(now) + " + " + std::to_string(more));
  return now + more;
}

void check_no_overlap(const char* f, const KVCache& cache, const char* name, const TensorView& view) {
  for (const TensorView& memory : {cache.keys(), cache.values(), cache.key_scales(), cache.value_scales()})
    if (memory && may_overlap(memory, view)) fail(f, std::string(name) + " must not overlap the cache in memory");
}

/// Rows of tokens, one of the arguments `all`, which are brought to [B, Hk, T, columns].
void check_rows(const char* f, const KVCache& cache, const char* name, TensorView& view, Index columns,
                std::initializer_list<std::pair<const char*, TensorView>> all) {
  const KVCacheConfig& c = cache.config();
  const TensorView given = view;
  check_tensor(f, name, given);
  add_leading_axes(view, 4);
  if (given.rank < 2 || view.extents[0] != c.batch_size || view.extents[1] != c.num_kv_heads ||
      view.extents[3] != columns)
    fail(f, std::string(name) + " must be [" + std::to_string(c.batch_size) + ", " + std::to_string(c.num_kv_heads) +
                ", T, " + std::to_string(columns) + "]; got " + shapes_of(all));
  check_no_overlap(f, cache, name, view);
}

/// Rows of pages, [pages, Hk, page_size, columns].
void check_pages(const char* f, const PagedKVCache& cache, const char* name, const TensorView& view, Index columns,
                 std::initializer_list<std::pair<const char*, TensorView>> all) {
  const TensorView& key = all.begin()->second;
  const Index pages = key.rank > 0 ? key.extents[0] : 0;
  const Index heads = cache.config().num_kv_heads, size = cache.page_size();
  check_rank(f, name, view, 4, 4, all);
  if (view.extents[0] != pages || view.extents[1] != heads || view.extents[2] != size || view.extents[3] != columns)
    fail(f, std::string(name) + " must be [" + std::to_string(pages) + ", " + std::to_string(heads) + ", " +
                std::to_string(size) + ", " + std::to_string(columns) + "], a row for each token of each page; got " +
                shapes_of(all));
  check_no_overlap(f, cache, name, view);
}

}  // namespace

KVCacheConfig validate(KVCacheConfig c) {
  check_heads("KVCache", c);
  check_size("KVCache", "capacity", c.capacity, 0);
  return c;
}

PagedKVCacheConfig validate(PagedKVCacheConfig c) {
  constexpr char f[] = "PagedKVCache";
  check_heads(f, c);
  check_size(f, "num_pages", c.num_pages, 0);
  // Numbers of pages and of sequences that have a page are of 32 bits.
  constexpr Index kMost = std::numeric_limits<std::int32_t>::max() - 1;
  for (const auto& [name, size] : {std::pair("num_pages", c.num_pages), {"batch_size", c.batch_size}})
    if (size > kMost) fail(f, name + (" must be at most " + std::to_string(kMost)) + "; got " + std::to_string(size));
  if (c.page_size < kKeyBlock || c.page_size % kKeyBlock != 0)
    fail(f, "page_size must be a multiple of " + std::to_string(kKeyBlock) + "; got " + std::to_string(c.page_size));
  return c;
}

KVCacheConfig validate_memory(const MutableTensorView& keys, const MutableTensorView& values,
                              const std::int64_t* lengths) {
  constexpr char f[] = "KVCache";
  const std::pair<const char*, TensorView> all[] = {{"keys", keys}, {"values", values}};
  for (const auto& [name, view] : all) check_rank(f, name, view, 4, 4, {all[0], all[1]});
  check_dtypes(f, keys.dtype, {all[0], all[1]});
  if (!std::equal(keys.extents, keys.extents + 3, values.extents) || keys.extents[1] < 1 || keys.extents[3] < 1 ||
      values.extents[3] < 1)
    fail(f,
         "keys must be [B, Hk, capacity, D] and values [B, Hk, capacity, Dv], with a head and a column at least; got " +
             shapes_of({all[0], all[1]}));
  for (const auto& [name, view] : all)
    if ((view.extents[3] > 1 && view.strides[3] != 1) || (view.extents[2] > 1 && view.strides[2] != view.extents[3]))
      fail(f, std::string(name) + " must have the rows of a head one behind the other in memory; of " +
                  shapes_of({{name, view}}) + ", neighbours are " + std::to_string(view.strides[2]) +
                  " elements apart along the third axis and " + std::to_string(view.strides[3]) + " along the last");
  check_output(f, "keys", keys, {});
  check_output(f, "values", values, {all[0]});
  const KVCacheConfig config{keys.extents[0], keys.extents[1],   keys.extents[2],
                             keys.extents[3], values.extents[3], keys.dtype};
  for (Index b = 0; lengths != nullptr && b < config.batch_size; ++b)
    if (lengths[b] < 0 || lengths[b] > config.capacity)
      fail(f, "lengths must be from 0 to the capacity, " + std::to_string(config.capacity) + "; got " +
                  std::to_string(lengths[b]) + " for sequence " + std::to_string(b));
  return config;
}

void validate_sequence(const char* f, const char* name, const KVCacheConfig& config, Index sequence) {
  if (sequence < 0 || sequence >= config.batch_size)
    fail(f, std::string(name) + " must name one of " + std::to_string(config.batch_size) + " sequences; got " +
                std::to_string(sequence));
}

Index validate_fork(const KVCacheConfig& config, const std::int64_t* lengths, Index sequence, Index into,
                    Index length) {
  constexpr char f[] = "PagedKVCache.fork";
  validate_sequence(f, "sequence", config, sequence);
  validate_sequence(f, "into", config, into);
  if (into == sequence) fail(f, "into must be another sequence than " + std::to_string(sequence));
  if (lengths[into] != 0)
    fail(f, "into must have no tokens; sequence " + std::to_string(into) + " has " + std::to_string(lengths[into]));
  if (length == -1) return lengths[sequence];
  if (length < 0 || length > lengths[sequence])
    fail(f, "length must be from 0 to what the sequence has: sequence " + std::to_string(sequence) + " has " +
                std::to_string(lengths[sequence]) + " tokens; got " + std::to_string(length));
  return length;
}

Index validate_growth(const char* f, const KVCacheConfig& config, const std::int64_t* lengths, Index count,
                      const std::int64_t* new_lengths) {
  Index longest = 0;
  for (Index b = 0; b < config.batch_size; ++b) {
    const std::int64_t more = new_lengths ? new_lengths[b] : count;
    if (more < 0 || more > count)
      fail(f, "new_lengths must lie in [0, T] = [0, " + std::to_string(count) + "]; got " + std::to_string(more) +
                  " for sequence " + std::to_string(b));
    longest = std::max(longest, checked_length(f, config, lengths, b, more));
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
  const DType expected = attended_as(c.dtype);
  if (key.dtype != expected || value.dtype != expected)
    throw DTypeError(std::string(f) + ": key and value must have the dtype of the cache, " +
                     (c.dtype == DType::int8 ? "or float32 for int8" : name_of(c.dtype)) + "; got " + dtypes_of(all));
  check_rows(f, cache, "key", key, c.head_dim, all);
  check_rows(f, cache, "value", value, c.value_head_dim, all);
  if (value.extents[2] != key.extents[2]) fail(f, "value must have the length of key; got " + shapes_of(all));
}

void validate_stored_tokens(const char* f, const KVCache& cache, TensorView& key, TensorView& value,
                            TensorView& key_scale, TensorView& value_scale) {
  const auto all = {std::pair<const char*, TensorView>{"key", key},
                    {"value", value},
                    {"key_scale", key_scale},
                    {"value_scale", value_scale}};
  const KVCacheConfig& c = cache.config();
  if (c.dtype != DType::int8)
    throw DTypeError(std::string(f) + ": the cache must be of int8; it is of " + name_of(c.dtype));
  if (key.dtype != DType::int8 || value.dtype != DType::int8 || key_scale.dtype != DType::f32 ||
      value_scale.dtype != DType::f32)
    throw DTypeError(std::string(f) + ": key and value must be of int8, and their scales of float32; got " +
                     dtypes_of(all));
  check_rows(f, cache, "key", key, c.head_dim, all);
  check_rows(f, cache, "value", value, c.value_head_dim, all);
  check_rows(f, cache, "key_scale", key_scale, 1, all);
  check_rows(f, cache, "value_scale", value_scale, 1, all);
  for (const TensorView* view : {&value, &key_scale, &value_scale})
    if (view->extents[2] != key.extents[2])
      fail(f, "value and the scales must have the length of key; got " + shapes_of(all));
}

void validate_pages(const char* f, const PagedKVCache& cache, const TensorView& key, const TensorView& value,
                    const TensorView& key_scale, const TensorView& value_scale, const std::int64_t* tables,
                    Index table_columns, const std::int64_t* lengths) {
  const KVCacheConfig& c = cache.config();
  const bool is_int8 = c.dtype == DType::int8;
  const auto all = {std::pair<const char*, TensorView>{"key", key}, {"value", value}};
  if (key.dtype != c.dtype || value.dtype != c.dtype)
    throw DTypeError(std::string(f) + ": key and value must have the dtype of the cache, " + name_of(c.dtype) +
                     "; got " + dtypes_of(all));
  if (bool(key_scale) != is_int8 || bool(value_scale) != is_int8)
    fail(f, "key_scale and value_scale are for a cache of int8; it is of " + std::string(name_of(c.dtype)));
  check_pages(f, cache, "key", key, c.head_dim, all);
  check_pages(f, cache, "value", value, c.value_head_dim, all);
  for (const auto& [name, scale] : {std::pair("key_scale", key_scale), {"value_scale", value_scale}}) {
    if (!is_int8) break;
    if (scale.dtype != DType::f32) throw DTypeError(f + (": " + std::string(name)) + " must be of float32");
    check_pages(f, cache, name, scale, 1, {{"key", key}, {name, scale}});
  }
  if (c.batch_size > 0 && (lengths == nullptr || (tables == nullptr && table_columns > 0)))
    fail(f, "page_table and lengths must be given");
  const Index pages = key.extents[0];
  if (pages > cache.num_pages())
    fail(f, "the cache has " + std::to_string(cache.num_pages()) + " pages; got " + std::to_string(pages));
  std::vector<Index> last_user(static_cast<std::size_t>(pages), -1);
  for (Index b = 0; b < c.batch_size; ++b, tables += table_columns) {
    const std::int64_t length = lengths[b], room = table_columns * cache.page_size();
    if (length < 0 || length > room)
      fail(f, "lengths must be from 0 to the tokens of the pages in page_table, " + std::to_string(room) + "; got " +
                  std::to_string(length) + " for sequence " + std::to_string(b));
    const Index held = (length + cache.page_size() - 1) / cache.page_size();
    for (Index i = 0; i < table_columns; ++i) {
      const bool is_page = tables[i] >= 0 && tables[i] < pages;
      if (i < held ? !is_page : tables[i] != -1)
        fail(f, "page_table must name " + std::to_string(held) + " of the pages 0 to " + std::to_string(pages - 1) +
                    ", and then have -1, for the " + std::to_string(length) + " tokens of sequence " +
                    std::to_string(b) + "; got " + std::to_string(tables[i]) + " in column " + std::to_string(i));
      if (i < held && std::exchange(last_user[static_cast<std::size_t>(tables[i])], b) == b)
        fail(f, "page_table must name a page once for a sequence; sequence " + std::to_string(b) + " has page " +
                    std::to_string(tables[i]) + " twice");
    }
  }
  if (const auto none = std::find(last_user.begin(), last_user.end(), -1); none != last_user.end())
    fail(f, "page_table must name each page; page " + std::to_string(none - last_user.begin()) + " is in no sequence");
}

void validate_copy(const char* f, const KVCache& cache, const TensorView& memory, const MutableTensorView& out,
                   Index sequences, Index least) {
  if (!memory)
    throw DTypeError(std::string(f) + ": the cache must be of int8; it is of " + name_of(cache.config().dtype));
  if (out.dtype != memory.dtype)
    throw DTypeError(std::string(f) + ": out must have the dtype of the cache, " + name_of(memory.dtype) + "; got " +
                     name_of(out.dtype));
  if (out.rank != 4 || out.extents[0] != sequences || out.extents[1] != memory.extents[1] || out.extents[2] < least ||
      out.extents[3] != memory.extents[3])
    fail(f, "out must be [" + std::to_string(sequences) + ", " + std::to_string(memory.extents[1]) + ", at least " +
                std::to_string(least) + ", " + std::to_string(memory.extents[3]) + "]; got " + shape_of(out));
  check_output(f, "out", out, {{"the cache", memory}});
}

CachedKeys::CachedKeys(AttentionArguments& a, const KVCache& cache, bool with_values) {
  const char* f = a.function;
  const KVCacheConfig& c = cache.config();
  const Index longest = cache.longest();
  check_tensor(f, "query", a.query);
  const Index batch = a.query.rank == kMaxRank ? a.query.extents[0] : 1;
  if (batch != c.batch_size)
    fail(f, "query must have the batch size of the cache, " + std::to_string(c.batch_size) + "; got query " +
                shape_of(a.query));
  if (c.dtype == DType::int8 && a.query.dtype != DType::f32)
    throw DTypeError(std::string(f) + ": query must be of float32 where the cache is of int8; got " +
                     name_of(a.query.dtype));
  if (a.options.key_lengths) fail(f, "key_lengths are those of the cache and must not be given with one");
  a.memory = &cache.storage().memory();
  const auto tokens = [&](TensorView rows) {
    rows.extents[2] = longest;
    rows.dtype = attended_as(rows.dtype);
    return rows;
  };
  a.key = tokens(a.memory->keys);
  if (with_values) a.value = tokens(a.memory->values);
  a.options.key_lengths = cache.lengths();
  if (a.options.query_offsets || a.options.query_offset != 0 || a.query.rank < 2) return;
  const Index rows = a.query.extents[a.query.rank - 2];
  for (Index b = 0; b < c.batch_size; ++b) offsets_.push_back(cache.lengths()[b] - rows);
  a.options.query_offsets = offsets_.data();
}

Index validate_cache(const char* f, const MultiHeadAttentionConfig& layer, DType dtype, const LayerArguments& a) {
  const KVCacheConfig& c = a.cache->config();
  const Index batch = (a.query ? a.query : a.key).extents[0];
  const bool is_narrower =
      size_of(c.dtype) < size_of(dtype) && (attended_as(c.dtype) == dtype || accumulator_of(c.dtype) == dtype);
  if (c.dtype != dtype && !is_narrower)
    throw DTypeError(std::string(f) + ": cache must have the dtype of the layer, " + name_of(dtype) +
                     (dtype == DType::f32 ? ", or float16, bfloat16 or int8" : "") + "; got " + name_of(c.dtype));
  if (a.ragged)
    check_sequences(f, *a.ragged, c.batch_size);
  else if (c.batch_size != batch)
    fail(f, "cache must have the batch size of the call, " + std::to_string(batch) + "; got " +
                std::to_string(c.batch_size));
  if (c.num_kv_heads != layer.num_kv_heads || c.head_dim != layer.head_dim || c.value_head_dim != layer.value_head_dim)
    fail(f, "cache must have the heads of the layer, " +
                heads_of(layer.num_kv_heads, layer.head_dim, layer.value_head_dim) + "; got " +
                heads_of(c.num_kv_heads, c.head_dim, c.value_head_dim));
  if (a.options.key_lengths)
    fail(f, a.names.key_lengths + std::string(" are those of the cache and must not be given with one"));
  if (a.key && (a.options.query_offsets || a.options.query_offset != 0))
    fail(f, "query_offset is the length of the cache and must not be given with one");
  if (a.new_lengths && a.query && a.query.extents[1] != a.key.extents[1])
    fail(f, "with new_lengths query and key must have one length; got query " + shape_of(a.query) + ", key " +
                shape_of(a.key));
  if (!a.ragged) return validate_growth(f, c, a.cache->lengths(), a.key ? a.key.extents[1] : 0, a.new_lengths);
  Index longest = 0;
  for (Index b = 0; b < a.ragged->size; ++b)
    longest =
        std::max(longest, checked_length(f, c, a.cache->lengths(), sequence_of(*a.ragged, b), keys_of(*a.ragged, b)));
  return longest;
}

}  // namespace mha

// The KVCache.
#include <mha/kv_cache.hpp>
#include <mha/paged_kv_cache.hpp>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include <pybind11/numpy.h>

#include "array_view.hpp"
#include "bindings.hpp"
#include "scalars.hpp"
#include "shared_cache.hpp"
#include "without_gil.hpp"

namespace mha::bindings {
namespace {

// The functions of all caches.
template <class Config>
Config config_of(const char* function, py::handle batch_size, py::handle num_kv_heads, py::handle head_dim,
                 py::handle value_head_dim, py::handle dtype) {
  Config config;
  config.batch_size = integer(function, "batch_size", batch_size);
  config.num_kv_heads = integer(function, "num_kv_heads", num_kv_heads);
  config.head_dim = integer(function, "head_dim", head_dim);
  if (!value_head_dim.is_none()) {
    config.value_head_dim = integer(function, "value_head_dim", value_head_dim);
    if (config.value_head_dim == 0)  // which is no choice in C++
      throw py::value_error(describe(function, "value_head_dim", "at least 1", value_head_dim));
  }
  config.dtype = dtype_from(function, dtype, true);
  return config;
}

std::unique_ptr<SharedCache> make_cache(py::handle batch_size, py::handle num_kv_heads, py::handle capacity,
                                        py::handle head_dim, py::handle value_head_dim, py::handle dtype) {
  auto config = config_of<KVCacheConfig>("KVCache", batch_size, num_kv_heads, head_dim, value_head_dim, dtype);
  config.capacity = integer("KVCache", "capacity", capacity);
  return std::make_unique<SharedCache>(std::make_unique<KVCache>(config));
}

std::unique_ptr<SharedCache> make_cache_over(py::handle keys, py::handle values, py::handle lengths) {
  const char* const function = "KVCache.over";
  const Argument list[] = {{"keys", keys}, {"values", values}, {"lengths", lengths}};
  const ArrayArguments arrays(function, list);
  const MutableTensorView k = arrays.output(0, 4, 4), v = arrays.output(1, 4, 4);
  std::vector<std::int64_t> counts;
  if (arrays.given(2)) counts = arrays.integers(2, k.extents[0]);
  return std::make_unique<SharedCache>(std::make_unique<KVCache>(k, v, arrays.given(2) ? counts.data() : nullptr));
}

struct SharedPagedCache : SharedCache {
  explicit SharedPagedCache(std::unique_ptr<PagedKVCache> made) : SharedCache(std::move(made), true) {}

  PagedKVCache& paged() const { return static_cast<PagedKVCache&>(cache); }
};

std::unique_ptr<SharedPagedCache> make_paged_cache(py::handle num_pages, py::handle page_size, py::handle batch_size,
                                                   py::handle num_kv_heads, py::handle head_dim,
                                                   py::handle value_head_dim, py::handle dtype) {
  const char* const function = "PagedKVCache";
  auto config = config_of<PagedKVCacheConfig>(function, batch_size, num_kv_heads, head_dim, value_head_dim, dtype);
  config.num_pages = integer(function, "num_pages", num_pages);
  config.page_size = integer(function, "page_size", page_size);
  return std::make_unique<SharedPagedCache>(std::make_unique<PagedKVCache>(config));
}

Index fork(SharedPagedCache& shared, py::handle sequence, py::handle into, py::handle length) {
  const char* const function = "PagedKVCache.fork";
  PagedKVCache& cache = shared.paged();
  const Index from = integer(function, "sequence", sequence);
  const Index count = length.is_none() ? -1 : integer(function, "length", length);
  if (count == -1 && !length.is_none())  // which stands for all of them in C++
    throw py::value_error(describe(function, "length", "at least 0", length));
  const CacheUse use(shared, CacheUse::moves);
  Index to = 0;
  if (!into.is_none()) {
    to = integer(function, "into", into);
  } else {
    const Index batch = cache.config().batch_size;
    while (to < batch && (to == from || cache.lengths()[to] != 0)) ++to;
    if (to == batch) {
      const bool is_empty = from >= 0 && from < batch && cache.lengths()[from] == 0;
      throw py::value_error(std::string(function) + ": into must be given: every " + (is_empty ? "other " : "") +
                            "sequence has tokens");
    }
  }
  cache.fork(from, to, count);
  return to;
}

// One sequence, or an array of them.
void release(SharedPagedCache& shared, py::handle sequence) {
  const char* const function = "PagedKVCache.release";
  PagedKVCache& cache = shared.paged();
  const CacheUse use(shared, CacheUse::moves);
  if (!is_array(sequence)) {
    cache.release(integer(function, "sequence", sequence, "an integer or an integer array"));
    return;
  }
  const Argument list[] = {{"sequence", sequence}};
  const ArrayArguments arrays(function, list, cache.config().dtype);
  const std::vector<std::int64_t> all = arrays.integers(0);
  // One that there is not is refused before the others are released.
  const Index batch = cache.config().batch_size;
  const auto wrong = std::find_if(all.begin(), all.end(), [&](std::int64_t b) { return b < 0 || b >= batch; });
  if (wrong != all.end()) cache.release(*wrong);
  for (const std::int64_t b : all) cache.release(b);
}

// [B, most pages of a sequence], then -1.
py::object page_table(const SharedPagedCache& shared) {
  const PagedKVCache& cache = shared.paged();
  const Index batch = cache.config().batch_size;
  Index most = 0;
  for (Index b = 0; b < batch; ++b) most = std::max(most, cache.pages_of(b));
  py::array_t<std::int64_t> table({batch, most});
  std::int64_t* row = table.mutable_data();
  for (Index b = 0; b < batch; ++b, row += most) {
    std::fill_n(row, most, -1);
    std::copy_n(cache.page_table(b), cache.pages_of(b), row);
  }
  return table;
}

// The pages that sequences have, each once: keys, values, and for int8 the scales of both.
py::object stored_pages(SharedPagedCache& shared) {
  const CacheUse use(shared, CacheUse::reads);
  const PagedKVCache& cache = shared.paged();
  const Index pages = cache.num_pages() - cache.free_pages();
  py::list copies;
  for (const TensorView& rows : {cache.keys(), cache.values(), cache.key_scales(), cache.value_scales()}) {
    if (!rows) continue;
    const Index shape[] = {pages, rows.extents[1], cache.page_size(), rows.extents[3]};
    const NewArray copy = new_array(rows.dtype, 4, shape);
    cache.copy_pages(rows, copy.view);
    copies.append(copy.array);
  }
  return py::tuple(copies);
}

void assign_pages(SharedPagedCache& shared, py::handle key, py::handle value, py::handle key_scale,
                  py::handle value_scale, py::handle page_table, py::handle lengths) {
  PagedKVCache& cache = shared.paged();
  const DType dtype = cache.config().dtype;
  const bool is_int8 = dtype == DType::int8;
  const Argument list[] = {{"key", key},
                           {"value", value},
                           {"key_scale", key_scale},
                           {"value_scale", value_scale},
                           {"page_table", page_table},
                           {"lengths", lengths}};
  const ArrayArguments arrays("PagedKVCache.assign_pages", list, attended_as(dtype),
                              is_int8 ? "the scales" : "the cache");
  const auto rows = [&](int i) { return is_int8 ? arrays.int8_tensor(i, 4, 4) : arrays.tensor(i, 4, 4); };
  const TensorView k = rows(0), v = rows(1);
  const TensorView k_scale = arrays.optional_tensor(2, 4, 4), v_scale = arrays.optional_tensor(3, 4, 4);
  const Index batch = cache.config().batch_size;
  const std::vector<std::int64_t> counts = arrays.integers(5, batch);
  const IntegerRows tables = arrays.integer_rows(4, batch);
  const CacheUse use(shared, CacheUse::replaces);
  without_gil([&] { cache.assign_pages(k, v, k_scale, v_scale, tables.values.data(), tables.columns, counts.data()); });
}

py::object copy_of(const KVCache& cache, const TensorView& rows,
                   void (KVCache::*copy)(const MutableTensorView&) const) {
  const Index shape[] = {rows.extents[0], rows.extents[1], cache.longest(), rows.extents[3]};
  const NewArray array = new_array(rows.dtype, 4, shape);
  (cache.*copy)(array.view);
  return array_over(array.view, array.array);  // to be read only
}

// append() and assign() take the same arguments.
using Write = void (KVCache::*)(const TensorView&, const TensorView&, const std::int64_t*);

void write(SharedCache& shared, const char* function, Write how, CacheUse::Kind kind, py::handle key, py::handle value,
           py::handle new_lengths) {
  KVCache& cache = shared.cache;
  const Argument list[] = {{"key", key}, {"value", value}, {"new_lengths", new_lengths}};
  const DType dtype = cache.config().dtype;
  const ArrayArguments arrays(function, list, attended_as(dtype),
                              dtype == DType::int8 ? "numbers of a cache of int8" : "the cache");
  const TensorView k = arrays.tensor(0, 2, kMaxRank);
  const TensorView v = arrays.tensor(1, 2, kMaxRank);
  std::vector<std::int64_t> counts;
  if (arrays.given(2)) counts = arrays.integers(2, cache.config().batch_size);
  const CacheUse use(shared, kind);
  without_gil([&] { (cache.*how)(k, v, arrays.given(2) ? counts.data() : nullptr); });
}

void append(SharedCache& cache, py::handle key, py::handle value, py::handle new_lengths) {
  write(cache, "KVCache.append", &KVCache::append, CacheUse::changes, key, value, new_lengths);
}

void assign(SharedCache& cache, py::handle key, py::handle value, py::handle new_lengths) {
  write(cache, "KVCache.assign", &KVCache::assign, CacheUse::replaces, key, value, new_lengths);
}

// Copies of the memory of an int8 cache: keys, values, and the scales of both.
py::object stored(SharedCache& shared) {
  const CacheUse use(shared, CacheUse::reads);
  const KVCache& cache = shared.cache;
  return py::make_tuple(copy_of(cache, cache.keys(), &KVCache::copy_keys),
                        copy_of(cache, cache.values(), &KVCache::copy_values),
                        copy_of(cache, cache.key_scales(), &KVCache::copy_key_scales),
                        copy_of(cache, cache.value_scales(), &KVCache::copy_value_scales));
}

void assign_stored(SharedCache& shared, py::handle key, py::handle value, py::handle key_scale, py::handle value_scale,
                   py::handle new_lengths) {
  KVCache& cache = shared.cache;
  const Argument list[] = {{"key", key},
                           {"value", value},
                           {"key_scale", key_scale},
                           {"value_scale", value_scale},
                           {"new_lengths", new_lengths}};
  const ArrayArguments arrays("KVCache.assign_stored", list, DType::f32, "the scales");
  const TensorView k = arrays.int8_tensor(0, 2, kMaxRank), v = arrays.int8_tensor(1, 2, kMaxRank);
  const TensorView k_scale = arrays.tensor(2, 2, kMaxRank), v_scale = arrays.tensor(3, 2, kMaxRank);
  const std::vector<std::int64_t> counts = arrays.integers(4, cache.config().batch_size);
  const CacheUse use(shared, CacheUse::replaces);
  without_gil([&] { cache.assign_stored(k, v, k_scale, v_scale, counts.data()); });
}

// One integer for all sequences, or an array of them.
void rollback(SharedCache& shared, py::handle count) {
  KVCache& cache = shared.cache;
  const CacheUse use(shared, CacheUse::changes);
  if (!is_array(count)) {
    cache.rollback(integer("KVCache.rollback", "count", count, "an integer or an integer array [B]"));
    return;
  }
  const Argument list[] = {{"count", count}};
  const ArrayArguments arrays("KVCache.rollback", list, cache.config().dtype);
  cache.rollback(arrays.integers(0, cache.config().batch_size).data());
}

void reorder(SharedCache& shared, py::handle index) {
  KVCache& cache = shared.cache;
  const Argument list[] = {{"index", index}};
  const ArrayArguments arrays("KVCache.reorder", list, cache.config().dtype);
  const std::vector<std::int64_t> sources = arrays.integers(0, cache.config().batch_size);
  const CacheUse use(shared, CacheUse::moves);
  without_gil([&] { cache.reorder(sources.data()); });
}

void keep_last(SharedCache& shared, py::handle count) {
  const std::int64_t kept = integer("KVCache.keep_last", "count", count);
  const CacheUse use(shared, CacheUse::moves);
  without_gil([&] { shared.cache.keep_last(kept); });
}

void clear(SharedCache& shared) {
  const CacheUse use(shared, CacheUse::replaces);
  shared.cache.clear();
}

const KVCache& as_const(py::handle cache) { return py::cast<const SharedCache&>(cache).cache; }

// The lengths as they are now: a view would change under whoever compares before and after.
py::object lengths(const SharedCache& shared) {
  const KVCache& cache = shared.cache;
  const Index batch = cache.config().batch_size;
  py::array_t<std::int64_t> copy(batch);
  if (batch > 0) std::memcpy(copy.mutable_data(), cache.lengths(), static_cast<std::size_t>(copy.nbytes()));
  return copy;
}

template <Index KVCacheConfig::* size>
Index get(const SharedCache& shared) {
  return shared.cache.config().*size;
}

}  // namespace

void bind_kv_cache(py::module_& m) {
  using Config = KVCacheConfig;
  py::class_<SharedCache> kv_cache(m, "KVCache");
  kv_cache.def(py::init(&make_cache), "(batch_size, num_kv_heads, capacity, head_dim, value_head_dim, dtype)")
      .def_static("over", &make_cache_over, py::keep_alive<0, 1>(), py::keep_alive<0, 2>(),
                  "(keys, values, lengths) -> KVCache")
      .def("append", &append, "(key, value, new_lengths) -> None")
      .def("assign", &assign, "(key, value, new_lengths) -> None")
      .def("stored", &stored, "() -> (keys, values, key_scales, value_scales)")
      .def("assign_stored", &assign_stored, "(key, value, key_scale, value_scale, new_lengths) -> None")
      .def("rollback", &rollback, "(count) -> None")
      .def("reorder", &reorder, "(index) -> None")
      .def("keep_last", &keep_last, "(count) -> None")
      .def("clear", &clear, "() -> None")
      .def_property_readonly("keys", [](py::handle self) { return array_over(as_const(self).keys(), self); })
      .def_property_readonly("values", [](py::handle self) { return array_over(as_const(self).values(), self); })
      .def_property_readonly("lengths", &lengths)
      .def_property_readonly("longest", [](const SharedCache& shared) { return shared.cache.longest(); })
      .def_property_readonly("batch_size", &get<&Config::batch_size>)
      .def_property_readonly("num_kv_heads", &get<&Config::num_kv_heads>)
      .def_property_readonly("capacity", &get<&Config::capacity>)
      .def_property_readonly("head_dim", &get<&Config::head_dim>)
      .def_property_readonly("value_head_dim", &get<&Config::value_head_dim>)
      .def_property_readonly("dtype",
                             [](const SharedCache& shared) { return numpy_dtype(shared.cache.config().dtype); });
  py::class_<SharedPagedCache, SharedCache>(m, "PagedKVCache")
      .def(py::init(&make_paged_cache),
           "(num_pages, page_size, batch_size, num_kv_heads, head_dim, value_head_dim, dtype)")
      .def("fork", &fork, "(sequence, into, length) -> into")
      .def("release", &release, "(sequence) -> None")
      .def("stored_pages", &stored_pages, "() -> (keys, values), and of int8 (keys, values, key_scales, value_scales)")
      .def("assign_pages", &assign_pages, "(key, value, key_scale, value_scale, page_table, lengths) -> None")
      .def(
          "check", [](const SharedPagedCache& shared) { return shared.paged().check_pages(); }, "() -> bool")
      .def_property_readonly("keys",
                             [](SharedPagedCache& shared) {
                               const CacheUse use(shared, CacheUse::reads);
                               return copy_of(shared.cache, std::as_const(shared.cache).keys(), &KVCache::copy_keys);
                             })
      .def_property_readonly("values",
                             [](SharedPagedCache& shared) {
                               const CacheUse use(shared, CacheUse::reads);
                               return copy_of(shared.cache, std::as_const(shared.cache).values(),
                                              &KVCache::copy_values);
                             })
      .def_property_readonly("num_pages", [](const SharedPagedCache& shared) { return shared.paged().num_pages(); })
      .def_property_readonly("page_size", [](const SharedPagedCache& shared) { return shared.paged().page_size(); })
      .def_property_readonly("free_pages", [](const SharedPagedCache& shared) { return shared.paged().free_pages(); })
      .def_property_readonly("page_table", &page_table);
}

}  // namespace mha::bindings

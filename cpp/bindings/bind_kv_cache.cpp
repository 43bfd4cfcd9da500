// The KVCache.
#include <mha/kv_cache.hpp>

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

std::unique_ptr<SharedCache> make_cache(py::handle batch_size, py::handle num_kv_heads, py::handle capacity,
                                        py::handle head_dim, py::handle value_head_dim, py::handle dtype) {
  KVCacheConfig config;
  config.batch_size = integer("KVCache", "batch_size", batch_size);
  config.num_kv_heads = integer("KVCache", "num_kv_heads", num_kv_heads);
  config.capacity = integer("KVCache", "capacity", capacity);
  config.head_dim = integer("KVCache", "head_dim", head_dim);
  if (!value_head_dim.is_none()) {
    config.value_head_dim = integer("KVCache", "value_head_dim", value_head_dim);
    if (config.value_head_dim == 0)  // which is no choice in C++
      throw py::value_error(describe("KVCache", "value_head_dim", "at least 1", value_head_dim));
  }
  config.dtype = dtype_from("KVCache", dtype);
  return std::make_unique<SharedCache>(config);
}

// append() and assign() take the same arguments.
using Write = void (KVCache::*)(const TensorView&, const TensorView&, const std::int64_t*);

void write(SharedCache& shared, const char* function, Write how, CacheUse::Kind kind, py::handle key, py::handle value,
           py::handle new_lengths) {
  KVCache& cache = shared.cache;
  const Argument list[] = {{"key", key}, {"value", value}, {"new_lengths", new_lengths}};
  const ArrayArguments arrays(function, list, cache.config().dtype, "the cache");
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
  py::class_<SharedCache>(m, "KVCache")
      .def(py::init(&make_cache), "(batch_size, num_kv_heads, capacity, head_dim, value_head_dim, dtype)")
      .def("append", &append, "(key, value, new_lengths) -> None")
      .def("assign", &assign, "(key, value, new_lengths) -> None")
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
}

}  // namespace mha::bindings

// The MultiHeadAttention layer.
#include <mha/multi_head_attention.hpp>

#include <optional>
#include <utility>

#include "array_view.hpp"
#include "bindings.hpp"
#include "layer.hpp"
#include "ragged_argument.hpp"
#include "scalars.hpp"
#include "score_options.hpp"
#include "without_gil.hpp"

namespace mha::bindings {
namespace {

// `sizes` are the fields of MultiHeadAttentionConfig in their order, `projections` the maps of query, key, value and
// out, `added` is (key, value), both None or neither; norms and `rotary` are null for None.
Layer make_layer(const py::tuple& sizes, const py::tuple& projections, const py::tuple& added, bool add_zero_attn,
                 const std::string& weight_dtype, const Norm* query_norm, const Norm* key_norm,
                 const RotaryEmbedding* rotary) {
  const char* const function = "MultiHeadAttention";
  if (sizes.size() != 8 || projections.size() != 4 || added.size() != 2)
    throw py::type_error("MultiHeadAttention takes 8 sizes, 4 projections and an added key and value");
  const auto size = [&](std::size_t i) { return sizes[i].cast<Index>(); };
  const auto projection = [&](std::size_t i) { return linear_weights(function, projections[i]); };
  MultiHeadAttentionWeights weights = {projection(0), projection(1), projection(2), projection(3)};
  const Argument list[] = {{"added_key", added[0]}, {"added_value", added[1]}};
  const DType dtype = layer_dtype_of(weights.query);
  const ArrayArguments arrays(function, list, dtype);
  weights.added_key = arrays.optional_tensor(0, 1, 1);
  weights.added_value = arrays.optional_tensor(1, 1, 1);

  MultiHeadAttentionConfig config = {size(0), size(1), size(2), size(3),         size(4),
                                     size(5), size(6), size(7), arrays.given(0), add_zero_attn};
  config.weight_format = format_of(weight_dtype, dtype);
  QueryKeySteps steps;
  if (query_norm) steps.query_norm = *query_norm;
  if (key_norm) steps.key_norm = *key_norm;
  if (rotary) steps.rotary = *rotary;
  return {MultiHeadAttention(config, weights, steps),
          {LinearShape(weights.query), LinearShape(weights.key), LinearShape(weights.value), LinearShape(weights.out)}};
}

// A parameter of the type of a cache would make pybind11 try None twice, at the price of two exceptions.
SharedCache* cache_of_call(py::handle given) { return given.is_none() ? nullptr : &py::cast<SharedCache&>(given); }

// Without a cache key and value are given; with one they are None if nothing is appended.
py::object forward(const Layer& layer, py::handle query, py::handle key, py::handle value,
                   const py::dict& given_options, py::handle given_cache, py::handle new_lengths,
                   py::handle need_weights, py::handle out, py::handle num_threads) {
  const char* const function = "MultiHeadAttention";
  const GivenOptions given(function, given_options);
  const auto list = with_options(
      given, {{"query", query}, {"key", key}, {"value", value}, {"out", out}, {"new_lengths", new_lengths}});
  const ArrayArguments arrays(function, list, layer.attention.dtype());
  const TensorView q = arrays.tensor(0, 2, 3);
  SharedCache* const shared = cache_of_call(given_cache);
  KVCache* const cache = shared ? &shared->cache : nullptr;
  const bool attends_only = cache && !arrays.given(1);
  const TensorView k = attends_only ? TensorView{} : arrays.tensor(1, 2, 3);
  const TensorView v = attends_only ? TensorView{} : arrays.tensor(2, 2, 3);
  const NewLengths counts(arrays, 4, q);
  const ScoreOptions options(given, arrays, 5, num_threads, q.rank == 3 ? q.extents[0] : 1, q);
  const bool with_weights = boolean(function, "need_weights", need_weights);

  const MultiHeadAttentionConfig& config = layer.attention.config();
  std::optional<CacheUse> use;
  if (shared) use.emplace(*shared, attends_only ? CacheUse::reads : CacheUse::changes);
  const NewArray result = output_or_new(arrays, 3, out, 2, 3, q, config.out_dim);
  NewArray weights;
  if (with_weights) {
    // [B, H, Tq, Tk + added], without B if query has none.
    const Index keys = cache ? keys_after(*cache, q, k ? k.extents[k.rank - 2] : 0, counts) : k.extents[k.rank - 2];
    const Index extents[kMaxRank] = {q.extents[0], config.num_heads, q.extents[q.rank - 2], keys + config.added_keys()};
    weights = arrays.new_array(q.dtype, q.rank + 1, q.rank == 3 ? extents : extents + 1);
  }
  warn_if_forked();
  without_gil([&] {
    if (!cache)
      layer.attention.forward(q, k, v, result.view, weights.view, options);
    else if (attends_only)
      layer.attention.attend(q, *cache, result.view, weights.view, options);
    else
      layer.attention.forward(q, k, v, *cache, result.view, weights.view, options, counts.data());
  });
  if (!with_weights) return result.array;
  return py::make_tuple(result.array, weights.array);
}

py::object forward_varlen(const Layer& layer, py::handle query, py::handle key, py::handle value,
                          py::handle cu_seqlens_q, py::handle cu_seqlens_k, const py::dict& given_options,
                          py::handle given_cache, py::handle sequences, py::handle out, py::handle num_threads) {
  const char* const function = "MultiHeadAttention";
  const GivenOptions given(function, given_options);
  const auto list = with_options(given, {{"query", query},
                                         {"key", key},
                                         {"value", value},
                                         {"cu_seqlens_q", cu_seqlens_q},
                                         {"cu_seqlens_k", cu_seqlens_k},
                                         {"out", out},
                                         {"sequences", sequences}});
  const ArrayArguments arrays(function, list, layer.attention.dtype());
  const TensorView q = arrays.tensor(0, 2, 2);
  const TensorView k = arrays.tensor(1, 2, 2);
  const TensorView v = arrays.tensor(2, 2, 2);
  const RaggedArgument batch(arrays, 3, 4, 6);
  const ScoreOptions options(given, arrays, 7, num_threads, batch.size, q);

  std::optional<CacheUse> use;
  SharedCache* const shared = cache_of_call(given_cache);
  if (shared) use.emplace(*shared, CacheUse::changes);
  const NewArray result = output_or_new(arrays, 5, out, 2, 2, q, layer.attention.config().out_dim);
  warn_if_forked();
  without_gil([&] {
    if (shared)
      layer.attention.forward_varlen(q, k, v, batch, shared->cache, result.view, options);
    else
      layer.attention.forward_varlen(q, k, v, batch, result.view, options);
  });
  return result.array;
}

// A ragged batch has offsets, a dense one None. The rows of the record lie as [H, B, T, D]; the heads are [B, Tq, H Dv].
py::tuple forward_and_record(const Layer& layer, py::handle query, py::handle key, py::handle value,
                             py::handle cu_seqlens_q, py::handle cu_seqlens_k, const py::dict& given_options,
                             py::handle num_threads) {
  const char* const function = "MultiHeadAttention";
  const GivenOptions given(function, given_options);
  const auto list = with_options(given, {{"query", query},
                                         {"key", key},
                                         {"value", value},
                                         {"cu_seqlens_q", cu_seqlens_q},
                                         {"cu_seqlens_k", cu_seqlens_k},
                                         {"out", py::none()}});
  const DType dtype = layer.attention.dtype();
  const ArrayArguments arrays(function, list, dtype);
  const bool is_ragged = arrays.given(3);
  const int most_rank = is_ragged ? 2 : 3;
  const TensorView q = arrays.tensor(0, 2, most_rank), k = arrays.tensor(1, 2, most_rank),
                   v = arrays.tensor(2, 2, most_rank);
  std::optional<RaggedArgument> batch;
  if (is_ragged) batch.emplace(arrays, 3, 4);
  const Index sequences = q.rank == 3 ? q.extents[0] : 1;
  const ScoreOptions options(given, arrays, 6, num_threads, is_ragged ? batch->size : sequences, q);

  const MultiHeadAttentionConfig& config = layer.attention.config();
  const Index queries = q.extents[q.rank - 2], keys = k.extents[k.rank - 2];
  const auto rows = [&](Index heads, Index length, Index columns) {
    const Index extents[] = {heads, sequences, length, columns};
    NewArray array = arrays.new_array(dtype, 4, extents);
    std::swap(array.view.extents[0], array.view.extents[1]);
    std::swap(array.view.strides[0], array.view.strides[1]);
    return array;
  };
  const NewArray q_rows = rows(config.num_heads, queries, config.head_dim),
                 k_rows = rows(config.num_kv_heads, keys, config.head_dim),
                 v_rows = rows(config.num_kv_heads, keys, config.value_head_dim);
  const Index of_heads[] = {sequences, queries, config.num_heads * config.value_head_dim},
              of_lse[] = {sequences, config.num_heads, queries};
  const NewArray heads = arrays.new_array(dtype, 3, of_heads), lse = arrays.new_array(accumulator_of(dtype), 3, of_lse);
  const NewArray result = output_or_new(arrays, 5, py::none(), 2, 3, q, config.out_dim);
  const AttentionRecord record = {q_rows.view, k_rows.view, v_rows.view, heads.view, lse.view};
  warn_if_forked();
  without_gil([&] {
    layer.attention.forward_and_record(q, k, v, is_ragged ? &*batch : nullptr, record, result.view, options);
  });
  return py::make_tuple(result.array, q_rows.array, k_rows.array, v_rows.array, heads.array, lse.array);
}

void append_to(const Layer& layer, SharedCache& shared, py::handle key, py::handle value, py::handle new_lengths,
               py::handle num_threads) {
  const char* const function = "MultiHeadAttention.append_to";
  const Argument list[] = {{"key", key}, {"value", value}, {"new_lengths", new_lengths}};
  const ArrayArguments arrays(function, list, layer.attention.dtype());
  const TensorView k = arrays.tensor(0, 2, 3);
  const TensorView v = arrays.tensor(1, 2, 3);
  const NewLengths counts(arrays, 2, k);
  const ThreadsArgument threads(function, num_threads);
  warn_if_forked();
  const CacheUse use(shared, CacheUse::changes);
  without_gil([&] { layer.attention.append_to(shared.cache, k, v, counts.data(), threads); });
}

// The constructor's projections and added.
py::tuple copy_weights(const Layer& layer) {
  const MultiHeadAttentionConfig& config = layer.attention.config();
  const DType dtype = layer.attention.dtype();
  const auto formats = layer.attention.weight_formats();
  const auto copy = [&](std::size_t i) { return NewLinear(layer.projections[i], dtype, formats[i]); };
  const NewLinear copies[] = {copy(0), copy(1), copy(2), copy(3)};  // in the order of Layer::projections
  const NewArray added_key = new_vector(dtype, config.num_kv_heads * config.head_dim, config.add_bias_kv);
  const NewArray added_value = new_vector(dtype, config.num_kv_heads * config.value_head_dim, config.add_bias_kv);
  layer.attention.copy_weights(
      {copies[0].views, copies[1].views, copies[2].views, copies[3].views, added_key.view, added_value.view});
  return py::make_tuple(py::make_tuple(copies[0].arrays, copies[1].arrays, copies[2].arrays, copies[3].arrays),
                        py::make_tuple(added_key.array, added_value.array));
}

// The names of the formats of the matrices, in the order of the projections.
py::tuple formats_of(const Layer& layer) {
  const auto [query, key, value, out] = layer.attention.weight_formats();
  return py::make_tuple(name_of(query), name_of(key), name_of(value), name_of(out));
}

// The norms of query and key, or None.
py::tuple norms_of_heads(const Layer& layer) {
  const QueryKeySteps& steps = layer.attention.steps();
  const auto object = [](const std::optional<Norm>& norm) { return norm ? py::cast(*norm) : py::none(); };
  return py::make_tuple(object(steps.query_norm), object(steps.key_norm));
}

// A read-only property for one size.
template <Index MultiHeadAttentionConfig::* size>
Index get(const Layer& layer) {
  return layer.attention.config().*size;
}

}  // namespace

void bind_multi_head_attention(py::module_& m) {
  using Config = MultiHeadAttentionConfig;
  py::class_<Layer>(m, "MultiHeadAttention")
      .def(py::init(&make_layer),
           "(sizes, projections, added, add_zero_attn, weight_dtype, query_norm, key_norm, rotary): projections "
           "(query, key, value, out), "
           "each "
           "(weight, bias, scale), and added (key, value), with None for what the layer lacks")
      .def("forward", &forward,
           "(query, key, value, options, cache, new_lengths, need_weights, out, num_threads) -> out or (out, weights)")
      .def("forward_varlen", &forward_varlen,
           "(query, key, value, cu_seqlens_q, cu_seqlens_k, options, cache, sequences, out, num_threads) -> out")
      .def("forward_and_record", &forward_and_record,
           "(query, key, value, cu_seqlens_q or None, cu_seqlens_k, options, num_threads) -> (out, query, key, value, "
           "heads, lse)")
      .def("append_to", &append_to, "(cache, key, value, new_lengths, num_threads) -> None")
      .def("weights", &copy_weights, "() -> copies, (projections, added)")
      .def_property_readonly("formats", &formats_of)
      .def_property_readonly("norms", &norms_of_heads)
      .def_property_readonly("embed_dim", &get<&Config::embed_dim>)
      .def_property_readonly("num_heads", &get<&Config::num_heads>)
      .def_property_readonly("num_kv_heads", &get<&Config::num_kv_heads>)
      .def_property_readonly("head_dim", &get<&Config::head_dim>)
      .def_property_readonly("value_head_dim", &get<&Config::value_head_dim>)
      .def_property_readonly("kdim", &get<&Config::kdim>)
      .def_property_readonly("vdim", &get<&Config::vdim>)
      .def_property_readonly("out_dim", &get<&Config::out_dim>)
      .def_property_readonly("dtype", [](const Layer& layer) { return numpy_dtype(layer.attention.dtype()); });
}

}  // namespace mha::bindings

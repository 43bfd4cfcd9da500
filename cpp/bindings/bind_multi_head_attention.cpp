// The MultiHeadAttention layer.
#include <pybind11/gil_simple.h>
#include <mha/multi_head_attention.hpp>

#include <optional>

#include "array_view.hpp"
#include "bindings.hpp"
#include "layer.hpp"
#include "ragged_argument.hpp"
#include "scalars.hpp"
#include "score_options.hpp"

namespace mha::bindings {
namespace {

Layer make_layer(Index embed_dim, Index num_heads, Index num_kv_heads, Index head_dim, Index value_head_dim, Index kdim,
                 Index vdim, Index out_dim, py::handle query_weight, py::handle key_weight, py::handle value_weight,
                 py::handle out_weight, py::handle query_bias, py::handle key_bias, py::handle value_bias,
                 py::handle out_bias, py::handle added_key, py::handle added_value, py::handle query_scale,
                 py::handle key_scale, py::handle value_scale, py::handle out_scale, bool add_zero_attn,
                 const std::string& weight_dtype) {
  const Argument list[kNumWeights] = {
      {"query_weight", query_weight}, {"key_weight", key_weight},   {"value_weight", value_weight},
      {"out_weight", out_weight},     {"query_bias", query_bias},   {"key_bias", key_bias},
      {"value_bias", value_bias},     {"out_bias", out_bias},       {"added_key", added_key},
      {"added_value", added_value},   {"query_scale", query_scale}, {"key_scale", key_scale},
      {"value_scale", value_scale},   {"out_scale", out_scale}};
  const ArrayArguments arrays = weight_arguments("MultiHeadAttention", list, query_scale);
  const auto vector = [&](int i) { return arrays.optional_tensor(i, 1, 1); };
  const MultiHeadAttentionWeights weights = {weight_matrix(arrays, 0, 10),
                                             weight_matrix(arrays, 1, 11),
                                             weight_matrix(arrays, 2, 12),
                                             weight_matrix(arrays, 3, 13),
                                             vector(4),
                                             vector(5),
                                             vector(6),
                                             vector(7),
                                             vector(8),
                                             vector(9),
                                             vector(10),
                                             vector(11),
                                             vector(12),
                                             vector(13)};
  MultiHeadAttentionConfig config = {embed_dim, num_heads, num_kv_heads, head_dim,        value_head_dim,
                                     kdim,      vdim,      out_dim,      arrays.given(8), add_zero_attn};
  config.weight_format = format_of(weight_dtype, weights.query_weight.dtype);
  Layer layer = {MultiHeadAttention(config, weights), {}};
  for (int i = 0; i < kFirstScale; ++i) layer.has_weight[i] = arrays.given(i);
  for (int i = kFirstScale; i < kNumWeights; ++i) layer.has_weight[i] = config.weight_format == WeightFormat::int8;
  return layer;
}

// Without a cache key and value are given; with one they are None if nothing is appended.
py::object forward(const Layer& layer, py::handle query, py::handle key, py::handle value,
                   const py::dict& given_options, SharedCache* shared, py::handle new_lengths, py::handle need_weights,
                   py::handle out, py::handle num_threads) {
  const char* const function = "MultiHeadAttention";
  const GivenOptions given(function, given_options);
  const auto list = with_options(
      given, {{"query", query}, {"key", key}, {"value", value}, {"out", out}, {"new_lengths", new_lengths}});
  const ArrayArguments arrays(function, list, layer.attention.dtype());
  const TensorView q = arrays.tensor(0, 2, 3);
  KVCache* const cache = shared ? &shared->cache : nullptr;
  const bool attends_only = cache && !arrays.given(1);
  const TensorView k = attends_only ? TensorView{} : arrays.tensor(1, 2, 3);
  const TensorView v = attends_only ? TensorView{} : arrays.tensor(2, 2, 3);
  const NewLengths counts(arrays, 4, q);
  const ScoreOptions options(given, arrays, 5, num_threads, q.rank == 3 ? q.extents[0] : 1);
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
    weights = new_array(q.dtype, q.rank + 1, q.rank == 3 ? extents : extents + 1);
  }
  warn_if_forked();
  {
    const py::gil_scoped_release_simple unlocked;
    if (!cache)
      layer.attention.forward(q, k, v, result.view, weights.view, options);
    else if (attends_only)
      layer.attention.attend(q, *cache, result.view, weights.view, options);
    else
      layer.attention.forward(q, k, v, *cache, result.view, weights.view, options, counts.data());
  }
  if (!with_weights) return result.array;
  return py::make_tuple(result.array, weights.array);
}

py::object forward_varlen(const Layer& layer, py::handle query, py::handle key, py::handle value,
                          py::handle cu_seqlens_q, py::handle cu_seqlens_k, const py::dict& given_options,
                          py::handle out, py::handle num_threads) {
  const char* const function = "MultiHeadAttention";
  const GivenOptions given(function, given_options);
  const auto list = with_options(given, {{"query", query},
                                         {"key", key},
                                         {"value", value},
                                         {"cu_seqlens_q", cu_seqlens_q},
                                         {"cu_seqlens_k", cu_seqlens_k},
                                         {"out", out}});
  const ArrayArguments arrays(function, list, layer.attention.dtype());
  const TensorView q = arrays.tensor(0, 2, 2);
  const TensorView k = arrays.tensor(1, 2, 2);
  const TensorView v = arrays.tensor(2, 2, 2);
  const RaggedArgument batch(arrays, 3, 4);
  const ScoreOptions options(given, arrays, 6, num_threads, batch.size);

  const NewArray result = output_or_new(arrays, 5, out, 2, 2, q, layer.attention.config().out_dim);
  warn_if_forked();
  {
    const py::gil_scoped_release_simple unlocked;
    layer.attention.forward_varlen(q, k, v, batch, result.view, options);
  }
  return result.array;
}

void append_to(const Layer& layer, SharedCache& shared, py::handle key, py::handle value, py::handle new_lengths,
               py::handle num_threads) {
  const char* const function = "MultiHeadAttention.append_to";
  const Argument list[] = {{"key", key}, {"value", value}, {"new_lengths", new_lengths}};
  const ArrayArguments arrays(function, list, layer.attention.dtype());
  const TensorView k = arrays.tensor(0, 2, 3);
  const TensorView v = arrays.tensor(1, 2, 3);
  const NewLengths counts(arrays, 2, k);
  const int threads = positive(function, "num_threads", num_threads, 0);
  warn_if_forked();
  const CacheUse use(shared, CacheUse::changes);
  const py::gil_scoped_release_simple unlocked;
  layer.attention.append_to(shared.cache, k, v, counts.data(), threads);
}

// The weights in the order of the constructor's arguments.
py::tuple copy_weights(const Layer& layer) {
  const MultiHeadAttentionConfig& config = layer.attention.config();
  const Index query_columns = config.num_heads * config.head_dim;
  const Index key_columns = config.num_kv_heads * config.head_dim;
  const Index value_columns = config.num_kv_heads * config.value_head_dim;
  const Index head_columns = config.num_heads * config.value_head_dim;
  const Index extents[kNumWeights][2] = {{query_columns, config.embed_dim},
                                         {key_columns, config.kdim},
                                         {value_columns, config.vdim},
                                         {config.out_dim, head_columns},
                                         {query_columns},
                                         {key_columns},
                                         {value_columns},
                                         {config.out_dim},
                                         {key_columns},
                                         {value_columns},
                                         {query_columns},
                                         {key_columns},
                                         {value_columns},
                                         {config.out_dim}};
  const DType dtype = layer.attention.dtype();
  const DType dtype_of_matrices = layer.has_weight[kFirstScale] ? DType::int8 : dtype;
  NewArray copies[kNumWeights];
  py::tuple result(kNumWeights);
  for (int i = 0; i < kNumWeights; ++i) {
    if (layer.has_weight[i]) copies[i] = new_array(i < 4 ? dtype_of_matrices : dtype, i < 4 ? 2 : 1, extents[i]);
    result[static_cast<std::size_t>(i)] = layer.has_weight[i] ? copies[i].array : py::object(py::none());
  }
  layer.attention.copy_weights({copies[0].view, copies[1].view, copies[2].view, copies[3].view, copies[4].view,
                                copies[5].view, copies[6].view, copies[7].view, copies[8].view, copies[9].view,
                                copies[10].view, copies[11].view, copies[12].view, copies[13].view});
  return result;
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
           "(embed_dim, num_heads, num_kv_heads, head_dim, value_head_dim, kdim, vdim, out_dim, query_weight, "
           "key_weight, value_weight, out_weight, query_bias, key_bias, value_bias, out_bias, added_key, added_value, "
           "query_scale, key_scale, value_scale, out_scale, add_zero_attn, weight_dtype)")
      .def("forward", &forward,
           "(query, key, value, options, cache, new_lengths, need_weights, out, num_threads) -> out or (out, weights)")
      .def("forward_varlen", &forward_varlen,
           "(query, key, value, cu_seqlens_q, cu_seqlens_k, options, out, num_threads) -> out")
      .def("append_to", &append_to, "(cache, key, value, new_lengths, num_threads) -> None")
      .def("weights", &copy_weights, "() -> copies of the weights and scales, None for one that the layer lacks")
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

// The blocks around the attention layer: LayerNorm, FeedForward, and stacks of encoder and decoder layers.
#include <pybind11/gil_simple.h>
#include <mha/positions.hpp>
#include <mha/transformer.hpp>

#include <deque>
#include <optional>
#include <string_view>
#include <utility>

#include "array_view.hpp"
#include "bindings.hpp"
#include "layer.hpp"
#include "ragged_argument.hpp"
#include "scalars.hpp"
#include "score_options.hpp"

namespace mha::bindings {
namespace {

constexpr std::pair<const char*, Activation> kActivations[] = {
    {"relu", Activation::relu}, {"gelu", Activation::gelu}, {"gelu_tanh", Activation::gelu_tanh}};

Activation activation_called(py::handle name) {
  const char* const rule = "'relu', 'gelu' or 'gelu_tanh'";
  if (!PyUnicode_Check(name.ptr())) throw py::type_error(describe("FeedForward", "activation", rule, name));
  for (const auto& [known, activation] : kActivations)
    if (PyUnicode_CompareWithASCIIString(name.ptr(), known) == 0) return activation;
  throw py::value_error(describe("FeedForward", "activation", rule, name));
}

const char* name_of(Activation activation) {
  for (const auto& [name, known] : kActivations)
    if (known == activation) return name;
  return "none";
}

LayerNorm make_norm(py::handle weight, py::handle bias, py::handle eps) {
  const Argument list[] = {{"weight", weight}, {"bias", bias}};
  const ArrayArguments arrays("LayerNorm", list);
  return LayerNorm(arrays.tensor(0, 1, 1), arrays.optional_tensor(1, 1, 1), real("LayerNorm", "eps", eps, 1e-5));
}

FeedForward make_feed_forward(py::handle weight1, py::handle bias1, py::handle weight2, py::handle bias2,
                              py::handle scale1, py::handle scale2, py::handle activation,
                              const std::string& weight_dtype) {
  const Argument list[] = {{"weight1", weight1}, {"bias1", bias1},   {"weight2", weight2},
                           {"bias2", bias2},     {"scale1", scale1}, {"scale2", scale2}};
  const ArrayArguments arrays = weight_arguments("FeedForward", list, scale1);
  const auto vector = [&](int i) { return arrays.optional_tensor(i, 1, 1); };
  const FeedForwardWeights weights = {
      weight_matrix(arrays, 0, 4), vector(1), weight_matrix(arrays, 2, 5), vector(3), vector(4), vector(5)};
  return FeedForward(weights, activation_called(activation), format_of(weight_dtype, weights.weight1.dtype));
}

// LayerNorm and FeedForward.
template <class RowLayer>
py::object forward_rows(const char* function, const RowLayer& layer, py::handle x, py::handle out,
                        py::handle num_threads) {
  const Argument list[] = {{"x", x}, {"out", out}};
  const ArrayArguments arrays(function, list, layer.dtype());
  const TensorView rows = arrays.tensor(0, 1, kMaxRank);
  const int threads = positive(function, "num_threads", num_threads, 0);
  const NewArray result = output_or_new(arrays, 1, out, 1, kMaxRank, rows, rows.extents[rows.rank - 1]);
  warn_if_forked();
  {
    const py::gil_scoped_release_simple unlocked;
    layer.forward(rows, result.view, threads);
  }
  return result.array;
}

py::tuple norm_weights(const LayerNorm& norm) {
  const Index extents[] = {norm.embed_dim()};
  const NewArray weight = new_array(norm.dtype(), 1, extents);
  const NewArray bias = norm.has_bias() ? new_array(norm.dtype(), 1, extents) : NewArray{py::none(), {}};
  norm.copy_weights(weight.view, bias.view);
  return py::make_tuple(weight.array, bias.array);
}

py::tuple feed_forward_weights(const FeedForward& layer) {
  const Index in = layer.embed_dim(), hidden = layer.feedforward_dim();
  const Index up[] = {hidden, in}, down[] = {in, hidden};
  const bool is_int8 = layer.weight_format() == WeightFormat::int8;
  const auto vector = [&](bool given, const Index* extents) {
    return given ? new_array(layer.dtype(), 1, extents) : NewArray{py::none(), {}};
  };
  const DType dtype_of_matrices = is_int8 ? DType::int8 : layer.dtype();
  const NewArray weight1 = new_array(dtype_of_matrices, 2, up), weight2 = new_array(dtype_of_matrices, 2, down);
  const NewArray bias1 = vector(layer.has_bias1(), up), bias2 = vector(layer.has_bias2(), down);
  const NewArray scale1 = vector(is_int8, up), scale2 = vector(is_int8, down);
  layer.copy_weights({weight1.view, bias1.view, weight2.view, bias2.view, scale1.view, scale2.view});
  return py::make_tuple(weight1.array, bias1.array, weight2.array, bias2.array, scale1.array, scale2.array);
}

EncoderLayer make_encoder_layer(const Layer& self_attention, const FeedForward& feed_forward, const LayerNorm& norm1,
                                const LayerNorm& norm2, bool norm_first) {
  return {self_attention.attention, feed_forward, norm1, norm2, norm_first};
}

DecoderLayer make_decoder_layer(const Layer& self_attention, const Layer& cross_attention,
                                const FeedForward& feed_forward, const LayerNorm& norm1, const LayerNorm& norm2,
                                const LayerNorm& norm3, bool norm_first) {
  return {self_attention.attention, cross_attention.attention, feed_forward, norm1, norm2, norm3, norm_first};
}

template <class Stack, class StackLayer>
Stack make_stack(const py::list& layers, const LayerNorm* norm) {
  std::vector<StackLayer> parts;
  for (py::handle layer : layers) parts.push_back(layer.cast<const StackLayer&>());
  return Stack(parts.data(), static_cast<Index>(parts.size()), norm);
}

// A list of caches, one for each layer, or None; in use as long as this lives.
class CacheList {
 public:
  CacheList(const char* function, const char* name, py::handle list, Index layers, CacheUse::Kind kind) {
    if (list.is_none()) return;
    const auto caches = py::reinterpret_borrow<py::sequence>(list);
    if (static_cast<Index>(py::len(caches)) != layers)
      throw py::value_error(std::string(function) + ": " + name + " must be one cache for each layer, " +
                            std::to_string(layers) + "; got " + std::to_string(py::len(caches)));
    for (py::handle item : caches) {
      auto& shared = item.cast<SharedCache&>();
      // One that is there twice is for the library to complain about.
      if (std::find(caches_.begin(), caches_.end(), &shared.cache) == caches_.end()) uses_.emplace_back(shared, kind);
      caches_.push_back(&shared.cache);
    }
  }

  explicit operator bool() const { return !caches_.empty(); }
  KVCache& operator[](std::size_t i) const { return *caches_[i]; }
  KVCache* const* data() const { return caches_.empty() ? nullptr : caches_.data(); }

 private:
  std::vector<KVCache*> caches_;
  std::deque<CacheUse> uses_;
};

Index sequences_in(const TensorView& x) { return x.rank == 3 ? x.extents[0] : 1; }

py::object encode(const Encoder& encoder, py::handle x, const py::dict& given_options, py::handle cu_seqlens,
                  py::handle caches, py::handle new_lengths, py::handle need_weights, py::handle out,
                  py::handle num_threads) {
  const char* const function = "Encoder";
  const GivenOptions given(function, given_options);
  const auto list =
      with_options(given, {{"x", x}, {"cu_seqlens", cu_seqlens}, {"new_lengths", new_lengths}, {"out", out}});
  const ArrayArguments arrays(function, list, encoder.dtype(), "the encoder");
  const bool is_ragged = arrays.given(1), with_weights = boolean(function, "need_weights", need_weights);
  if (is_ragged && (with_weights || !caches.is_none()))
    throw py::value_error("Encoder: cu_seqlens cannot be combined with need_weights or caches");
  const TensorView rows = is_ragged ? arrays.tensor(0, 2, 2) : arrays.tensor(0, 2, 3);
  const std::vector<std::int64_t> offsets = is_ragged ? arrays.offsets(1) : std::vector<std::int64_t>{};
  const Index batch = is_ragged ? static_cast<Index>(offsets.size()) - 1 : sequences_in(rows);
  const ScoreOptions options(given, arrays, 4, num_threads, batch);
  const NewLengths counts(arrays, 2, rows);
  const CacheList used(function, "caches", caches, encoder.num_layers(), CacheUse::changes);
  const NewArray result = output_or_new(arrays, 3, out, 2, kMaxRank, rows, rows.extents[rows.rank - 1]);

  py::list weights;
  std::vector<MutableTensorView> weight_views;
  if (with_weights) {
    const Index length = rows.extents[rows.rank - 2];
    for (Index i = 0; i < encoder.num_layers(); ++i) {
      const MultiHeadAttentionConfig& sizes = encoder.layer(i).self_attention.config();
      const Index keys = used ? keys_after(used[static_cast<std::size_t>(i)], rows, length, counts) : length;
      const Index extents[] = {rows.extents[0], sizes.num_heads, length, keys + sizes.added_keys()};
      const NewArray of_layer = new_array(rows.dtype, rows.rank + 1, rows.rank == 3 ? extents : extents + 1);
      weight_views.push_back(of_layer.view);
      weights.append(of_layer.array);
    }
  }
  EncoderExtras extras;
  extras.weights = weight_views.empty() ? nullptr : weight_views.data();
  extras.caches = used.data();
  extras.new_lengths = counts.data();
  warn_if_forked();
  {
    const py::gil_scoped_release_simple unlocked;
    if (is_ragged)
      encoder.forward_varlen(rows, offsets.data(), batch, result.view, options);
    else
      encoder.forward(rows, result.view, options, extras);
  }
  if (weight_views.empty()) return result.array;
  return py::make_tuple(result.array, weights);
}

// What messages call the options of the attention to the memory.
constexpr const char* memory_name(std::string_view option, const char* usual) {
  return option == "key_lengths" ? "memory_lengths" : usual;
}
constexpr const char* kMemoryOptionNames[] = {
#define MHA_OPTION(field, type, argument, reading) memory_name(#argument, "memory_" #argument),
#include <mha/attention_options.def>
#undef MHA_OPTION
};

py::object decode(const Decoder& decoder, py::handle x, py::handle memory, const py::dict& given_options,
                  const py::dict& given_memory_options, py::handle caches, py::handle memory_caches,
                  py::handle new_lengths, py::handle out, py::handle num_threads) {
  const char* const function = "Decoder";
  const GivenOptions given(function, given_options), of_memory(function, given_memory_options, kMemoryOptionNames);
  const auto list = with_options(given, {{"x", x}, {"memory", memory}, {"new_lengths", new_lengths}, {"out", out}});
  const auto memory_list = with_options(of_memory, {{"memory", memory}});
  const ArrayArguments arrays(function, list, decoder.dtype(), "the decoder");
  const ArrayArguments memory_arrays(function, memory_list, decoder.dtype(), "the decoder");
  const TensorView rows = arrays.tensor(0, 2, 3);
  const ScoreOptions options(given, arrays, 4, num_threads, sequences_in(rows));
  const ScoreOptions memory_options(of_memory, memory_arrays, 1, num_threads, sequences_in(rows));
  const NewLengths counts(arrays, 2, rows);
  const CacheList used(function, "caches", caches, decoder.num_layers(), CacheUse::changes);
  const CacheList read(function, "memory_caches", memory_caches, decoder.num_layers(), CacheUse::reads);

  DecoderContext context;
  context.memory = arrays.optional_tensor(1, 2, 3);
  context.memory_caches = read.data();
  context.caches = used.data();
  context.new_lengths = counts.data();
  const NewArray result = output_or_new(arrays, 3, out, 2, kMaxRank, rows, rows.extents[rows.rank - 1]);
  warn_if_forked();
  {
    const py::gil_scoped_release_simple unlocked;
    decoder.forward(rows, context, result.view, options, memory_options);
  }
  return result.array;
}

py::object positions(Index length, Index embed_dim, std::int64_t first_position, py::handle dtype) {
  const Index extents[] = {length, embed_dim};
  const NewArray result = new_array(dtype_from(dtype), 2, extents);
  sinusoidal_positions(result.view, first_position);
  return result.array;
}

}  // namespace

void bind_transformer(py::module_& m) {
  py::class_<LayerNorm>(m, "LayerNorm")
      .def(py::init(&make_norm), "(weight, bias, eps)")
      .def(
          "forward",
          [](const LayerNorm& norm, py::handle x, py::handle out, py::handle num_threads) {
            return forward_rows("LayerNorm", norm, x, out, num_threads);
          },
          "(x, out, num_threads) -> out")
      .def("weights", &norm_weights, "() -> copies of weight, and bias or None")
      .def_property_readonly("eps", &LayerNorm::eps)
      .def_property_readonly("dtype", [](const LayerNorm& norm) { return numpy_dtype(norm.dtype()); });
  py::class_<FeedForward>(m, "FeedForward")
      .def(py::init(&make_feed_forward), "(weight1, bias1, weight2, bias2, scale1, scale2, activation, weight_dtype)")
      .def(
          "forward",
          [](const FeedForward& layer, py::handle x, py::handle out, py::handle num_threads) {
            return forward_rows("FeedForward", layer, x, out, num_threads);
          },
          "(x, out, num_threads) -> out")
      .def("weights", &feed_forward_weights,
           "() -> copies of weight1, bias1, weight2, bias2, scale1, scale2, None for one that the layer lacks")
      .def_property_readonly("activation", [](const FeedForward& layer) { return name_of(layer.activation()); })
      .def_property_readonly("dtype", [](const FeedForward& layer) { return numpy_dtype(layer.dtype()); });
  py::class_<EncoderLayer>(m, "EncoderLayer")
      .def(py::init(&make_encoder_layer), "(self_attn, feed_forward, norm1, norm2, norm_first)");
  py::class_<DecoderLayer>(m, "DecoderLayer")
      .def(py::init(&make_decoder_layer), "(self_attn, cross_attn, feed_forward, norm1, norm2, norm3, norm_first)");
  py::class_<Encoder>(m, "Encoder")
      .def(py::init(&make_stack<Encoder, EncoderLayer>), "(layers, norm or None)")
      .def("forward", &encode,
           "(x, options, cu_seqlens, caches, new_lengths, need_weights, out, num_threads) -> out or (out, weights)");
  py::class_<Decoder>(m, "Decoder")
      .def(py::init(&make_stack<Decoder, DecoderLayer>), "(layers, norm or None)")
      .def("forward", &decode,
           "(x, memory, options, memory_options, caches, memory_caches, new_lengths, out, num_threads) -> out");
  m.def("sinusoidal_positions", &positions, "(length, embed_dim, first_position, dtype) -> positions");
}

}  // namespace mha::bindings

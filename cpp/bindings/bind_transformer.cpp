// The parts around the attention layer: norms, Linear, FeedForward, and stacks of transformer layers.
#include <mha/linear.hpp>
#include <mha/positions.hpp>
#include <mha/transformer.hpp>

#include <cstdint>
#include <forward_list>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "activation_names.hpp"
#include "array_view.hpp"
#include "bindings.hpp"
#include "layer.hpp"
#include "ragged_argument.hpp"
#include "scalars.hpp"
#include "score_options.hpp"
#include "without_gil.hpp"

namespace mha::bindings {
namespace {

LayerNorm make_layer_norm(py::handle weight, py::handle bias, py::handle eps) {
  const Argument list[] = {{"weight", weight}, {"bias", bias}};
  const ArrayArguments arrays("LayerNorm", list);
  return LayerNorm(arrays.tensor(0, 1, 1), arrays.optional_tensor(1, 1, 1), real("LayerNorm", "eps", eps, 1e-5));
}

RMSNorm make_rms_norm(py::handle weight, py::handle eps, bool unit_offset) {
  const Argument list[] = {{"weight", weight}};
  const ArrayArguments arrays("RMSNorm", list);
  return RMSNorm(arrays.tensor(0, 1, 1), real("RMSNorm", "eps", eps, 1e-6), unit_offset);
}

Linear make_linear(const py::tuple& given, const std::string& weight_dtype) {
  const LinearWeights weights = linear_weights("Linear", given);
  return Linear(weights, format_of(weight_dtype, layer_dtype_of(weights)));
}

FeedForward make_feed_forward(const py::tuple& linears, py::handle activation, const std::string& weight_dtype) {
  FeedForwardWeights weights;
  const auto read = [&](std::size_t i) {
    return linear_weights("FeedForward", py::reinterpret_borrow<py::tuple>(linears[i]));
  };
  weights.up = read(0);
  weights.down = read(1);
  if (linears.size() > 2) weights.gate = read(2);
  return FeedForward(weights, activation_called("FeedForward", activation),
                     format_of(weight_dtype, layer_dtype_of(weights.up)));
}

// Norms, Linear and FeedForward. `features` are the features of the result.
template <class RowLayer>
py::object forward_rows(const char* function, const RowLayer& layer, Index features, py::handle x, py::handle out,
                        py::handle num_threads) {
  const Argument list[] = {{"x", x}, {"out", out}};
  const ArrayArguments arrays(function, list, layer.dtype());
  const TensorView rows = arrays.tensor(0, 1, kMaxRank);
  const ThreadsArgument threads(function, num_threads);
  const NewArray result = output_or_new(arrays, 1, out, 1, kMaxRank, rows, features);
  warn_if_forked();
  without_gil([&] { layer.forward(rows, result.view, threads); });
  return result.array;
}

// Returns (sum, out), out None without a norm. `sum` may be given, as x or residual itself.
py::tuple add(py::handle x, py::handle residual, const Norm* norm, py::handle sum, py::handle num_threads) {
  const char* const function = "add_and_normalize";
  const Argument list[] = {{"x", x}, {"residual", residual}, {"sum", sum}, {"out", py::none()}};
  const ArrayArguments arrays(function, list);
  const TensorView rows = arrays.tensor(0, 1, kMaxRank), added = arrays.tensor(1, 1, kMaxRank);
  const ThreadsArgument threads(function, num_threads);
  const Index features = rows.extents[rows.rank - 1];
  const NewArray total = output_or_new(arrays, 2, sum, 1, kMaxRank, rows, features);
  const NewArray normed =
      norm ? output_or_new(arrays, 3, py::none(), 1, kMaxRank, rows, features) : NewArray{py::none(), {}};
  warn_if_forked();
  without_gil([&] { add_and_normalize(rows, added, norm, total.view, normed.view, threads); });
  return py::make_tuple(total.array, normed.array);
}

py::tuple norm_weights(const Norm& norm) {
  const NewArray weight = new_vector(norm.dtype(), norm.embed_dim(), true);
  const NewArray bias = new_vector(norm.dtype(), norm.embed_dim(), norm.has_bias());
  norm.copy_weights(weight.view, bias.view);
  return py::make_tuple(weight.array, bias.array);
}

// The names of the formats of the matrices of a FeedForward, in the order of feed_forward_weights().
py::tuple feed_forward_formats(const FeedForward& layer) {
  const char* const up = name_of(layer.up().weight_format());
  const char* const down = name_of(layer.down().weight_format());
  if (!layer.has_gate()) return py::make_tuple(up, down);
  return py::make_tuple(up, down, name_of(layer.gate().weight_format()));
}

py::tuple linear_layer_weights(const Linear& layer) {
  const LinearShape shape(layer.out_features(), layer.in_features(), layer.has_bias());
  const NewLinear copies(shape, layer.dtype(), layer.weight_format());
  layer.copy_weights(copies.views);
  return copies.arrays;
}

py::object linear_rows(const Linear& layer, py::handle features) {
  const Argument list[] = {{"features", features}};
  const ArrayArguments arrays("Linear", list, DType::f32);
  const std::vector<std::int64_t> numbers = arrays.integers(0);
  const Index extents[] = {static_cast<Index>(numbers.size()), layer.in_features()};
  const NewArray rows = arrays.new_array(DType::f32, 2, extents);
  without_gil([&] { layer.dequantize_rows(numbers.data(), extents[0], rows.view); });
  return rows.array;
}

py::tuple feed_forward_weights(const FeedForward& layer) {
  const Index in = layer.embed_dim(), hidden = layer.feedforward_dim();
  const NewLinear up({hidden, in, layer.has_up_bias()}, layer.dtype(), layer.up().weight_format());
  const NewLinear down({in, hidden, layer.has_down_bias()}, layer.dtype(), layer.down().weight_format());
  if (!layer.has_gate()) {
    layer.copy_weights({up.views, down.views, {}});
    return py::make_tuple(up.arrays, down.arrays);
  }
  const NewLinear gate({hidden, in, layer.has_gate_bias()}, layer.dtype(), layer.gate().weight_format());
  layer.copy_weights({up.views, down.views, gate.views});
  return py::make_tuple(up.arrays, down.arrays, gate.arrays);
}

// The feed_forwards are in a list, the choice is (experts_per_token, is_sigmoid, normalizes, scale).
Experts make_experts(const Linear& router, const py::list& feed_forwards, const py::tuple& choice,
                     const FeedForward* shared, const Linear* shared_gate, py::handle correction) {
  std::vector<FeedForward> experts;
  experts.reserve(feed_forwards.size());
  for (py::handle one : feed_forwards) experts.push_back(one.cast<const FeedForward&>());
  const ExpertsConfig config{choice[0].cast<Index>(), choice[1].cast<bool>(), choice[2].cast<bool>(),
                             choice[3].cast<double>()};
  const auto made = [&](const TensorView& numbers) {
    return Experts(router, experts.data(), static_cast<Index>(experts.size()), config, shared, shared_gate, numbers);
  };
  if (correction.is_none()) return made({});
  const Argument list[] = {{"correction", correction}};
  return made(ArrayArguments("Experts", list).tensor(0, 1, 1));
}

// Names, in messages, the object whose dtype arrays must have.
constexpr const char* kOwner = "the layers";

// A stack, and its name in messages.
struct Stack {
  std::string name;
  TransformerStack layers;
};

// One layer as Python passes it: (self_attn, cross_attn or None, feed_forward or experts, norms, output_norms, the number
// of its NormPlacement).
TransformerLayer layer_from(const py::tuple& parts) {
  const auto norms = py::reinterpret_borrow<py::tuple>(parts[3]),
             output_norms = py::reinterpret_borrow<py::tuple>(parts[4]);
  const auto attention = [](py::handle layer) { return layer.cast<const Layer&>().attention; };
  const auto norm = [](py::handle part) { return part.is_none() ? std::optional<Norm>() : part.cast<const Norm&>(); };
  std::optional<MultiHeadAttention> cross_attention;
  if (!parts[1].is_none()) cross_attention = attention(parts[1]);
  std::optional<FeedForward> feed_forward;
  std::optional<Experts> experts;
  if (py::isinstance<Experts>(parts[2]))
    experts = parts[2].cast<const Experts&>();
  else
    feed_forward = parts[2].cast<const FeedForward&>();
  return {attention(parts[0]),
          cross_attention,
          feed_forward,
          norm(norms[0]),
          norm(norms[1]),
          norm(norms[2]),
          static_cast<NormPlacement>(parts[5].cast<int>()),
          norm(output_norms[0]),
          norm(output_norms[1]),
          norm(output_norms[2]),
          experts};
}

Stack make_stack(const std::string& name, const py::list& layers, const Norm* final_norm) {
  std::vector<TransformerLayer> parts;
  parts.reserve(layers.size());
  for (py::handle layer : layers) parts.push_back(layer_from(py::reinterpret_borrow<py::tuple>(layer)));
  return {name, TransformerStack(parts.data(), static_cast<Index>(parts.size()), final_norm, name.c_str())};
}

// A list of caches, one for each layer, or None; in use as long as this lives.
class CacheList {
 public:
  // `changed` are caches that the call changes: none of them may be in the list.
  CacheList(const char* function, const char* name, py::handle list, Index layers, CacheUse::Kind kind,
            const CacheList* changed = nullptr) {
    if (list.is_none()) return;
    const auto caches = py::reinterpret_borrow<py::sequence>(list);
    if (static_cast<Index>(py::len(caches)) != layers)
      throw py::value_error(std::string(function) + ": " + name + " must be one cache for each layer, " +
                            std::to_string(layers) + "; got " + std::to_string(py::len(caches)));
    for (py::handle item : caches) {
      auto& shared = item.cast<SharedCache&>();
      if (changed && changed->has(&shared.cache))
        throw py::value_error(std::string(function) + ": " + name + " must not hold a cache that is in caches, too");
      // One that is there twice is for the library to complain about.
      if (!has(&shared.cache)) uses_.emplace_front(shared, kind);
      caches_.push_back(&shared.cache);
    }
  }

  explicit operator bool() const { return !caches_.empty(); }
  bool has(const KVCache* cache) const { return std::find(caches_.begin(), caches_.end(), cache) != caches_.end(); }
  KVCache& operator[](std::size_t i) const { return *caches_[i]; }
  KVCache* const* data() const { return caches_.empty() ? nullptr : caches_.data(); }

 private:
  std::vector<KVCache*> caches_;
  std::forward_list<CacheUse> uses_;
};

// The names of the options of the attention to the memory, in messages.
constexpr const char* memory_name(std::string_view option, const char* usual) {
  return option == "key_lengths" ? "memory_lengths" : usual;
}
constexpr const char* kMemoryOptionNames[] = {
#define MHA_OPTION(field, type, argument, reading) memory_name(#argument, "memory_" #argument),
#include <mha/attention_options.def>
#undef MHA_OPTION
};

// Optional arguments of a call: the entries of a dict, None if missing.
struct GivenExtras {
  explicit GivenExtras(const py::dict& given) {
    static const std::pair<PyObject*, py::handle GivenExtras::*> fields[] = {
        {PyUnicode_InternFromString("cu_seqlens"), &GivenExtras::cu_seqlens},
        {PyUnicode_InternFromString("memory"), &GivenExtras::memory},
        {PyUnicode_InternFromString("memory_caches"), &GivenExtras::memory_caches},
        {PyUnicode_InternFromString("memory_options"), &GivenExtras::memory_options},
        {PyUnicode_InternFromString("layer_options"), &GivenExtras::layer_options},
        {PyUnicode_InternFromString("caches"), &GivenExtras::caches},
        {PyUnicode_InternFromString("new_lengths"), &GivenExtras::new_lengths},
        {PyUnicode_InternFromString("sequences"), &GivenExtras::sequences},
        {PyUnicode_InternFromString("memory_sequences"), &GivenExtras::memory_sequences},
        {PyUnicode_InternFromString("need_weights"), &GivenExtras::need_weights}};
    for (const auto& [name, field] : fields) {
      PyObject* const value = PyDict_GetItemWithError(given.ptr(), name);
      this->*field = value ? value : Py_None;
    }
  }

  py::handle cu_seqlens, memory, memory_caches, memory_options, layer_options, caches, new_lengths, sequences,
      memory_sequences, need_weights;
};

// Score options of each layer, or of the attention to the memory alone: a sequence of dicts, or None.
class OptionSets {
 public:
  // `x` is for messages; `rows` is its view, and `batch_size` the call's.
  OptionSets(const char* function, py::handle dicts, const char* const* names, py::handle x, const TensorView& rows,
             Index batch_size) {
    if (dicts.is_none()) return;
    for (py::handle dict : dicts) {
      const GivenOptions given(function, py::reinterpret_borrow<py::dict>(dict), names);
      const auto list = with_options(given, {{"x", x}});
      owners_.emplace_front(given, ArrayArguments(function, list, rows.dtype, kOwner), 1, py::none(), batch_size, rows);
      views_.push_back(owners_.front());
    }
  }

  const AttentionOptions* data() const { return views_.empty() ? nullptr : views_.data(); }

 private:
  std::forward_list<ScoreOptions> owners_;  // of the memory of the views
  std::vector<AttentionOptions> views_;
};

// New arrays for the softmax weights of each layer.
struct NewWeights {
  NewWeights(const ArrayArguments& given, const TransformerStack& stack, const TensorView& x, const CacheList& caches,
             const NewLengths& counts) {
    const Index length = x.extents[x.rank - 2];
    for (Index i = 0; i < stack.num_layers(); ++i) {
      const MultiHeadAttentionConfig& sizes = stack.layer(i).self_attention.config();
      const Index keys = caches ? keys_after(caches[static_cast<std::size_t>(i)], x, length, counts) : length;
      const Index extents[] = {x.extents[0], sizes.num_heads, length, keys + sizes.added_keys()};
      const NewArray of_layer = given.new_array(x.dtype, x.rank + 1, x.rank == 3 ? extents : extents + 1);
      views.push_back(of_layer.view);
      arrays.append(of_layer.array);
    }
  }

  py::list arrays;
  std::vector<MutableTensorView> views;
};

py::object forward_stack(const Stack& stack, py::handle x, const py::dict& given_options, const py::dict& given_extras,
                         py::handle out, py::handle num_threads) {
  const char* const function = stack.name.c_str();
  const TransformerStack& layers = stack.layers;
  const GivenExtras given(given_extras);
  const GivenOptions of_all(function, given_options);
  const auto list = with_options(of_all, {{"x", x},
                                          {"memory", given.memory},
                                          {"cu_seqlens", given.cu_seqlens},
                                          {"new_lengths", given.new_lengths},
                                          {"out", out},
                                          {"sequences", given.sequences},
                                          {"memory_sequences", given.memory_sequences}});
  const ArrayArguments arrays(function, list, layers.dtype(), kOwner);
  const bool is_ragged = arrays.given(2);
  const bool with_weights = !given.need_weights.is_none() && boolean(function, "need_weights", given.need_weights);
  if (is_ragged && (with_weights || arrays.given(3)))
    throw py::value_error(stack.name + ": cu_seqlens cannot be combined with need_weights or new_lengths");
  if (arrays.given(5) && (!is_ragged || given.caches.is_none()))
    throw py::value_error(stack.name + ": sequences needs cu_seqlens and caches");
  if (arrays.given(6) && (!is_ragged || given.memory_caches.is_none()))
    throw py::value_error(stack.name + ": memory_sequences needs cu_seqlens and memory_caches");
  if (layers.layer(0).cross_attention && given.memory.is_none() && given.memory_caches.is_none())
    throw py::type_error(stack.name + ": either memory or memory_caches must be given");
  const TensorView rows = arrays.tensor(0, 2, is_ragged ? 2 : 3);
  const std::vector<std::int64_t> offsets = is_ragged ? arrays.offsets(2) : std::vector<std::int64_t>{};
  const Index batch = is_ragged ? static_cast<Index>(offsets.size()) - 1 : rows.rank == 3 ? rows.extents[0] : 1;
  const std::vector<std::int64_t> sequences = RaggedArgument::integers_of_batch(arrays, 5, batch);
  const std::vector<std::int64_t> memories = RaggedArgument::integers_of_batch(arrays, 6, batch);
  const ScoreOptions options(of_all, arrays, 7, num_threads, batch, rows);
  const OptionSets of_layers(function, given.layer_options, kOptionNames, x, rows, batch);
  const py::tuple memory_options = given.memory_options.is_none() ? py::tuple() : py::make_tuple(given.memory_options);
  const OptionSets of_memory(function, memory_options, kMemoryOptionNames, x, rows, batch);
  const NewLengths counts(arrays, 3, rows);
  const CacheList caches(function, "caches", given.caches, layers.num_layers(), CacheUse::changes);
  const CacheList memory(function, "memory_caches", given.memory_caches, layers.num_layers(), CacheUse::reads, &caches);

  TransformerExtras extras;
  extras.memory = arrays.optional_tensor(1, 2, 3);
  extras.memory_caches = memory.data();
  if (of_memory.data()) extras.memory_options = *of_memory.data();
  extras.layer_options = of_layers.data();
  extras.caches = caches.data();
  extras.new_lengths = counts.data();
  if (arrays.given(5)) extras.sequences = sequences.data();
  if (arrays.given(6)) extras.memory_sequences = memories.data();
  const NewArray result = output_or_new(arrays, 4, out, 2, kMaxRank, rows, rows.extents[rows.rank - 1]);
  std::optional<NewWeights> weights;
  if (with_weights) extras.weights = weights.emplace(arrays, layers, rows, caches, counts).views.data();
  warn_if_forked();
  without_gil([&] {
    if (is_ragged)
      layers.forward_varlen(rows, offsets.data(), batch, result.view, options, extras);
    else
      layers.forward(rows, result.view, options, extras);
  });
  if (!weights) return result.array;
  return py::make_tuple(result.array, weights->arrays);
}

py::object positions(py::handle length, py::handle embed_dim, py::handle first_position, py::handle dtype) {
  const char* const function = "sinusoidal_positions";
  const Index extents[] = {integer(function, "length", length), integer(function, "embed_dim", embed_dim)};
  if (extents[0] < 0 || extents[1] < 0)
    throw py::value_error(std::string(function) + ": length and embed_dim must not be negative; got " +
                          std::to_string(extents[0]) + " and " + std::to_string(extents[1]));
  const std::int64_t first = integer(function, "first_position", first_position);
  const NewArray result = new_array(dtype_from(function, dtype), 2, extents);
  without_gil([&] { sinusoidal_positions(result.view, first); });
  return result.array;
}

}  // namespace

void bind_transformer(py::module_& m) {
  py::class_<Norm>(m, "Norm")
      .def(
          "forward",
          [](const Norm& norm, py::handle x, py::handle out, py::handle num_threads) {
            const char* const function = norm.kind() == NormKind::layer ? "LayerNorm" : "RMSNorm";
            return forward_rows(function, norm, norm.embed_dim(), x, out, num_threads);
          },
          "(x, out, num_threads) -> out")
      .def("weights", &norm_weights, "() -> copies of weight, and bias or None")
      .def_property_readonly("eps", &Norm::eps)
      .def_property_readonly("dtype", [](const Norm& norm) { return numpy_dtype(norm.dtype()); });
  py::class_<LayerNorm, Norm>(m, "LayerNorm").def(py::init(&make_layer_norm), "(weight, bias or None, eps)");
  py::class_<RMSNorm, Norm>(m, "RMSNorm").def(py::init(&make_rms_norm), "(weight, eps, unit_offset)");
  py::class_<Linear>(m, "Linear")
      .def(py::init(&make_linear), "(weights, weight_dtype), weights (weight, bias, scale)")
      .def(
          "forward",
          [](const Linear& layer, py::handle x, py::handle out, py::handle num_threads) {
            return forward_rows("Linear", layer, layer.out_features(), x, out, num_threads);
          },
          "(x, out, num_threads) -> out")
      .def("weights", &linear_layer_weights, "() -> copies, (weight, bias, scale)")
      .def("rows", &linear_rows, "(features) -> rows of a matrix in blocks, in float32")
      .def_property_readonly("formats",
                             [](const Linear& layer) { return py::make_tuple(name_of(layer.weight_format())); })
      .def_property_readonly("dtype", [](const Linear& layer) { return numpy_dtype(layer.dtype()); });
  py::class_<FeedForward>(m, "FeedForward")
      .def(py::init(&make_feed_forward),
           "(linears, activation, weight_dtype), linears (up, down) or (up, down, gate), each (weight, bias, scale)")
      .def(
          "forward",
          [](const FeedForward& layer, py::handle x, py::handle out, py::handle num_threads) {
            return forward_rows("FeedForward", layer, layer.embed_dim(), x, out, num_threads);
          },
          "(x, out, num_threads) -> out")
      .def("weights", &feed_forward_weights, "() -> copies, (up, down) or (up, down, gate)")
      .def_property_readonly("formats", &feed_forward_formats)
      .def_property_readonly("up", &FeedForward::up)
      .def_property_readonly("down", &FeedForward::down)
      .def_property_readonly(
          "gate", [](const FeedForward& layer) { return layer.has_gate() ? py::cast(layer.gate()) : py::none(); })
      .def_property_readonly("activation", [](const FeedForward& layer) { return name_of(layer.activation()); })
      .def_property_readonly("dtype", [](const FeedForward& layer) { return numpy_dtype(layer.dtype()); });
  py::class_<Experts>(m, "Experts")
      .def(py::init(&make_experts),
           "(router, feed_forwards, (experts_per_token, is_sigmoid, normalizes, scale), shared or None, shared_gate or "
           "None, correction or None)")
      .def(
          "forward",
          [](const Experts& layer, py::handle x, py::handle out, py::handle num_threads) {
            return forward_rows("Experts", layer, layer.embed_dim(), x, out, num_threads);
          },
          "(x, out, num_threads) -> out")
      .def_property_readonly("dtype", [](const Experts& layer) { return numpy_dtype(layer.dtype()); });
  py::class_<Stack>(m, "TransformerStack")
      .def(py::init(&make_stack),
           "(name, layers, norm or None), layers (self_attn, cross_attn or None, feed_forward or experts, norms, "
           "output_norms, placement of norms: 0 after, 1 before, 2 parallel)")
      .def("forward", &forward_stack,
           "(x, options, extras, out, num_threads) -> out or (out, weights): extras are entries cu_seqlens, memory, "
           "memory_caches, memory_options, layer_options, caches, new_lengths, sequences, memory_sequences, "
           "need_weights");
  m.def("add_and_normalize", &add, "(x, residual, norm or None, sum or None, num_threads) -> (sum, out or None)");
  m.def("sinusoidal_positions", &positions, "(length, embed_dim, first_position, dtype) -> positions");
}

}  // namespace mha::bindings

// What a layer is made of, from the inside out: the microkernel, a projection, the attention layer, an encoder's layer.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <stdexcept>
#include <vector>

#include "attention_reference.hpp"
#include "cases.hpp"
#include "execute/row_steps.hpp"
#include "measure.hpp"
#include "mha/mha.hpp"
#include "platform/dispatch.hpp"
#include "tensor.hpp"

namespace mha::bench {
namespace {

using Shared = std::shared_ptr<Tensor>;

Shared tensor(DType dtype, std::initializer_list<Index> shape, unsigned seed, double deviation = 1) {
  return std::make_shared<Tensor>(dtype, shape, seed, deviation);
}

/// Memory on a cache line of its own.
std::shared_ptr<std::byte> aligned_bytes(std::size_t bytes) {
  constexpr std::align_val_t kLine{64};
  return {static_cast<std::byte*>(::operator new(bytes, kLine)), [](std::byte* p) { ::operator delete(p, kLine); }};
}

/// One weight panel times 48 rows, which are rounded, widened or quantized before: eight register tiles of six, and what
/// surrounds them.
Subject microkernel(DType dtype, WeightFormat format, Index depth) {
  constexpr Index kRows = 48, kGroups = kPanelBytes / kVectorBytes;
  const Index columns = kPanelBytes / column_bytes(dtype);
  const DTypeKernels& kernels = active_kernels().kernels[static_cast<int>(dtype)];
  const ProjectionKernel& kernel = kernels.project[static_cast<int>(format)];
  const Shared x = tensor(dtype, {kRows, depth}, 1), out = tensor(dtype, {kRows, columns}, 2);
  const Shared weight = tensor(dtype, {columns, depth}, 3);
  const auto packed = std::make_shared<PackedLinear>(LinearWeights(weight->view()), columns, format);
  const auto scratch = aligned_bytes(kernels.projection_scratch(kRows));
  const auto rows = aligned_bytes(kernel.read_bytes(kRows, depth));
  ProjectionTile tile = {};
  tile.rows = kRows;
  tile.in_features = depth;
  tile.x = x->view().data;
  tile.x_row = depth;
  tile.x_step = 1;
  kernel.read(tile, rows.get());
  tile.panel = packed->panel(0);
  tile.bias = packed->bias(0);
  for (Index g = 0; g < kGroups; ++g) {
    tile.out[g] = static_cast<std::byte*>(out->view().data) + g * columns / kGroups * size_of(dtype);
    tile.group_columns[g] = columns / kGroups;
  }
  tile.out_row = columns;
  tile.out_step = 1;
  tile.activation = Activation::none;

  Subject subject;
  subject.product = has_scales(format) ? DType::int8 : dtype;
  subject.work.flops = 2.0 * double(kRows * columns * depth);
  subject.call = [=, run = kernel.run] {
    (void)x, (void)out, (void)packed, (void)rows;  // kept alive
    run(tile, scratch.get());
  };
  return subject;
}

/// x W^T + b with W [E, E], one of the four projections of a layer.
Subject projection_of(const Case& c, int threads) {
  const DType dtype = c.element();
  const Index rows = c.B * c.Tq;
  const Tensor weight(dtype, {c.E, c.E}, 1, 1 / std::sqrt(double(c.E))), bias(dtype, {c.E}, 2);
  const int workers = threads_for(threads, std::numeric_limits<Index>::max(), double(rows) * double(c.E * c.E));
  const LinearWeights weights(weight.view(), bias.view());
  const auto linear = std::make_shared<PackedLinear>(weights, c.E, c.weight_format());
  const Shared x = tensor(dtype, {rows, c.E}, 3), out = tensor(dtype, {rows, c.E}, 4);
  SizedRowSteps sized(active_kernels().kernels[static_cast<int>(dtype)], dtype, rows, workers);
  sized.reserve_for(*linear);

  Subject subject;
  subject.product = c.product();
  subject.threads = threads;
  subject.work.flops = 2.0 * double(rows) * double(c.E * c.E);
  subject.work.bytes = double(2 * rows * c.E + c.E) * size_of(dtype) + double(c.E * c.E) * c.weight_bytes();
  subject.call = [linear, x, out, sized, workers] {
    const CallMemory memory({}, workers, sized.scratch_bytes());
    RowSteps steps(sized, memory);
    steps.project(*linear, Activation::none, rows_of(x->view()), rows_of(out->view()));
    Phase phases[RowSteps::kMostSteps];
    run_phases(phases, steps.phases(phases), workers);
  };
  return subject;
}

/// Weights of a layer, and one that has packed them.
struct Layer {
  MultiHeadAttentionConfig config;
  Tensor weights[4], biases[4];

  explicit Layer(const Case& c)
      : config{c.E, c.H},
        weights{weight(c, 1), weight(c, 2), weight(c, 3), weight(c, 4)},
        biases{bias(c, 5), bias(c, 6), bias(c, 7), bias(c, 8)} {
    config.weight_format = c.weight_format();
  }
  /// The same weights as another type, for the reference.
  Layer(const Layer& other, DType dtype)
      : config(other.config),
        weights{as(other.weights[0], dtype), as(other.weights[1], dtype), as(other.weights[2], dtype),
                as(other.weights[3], dtype)},
        biases{as(other.biases[0], dtype), as(other.biases[1], dtype), as(other.biases[2], dtype),
               as(other.biases[3], dtype)} {}

  MultiHeadAttentionWeights views() const {
    return {{weights[0].view(), biases[0].view()},
            {weights[1].view(), biases[1].view()},
            {weights[2].view(), biases[2].view()},
            {weights[3].view(), biases[3].view()}};
  }
  MultiHeadAttention packed() const { return {config, views()}; }

 private:
  static Tensor as(const Tensor& tensor, DType dtype) { return {tensor, dtype}; }
  static Tensor weight(const Case& c, unsigned seed) {
    return Tensor(c.element(), {c.E, c.E}, seed, 1 / std::sqrt(double(c.E)));
  }
  static Tensor bias(const Case& c, unsigned seed) { return Tensor(c.element(), {c.E}, seed, 0.1); }
};

AttentionOptions options_of(const Case& c, int threads) {
  AttentionOptions options;
  options.is_causal = c.causal;
  options.num_threads = threads;
  return options;
}

/// Compares the last row of the last batch element with the reference; its query is the last row of x [B, n, E], and
/// `memory` is [B, Tk, E].
void check_layer(const Case& c, const Tensor& x, const Tensor& memory, const Tensor& out) {
  const Layer layer(Layer(c), DType::f64);
  const Tensor exact(x, DType::f64), exact_memory(memory, DType::f64);
  AttentionOptions options = options_of(c, 1);
  options.query_offset = c.Tk - 1;
  const auto row = [&](const Tensor& of, Index i) { return static_cast<const double*>(of.view().data) + i * c.E; };
  const Index queries = x.view().extents[1];
  const TensorView query(row(exact, c.B * queries - 1), {1, 1, c.E});
  const TensorView key(row(exact_memory, (c.B - 1) * c.Tk), {1, c.Tk, c.E});
  const auto expected = reference::multi_head_attention(layer.config, layer.views(), query, key, key, options);
  const Index last = c.B * c.Tq - 1;
  double largest = 0, error = 0;
  bool is_nan = false;
  for (Index e = 0; e < c.E; ++e) {
    const double difference = std::abs(out[last * c.E + e] - expected.out[std::size_t(e)]);
    is_nan = is_nan || std::isnan(difference);
    largest = std::max(largest, std::abs(expected.out[std::size_t(e)]));
    error = std::max(error, difference);
  }
  if (is_nan || error > c.tolerance(largest))
    throw std::runtime_error(c.name + " is off by " + std::to_string(error) + " from the reference");
}

Subject layer_of(const Case& c, int threads) {
  const Shared x = tensor(c.element(), {c.B, c.Tq, c.E}, 9), out = tensor(c.element(), {c.B, c.Tq, c.E}, 10);
  const Shared memory = c.is_cross() ? tensor(c.element(), {c.B, c.Tk, c.E}, 11) : x;
  Subject subject;
  subject.product = c.product();
  subject.threads = threads;
  subject.work = {c.flops(), c.least_bytes()};
  subject.call = [x, memory, out, layer = Layer(c).packed(), options = options_of(c, threads)] {
    layer.forward(x->view(), memory->view(), memory->view(), out->view(), {}, options);
  };
  subject.check = [&c, x, memory, out] { check_layer(c, *x, *memory, *out); };
  return subject;
}

/// The last token of each sequence over a cache of the others, which then forgets it.
Subject step_of(const Case& c, int threads) {
  const Shared x = tensor(c.element(), {c.B, c.Tk, c.E}, 9), out = tensor(c.element(), {c.B, 1, c.E}, 10);
  const auto part = [&](Index first, Index count) {
    const auto data = static_cast<const std::byte*>(x->view().data) + first * c.E * size_of(c.element());
    return TensorView(data, c.element(), {c.B, count, c.E}, {c.Tk * c.E, c.E, 1});
  };
  KVCacheConfig config;
  config.batch_size = c.B;
  config.num_kv_heads = c.H;
  config.capacity = c.Tk;
  config.head_dim = c.D;
  config.dtype = c.cached();
  const auto cache = std::make_shared<KVCache>(config);
  const MultiHeadAttention layer = Layer(c).packed();
  layer.append_to(*cache, part(0, c.Tk - 1), part(0, c.Tk - 1));
  Subject subject;
  subject.product = c.product();
  subject.threads = threads;
  subject.work = {c.flops(), c.least_bytes()};
  subject.call = [x, out, cache, layer, token = part(c.Tk - 1, 1), options = options_of(c, threads)] {
    layer.forward(token, token, token, *cache, out->view(), {}, options);
    cache->rollback(1);
  };
  subject.check = [&c, x, out] { check_layer(c, *x, *x, *out); };
  return subject;
}

/// Layers of an encoder, with random weights; sequences of any length lie one after another.
Subject encoder_of(const Case& c, int threads) {
  const DType dtype = c.element();
  const Tensor up(dtype, {c.F, c.E}, 11, 1 / std::sqrt(double(c.E))), up_bias(dtype, {c.F}, 12, 0.1);
  const Tensor down(dtype, {c.E, c.F}, 13, 1 / std::sqrt(double(c.F))), down_bias(dtype, {c.E}, 14, 0.1);
  const Tensor weight(dtype, {c.E}, 15), bias(dtype, {c.E}, 16);
  const Activation activation = c.activation == "relu" ? Activation::relu : Activation::gelu;
  std::vector<TransformerLayer> layers;
  for (Index i = 0; i < c.layers; ++i) {  // each packs, and so reads, weights of its own
    const LayerNorm norm(weight.view(), bias.view());
    const FeedForward feed_forward({{up.view(), up_bias.view()}, {down.view(), down_bias.view()}}, activation,
                                   c.weight_format());
    layers.push_back({Layer(c).packed(), {}, feed_forward, norm, norm, {}});
  }
  Subject subject;
  subject.product = c.product();
  subject.threads = threads;
  subject.work = {c.flops(), c.least_bytes()};
  const TransformerStack encoder(layers.data(), c.layers);
  const AttentionOptions options = options_of(c, threads);
  if (c.is_ragged()) {
    const Shared x = tensor(dtype, {c.queries(), c.E}, 9), out = tensor(dtype, {c.queries(), c.E}, 10);
    subject.call = [x, out, encoder, options, starts = c.offsets()] {
      encoder.forward_varlen(x->view(), starts.data(), Index(starts.size()) - 1, out->view(), options);
    };
  } else {
    const Shared x = tensor(dtype, {c.B, c.Tq, c.E}, 9), out = tensor(dtype, {c.B, c.Tq, c.E}, 10);
    subject.call = [x, out, encoder, options] { encoder.forward(x->view(), out->view(), options); };
  }
  return subject;
}

}  // namespace

void add_layers(const Settings& settings) {
  const struct {
    const char* name;
    DType dtype;
    WeightFormat format;
  } kinds[] = {{"f32", DType::f32, WeightFormat::plain},   {"f64", DType::f64, WeightFormat::plain},
               {"bf16", DType::bf16, WeightFormat::plain}, {"f16", DType::f16, WeightFormat::plain},
               {"bf16w", DType::f32, WeightFormat::bf16},  {"int8w", DType::f32, WeightFormat::int8},
               {"int4w", DType::f32, WeightFormat::int4}};
  for (const auto& kind : kinds)
    for (Index depth : {64, 128, 512})  // within one head, within one chain of a long sum, beyond it
      add_benchmark("microkernel/" + std::string(kind.name) + "-depth" + std::to_string(depth), settings,
                    [kind, depth] { return microkernel(kind.dtype, kind.format, depth); });
  for (const Case& c : cases()) {
    if (c.E == 0 || c.is_of_python() || !settings.wants(c.flops())) continue;
    for (int threads : settings.threads) {
      if (c.F > 0) {
        add_benchmark(with_threads("encoder/" + c.name, threads), settings,
                      [&c, threads] { return encoder_of(c, threads); });
        continue;
      }
      const bool is_step = c.kind == "step";
      add_benchmark(with_threads("layer/" + c.name, threads), settings,
                    [&c, threads, is_step] { return is_step ? step_of(c, threads) : layer_of(c, threads); });
      if (!c.causal && !is_step)  // which come after the projection
        add_benchmark(with_threads("projection/" + c.name, threads), settings,
                      [&c, threads] { return projection_of(c, threads); });
    }
  }
}

}  // namespace mha::bench

// No call reads or writes a byte outside of its arrays: every array lies between pages that nobody may touch, with
// lengths that are no multiples of a vector, on every instruction set of the machine. DISABLED_Sweep has the sizes that
// take minutes: --gtest_also_run_disabled_tests --gtest_filter=GuardPages.*
#include <gtest/gtest.h>

#include <algorithm>

#include "every_isa.hpp"
#include "guarded_memory.hpp"
#include "mha/mha.hpp"

namespace mha {
namespace {

using testing::expect_nothing_outside;
using testing::GuardedMemory;
using testing::on_every_isa;

struct Sizes {
  Index queries, keys, head_dim, value_dim;
};

/// Odd lengths; some of whole vectors for decode, whose kernel takes no others; some of several blocks, tiles and spans.
constexpr Sizes kSizes[] = {{1, 1, 1, 1},     {3, 7, 5, 3},   {17, 65, 19, 24},
                            {2, 515, 32, 16}, {70, 33, 9, 7}, {1, 37, 64, 32}};

template <class T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
void attend(GuardedMemory& memory, const Sizes& s, int masks) {
  constexpr Index H = 2;
  const auto [queries, keys, head_dim, value_dim] = s;
  const TensorView q = memory.random<T>({2, H, queries, head_dim}), k = memory.random<T>({2, 1, keys, head_dim});
  const TensorView v = memory.random<T>({2, 1, keys, value_dim});
  AttentionOptions options;
  if (masks == 1) options.attn_mask = memory.mask({2, H, queries, keys});
  if (masks == 2) options.attn_mask = memory.random<T>({H, queries, keys});
  if (masks == 3) options.key_mask = memory.mask({2, keys});
  if (masks == 3) options.key_lengths = memory.integers({keys, keys / 2});
  options.is_causal = masks == 4;
  if (masks == 4) options.alibi_slopes = memory.random<Sum<T>>({H});
  if (masks == 4) options.position_bias = memory.random<Sum<T>>({H, 2 * (keys / 3) + 1});
  if (masks == 4) options.sinks = memory.random<Sum<T>>({H});
  if (masks == 4) options.query_offsets = memory.integers({keys / 2, 0});
  options.num_threads = 2;
  const MutableTensorView out = memory.output<T>({2, H, queries, value_dim});
  const MutableTensorView lse = memory.output<Sum<T>>({2, H, queries});
  scaled_dot_product_attention(q, k, v, out, lse, options);
  AttentionGradients gradients;
  gradients.query = memory.output<T>({2, H, queries, head_dim});
  gradients.key = memory.output<T>({2, 1, keys, head_dim});
  gradients.value = memory.output<T>({2, 1, keys, value_dim});
  if (masks == 2) gradients.attn_mask = memory.output<Sum<T>>({H, queries, keys});
  if (masks == 4) gradients.alibi_slopes = memory.output<Sum<T>>({H});
  if (masks == 4) gradients.position_bias = memory.output<Sum<T>>({H, 2 * (keys / 3) + 1});
  if (masks == 4) gradients.sinks = memory.output<Sum<T>>({H});
  attention_gradient(q, k, v, out, lse, memory.random<T>({2, H, queries, value_dim}), gradients, options,
                     memory.random<Sum<T>>({2, H, queries}));
  attention_weights(q, k, memory.output<T>({2, H, queries, keys}), options);
  attention_weights(q, k, memory.output<T>({2, H, queries, keys}), options, ScoreStage::masked);
  AttentionStatistics results;
  results.entropy = memory.output<Sum<T>>({2, H, queries});
  results.max_weight = memory.output<Sum<T>>({2, H, queries});
  results.mean_distance = memory.output<Sum<T>>({2, H, queries});
  results.received_weight = memory.output<Sum<T>>({2, H, keys});
  attention_statistics(q, k, results, options);
}

template <class T>
void attend_ragged(GuardedMemory& memory, const Sizes& s) {
  constexpr Index H = 2;
  const auto [queries, keys, head_dim, value_dim] = s;
  const std::int64_t* const starts_q = memory.integers({0, queries, queries, queries + 3});
  const std::int64_t* const starts_k = memory.integers({0, keys, keys + 1, keys + 5});
  AttentionOptions options;
  options.key_mask = memory.mask({keys + 5});
  options.attn_mask = memory.mask({queries + 3, std::max<Index>(keys, 4)});
  options.num_threads = 2;
  const TensorView q = memory.random<T>({queries + 3, H, head_dim}), k = memory.random<T>({keys + 5, H, head_dim});
  const TensorView v = memory.random<T>({keys + 5, H, value_dim});
  const MutableTensorView out = memory.output<T>({queries + 3, H, value_dim});
  const MutableTensorView lse = memory.output<Sum<T>>({queries + 3, H});
  const RaggedBatch batch{3, starts_q, starts_k};
  scaled_dot_product_attention_varlen(q, k, v, batch, out, lse, options);
  AttentionGradients gradients;
  gradients.query = memory.output<T>({queries + 3, H, head_dim});
  gradients.key = memory.output<T>({keys + 5, H, head_dim});
  gradients.value = memory.output<T>({keys + 5, H, value_dim});
  attention_gradient_varlen(q, k, v, batch, out, lse, memory.random<T>({queries + 3, H, value_dim}), gradients,
                            options);
}

template <class T>
void merge(GuardedMemory& memory, Index rows, Index columns) {
  std::vector<TensorView> outs, lses;
  for (int shard = 0; shard < 3; ++shard) {
    outs.push_back(memory.random<T>({rows, columns}));
    lses.push_back(memory.random<Sum<T>>({rows}));
  }
  merge_attention(outs.data(), lses.data(), 3, memory.output<T>({rows, columns}), memory.output<Sum<T>>({rows}));
}

template <class T>
void run_layers(GuardedMemory& memory, Index width, Index hidden, Index rows, WeightFormat format) {
  const auto linear = [&](Index out, Index in) {
    return LinearWeights{memory.random<T>({out, in}), memory.random<T>({out}), {}};
  };
  const auto norm = [&] { return LayerNorm(memory.random<T>({width}), memory.random<T>({width}), 1e-5); };
  MultiHeadAttentionConfig config{width, 1};
  config.weight_format = format;
  const MultiHeadAttention attention(
      config, {linear(width, width), linear(width, width), linear(width, width), linear(width, width)});
  const FeedForward feed_forward({linear(hidden, width), linear(width, hidden)}, Activation::gelu, format);
  const TensorView x = memory.random<T>({2, rows, width});

  AttentionOptions options;
  options.num_threads = 2;
  attention.forward(x, x, x, memory.output<T>({2, rows, width}), memory.output<T>({2, 1, rows, rows}), options);
  KVCache cache({2, 1, rows + 3, width, 0, DTypeOf<T>::value});
  attention.forward(x, x, x, cache, memory.output<T>({2, rows, width}), {}, options, memory.integers({rows, rows / 2}));
  if (const Index pairs = width / 2; pairs > 0) {
    QueryKeySteps steps;
    steps.query_norm = steps.key_norm = norm();
    steps.rotary = RotaryEmbedding(memory.random<Sum<T>>({2 * rows, pairs}), memory.random<Sum<T>>({2 * rows, pairs}),
                                   width % 3 == 0 ? RotaryPairs::neighbours : RotaryPairs::halves);
    const MultiHeadAttention turned(
        config, {linear(width, width), linear(width, width), linear(width, width), linear(width, width)}, steps);
    turned.forward(x, x, x, memory.output<T>({2, rows, width}), {}, options);
    cache.clear();
    turned.forward(x, x, x, cache, memory.output<T>({2, rows, width}), {}, options, memory.integers({rows, rows / 2}));
  }
  feed_forward.forward(x, memory.output<T>({2, rows, width}), 2);
  const FeedForward gated({linear(hidden, width), linear(width, hidden), linear(hidden, width)}, Activation::silu,
                          format);
  gated.forward(x, memory.output<T>({2, rows, width}), 2);
  const FeedForward networks[] = {gated, gated, gated};
  ExpertsConfig choice;
  choice.experts_per_token = 2;
  const Linear router(linear(3, width)), shared_gate(linear(1, width));
  Experts(router, networks, 3, choice, &gated, &shared_gate).forward(x, memory.output<T>({2, rows, width}), 2);
  Linear(linear(hidden, width), format).forward(x, memory.output<T>({2, rows, hidden}), 2);
  if (format == WeightFormat::plain) {
    const LinearWeights once = linear(hidden, width);
    mha::linear(x, once, memory.output<T>({2, rows, hidden}), 2);
    const LinearGradients gradients = {memory.output<T>({2, rows, width}), memory.output<T>({hidden, width}),
                                       memory.output<T>({hidden})};
    linear_gradient(x, once.weight, memory.random<T>({2, rows, hidden}), gradients, 2);
  }
  norm().forward(x, memory.output<T>({2, rows, width}), 2);
  const TransformerLayer layer{attention, {}, feed_forward, norm(), norm(), {}, NormPlacement::before};
  const LayerNorm last = norm();
  TransformerStack(&layer, 1, &last).forward(x, memory.output<T>({2, rows, width}), options);

  MultiHeadAttention::WeightOutputs copies;
  const DType stored = has_scales(format) ? DType::int8 : DTypeOf<T>::value;
  copies.query.weight =
      stored == DType::int8 ? memory.output<std::int8_t>({width, width}) : memory.output<T>({width, width});
  copies.query.bias = memory.output<T>({width});
  attention.copy_weights(copies);
}

template <class T>
void embed(GuardedMemory& memory, Index width) {
  const std::int64_t* const starts = memory.integers({0, 3, 3, 7});
  const EmbeddingTables tables{memory.random<T>({5, width}), memory.random<T>({4, width}), memory.random<T>({width}),
                               memory.random<T>({width}), 1e-5};
  const std::int64_t* const tokens = memory.integers({0, 4, 1, 2, 3, 4, 4});
  embed_tokens(tokens, nullptr, starts, 3, tables, memory.output<T>({7, width}));
  embed_tokens(tokens, memory.integers({3, 0, 3, 2, 1, 1, 3}), starts, 3, tables, memory.output<T>({7, width}));
  mean_pool(memory.random<T>({7, width}), starts, 3, true, memory.output<Sum<T>>({3, width}));
  sinusoidal_positions(memory.output<T>({3, width}), 1);
}

template <class T>
void train(GuardedMemory& memory, Index width) {
  const TensorView x = memory.random<T>({3, width}), dout = memory.random<T>({3, width}),
                   up = memory.random<T>({3, width}), weight = memory.random<T>({width});
  for (const NormKind kind : {NormKind::layer, NormKind::rms})
    norm_gradient(kind, x, weight, 1e-5, dout,
                  {memory.output<T>({3, width}), memory.output<T>({width}),
                   kind == NormKind::layer ? memory.output<T>({width}) : MutableTensorView()},
                  2);
  activate(Activation::gelu, x, up, memory.output<T>({3, width}));
  activation_gradient(Activation::silu, x, up, dout, {memory.output<T>({3, width}), memory.output<T>({3, width})});
  activation_gradient(Activation::relu, x, {}, dout, {memory.output<T>({3, width}), {}});
  embedding_gradient(memory.integers({4, 0, 4}), dout, memory.output<T>({5, width}));
  if (const Index pairs = width / 2; pairs > 0)
    RotaryEmbedding(memory.random<Sum<T>>({4, pairs}), memory.random<Sum<T>>({4, pairs}))
        .rotate(x, memory.integers({3, 0, 1}), memory.output<T>({3, width}), true);
  cross_entropy(x, memory.random<T>({5, width}), memory.random<T>({5}), memory.integers({4, -100, 0}),
                memory.output<Sum<T>>({1}),
                {memory.output<T>({3, width}), memory.output<T>({5, width}), memory.output<T>({5})});
  const MutableTensorView weights = memory.output<Sum<T>>({3, width}), m = memory.output<Sum<T>>({3, width}),
                          v = memory.output<Sum<T>>({3, width});
  for (const MutableTensorView& view : {weights, m, v})
    std::fill_n(static_cast<Sum<T>*>(view.data), 3 * width, Sum<T>(1));
  adamw(weights, dout, m, v, {});
}

template <class T>
class GuardPages : public ::testing::Test {};
using DTypes = ::testing::Types<float, double, Float16, BFloat16>;
TYPED_TEST_SUITE(GuardPages, DTypes);

TYPED_TEST(GuardPages, Attention) {
  on_every_isa([] {
    for (const Sizes& sizes : kSizes) {
      for (int masks = 0; masks <= 4; ++masks)
        expect_nothing_outside([&](GuardedMemory& memory) { attend<TypeParam>(memory, sizes, masks); });
      expect_nothing_outside([&](GuardedMemory& memory) { attend_ragged<TypeParam>(memory, sizes); });
    }
  });
}

TYPED_TEST(GuardPages, Layers) {
  constexpr bool is_float = std::is_same_v<TypeParam, float>;
  on_every_isa([] {
    for (const Index width : {1, 5, 33, 70})
      for (const WeightFormat format :
           {WeightFormat::plain, WeightFormat::bf16, WeightFormat::int8, WeightFormat::int4})
        if (is_float || format == WeightFormat::plain)
          expect_nothing_outside(
              [&](GuardedMemory& memory) { run_layers<TypeParam>(memory, width, width + 2, 7, format); });
  });
}

TYPED_TEST(GuardPages, Rows) {
  on_every_isa([] {
    for (const Index width : {1, 7, 33, 130}) {
      expect_nothing_outside([&](GuardedMemory& memory) { embed<TypeParam>(memory, width); });
      expect_nothing_outside([&](GuardedMemory& memory) { train<TypeParam>(memory, width); });
      expect_nothing_outside([&](GuardedMemory& memory) { merge<TypeParam>(memory, 5, width); });
    }
  });
}

TYPED_TEST(GuardPages, DISABLED_Sweep) {
  on_every_isa([] {
    for (Index queries : {1, 3, 5, 8, 17, 33})
      for (Index keys : {1, 15, 17, 64, 65, 513})
        for (Index width : {1, 3, 8, 12, 17, 32, 65})
          for (int masks = 0; masks <= 4; ++masks)
            expect_nothing_outside([&](GuardedMemory& memory) {
              attend<TypeParam>(memory, {queries, keys, width, 66 - width}, masks);
              attend<TypeParam>(memory, {queries, keys, width, width}, masks);
            });
    for (Index width = 1; width <= 70; ++width)
      for (Index rows : {1, 2, 5, 6, 7, 13, 130})
        expect_nothing_outside([&](GuardedMemory& memory) {
          run_layers<TypeParam>(memory, width, 71 - width, rows, WeightFormat::plain);
          if constexpr (std::is_same_v<TypeParam, float>) {
            run_layers<TypeParam>(memory, width, 71 - width, rows, WeightFormat::bf16);
            run_layers<TypeParam>(memory, width, 71 - width, rows, WeightFormat::int8);
            run_layers<TypeParam>(memory, width, 71 - width, rows, WeightFormat::int4);
          }
          embed<TypeParam>(memory, width);
          merge<TypeParam>(memory, rows, width);
        });
  });
}

}  // namespace
}  // namespace mha

// A repeated call allocates nothing, because the arena of its thread has grown to the size that it needs.
#include <gtest/gtest.h>

#include <cstdint>

#include "allocator.hpp"
#include "arrays.hpp"
#include "c_calls.hpp"
#include "mha/attention_statistics.hpp"
#include "mha/linear.hpp"
#include "mha/merge_attention.hpp"
#include "mha/multi_head_attention.hpp"
#include "mha/transformer.hpp"

namespace mha {
namespace {

using testing::Array;

template <class Call>
long allocations_of(Call call) {
  const long before = testing::allocations();
  call();
  return testing::allocations() - before;
}

TEST(NoAllocation, TheCounterCounts) {
  EXPECT_EQ(allocations_of([] {}), 0);
  EXPECT_GT(allocations_of([] { const std::vector<int> some(100); }), 0);
}

TEST(NoAllocation, Attention) {
  constexpr Index B = 2, H = 8, T = 150, D = 64;
  const auto x = Array<float>::random({B, H, T, D}, 1);
  Array<float> out({B, H, T, D}, 0), lse({B, H, T}, 0), weights({B, H, T, T}, 0), received({B, H, T}, 0);
  std::vector<char> unmasked(T * T, 1);
  const std::int64_t lengths[] = {100, 150}, offsets[] = {3, 0};
  AttentionOptions options;
  options.attn_mask = TensorView(reinterpret_cast<const bool*>(unmasked.data()), {T, T});
  options.is_causal = true;
  options.key_lengths = lengths;
  options.query_offsets = offsets;
  options.window_left = 60;
  for (int threads : {1, 2, 3}) {
    options.num_threads = threads;
    const auto attend = [&] {
      scaled_dot_product_attention(x.view(), x.view(), x.view(), out.view(), lse.view(), options);
    };
    const auto weigh = [&] { attention_weights(x.view(), x.view(), weights.view(), options); };
    AttentionStatistics statistics;
    statistics.entropy = lse.view();
    statistics.received_weight = received.view();
    const auto observe = [&] { attention_statistics(x.view(), x.view(), statistics, options); };
    attend();
    weigh();
    observe();
    EXPECT_EQ(allocations_of(attend), 0) << threads << " threads";
    EXPECT_EQ(allocations_of(weigh), 0) << threads << " threads";
    EXPECT_EQ(allocations_of(observe), 0) << threads << " threads";
  }
}

TEST(NoAllocation, MergedShards) {
  constexpr Index H = 8, T = 150, D = 64, shards = 20;
  const auto x = Array<float>::random({H, T, D}, 1), x_lse = Array<float>::random({H, T}, 2);
  Array<float> out({H, T, D}, 0), lse({H, T}, 0);
  const std::vector<TensorView> outs(shards, x.view()), lses(shards, x_lse.view());
  for (int threads : {1, 2, 3}) {
    const auto merge = [&] { merge_attention(outs.data(), lses.data(), shards, out.view(), lse.view(), threads); };
    merge();
    EXPECT_EQ(allocations_of(merge), 0) << threads << " threads";
  }
}

TEST(NoAllocation, RaggedBatch) {
  constexpr Index N = 300, H = 8, D = 32;
  const auto x = Array<float>::random({N, H, D}, 1);
  Array<float> out({N, H, D}, 0), lse({N, H}, 0);
  const std::int64_t offsets[] = {0, 10, 150, 150, 151, 300};
  AttentionOptions options;
  for (int threads : {1, 2, 3}) {
    options.num_threads = threads;
    const auto attend = [&] {
      scaled_dot_product_attention_varlen(x.view(), x.view(), x.view(), {5, offsets, offsets}, out.view(), lse.view(),
                                          options);
    };
    attend();
    EXPECT_EQ(allocations_of(attend), 0) << threads << " threads";
  }
}

TEST(NoAllocation, SpansOfKeysSharedOut) {
  constexpr Index H = 8, keys = 3000, D = 64;
  const auto query = Array<float>::random({1, H, 1, D}, 1), key = Array<float>::random({1, 2, keys, D}, 2);
  Array<float> out({1, H, 1, D}, 0), lse({1, H, 1}, 0);
  const std::int64_t starts[] = {0, 1}, key_starts[] = {0, keys};
  const TensorView row(query.data().data(), {1, H, D}), rows(key.data().data(), {keys, 2, D}, {D, keys * D, 1});
  AttentionOptions options;
  for (int threads : {1, 2, 7}) {
    options.num_threads = threads;
    const auto attend = [&] {
      scaled_dot_product_attention(query.view(), key.view(), key.view(), out.view(), lse.view(), options);
    };
    const auto ragged = [&] {
      scaled_dot_product_attention_varlen(row, rows, rows, {1, starts, key_starts},
                                          MutableTensorView(out.data().data(), {1, H, D}), {}, options);
    };
    attend();
    EXPECT_EQ(allocations_of(attend), 0) << threads << " threads";
    ragged();
    EXPECT_EQ(allocations_of(ragged), 0) << threads << " threads";
  }
}

TEST(NoAllocation, SmallAfterLarge) {
  const auto large = Array<float>::random({1, 2, 300, 128}, 1), small = Array<float>::random({1, 1, 3, 8}, 1);
  Array<float> large_out({1, 2, 300, 128}, 0), small_out({1, 1, 3, 8}, 0);
  const auto both = [&] {
    scaled_dot_product_attention(large.view(), large.view(), large.view(), large_out.view());
    scaled_dot_product_attention(small.view(), small.view(), small.view(), small_out.view());
  };
  both();
  EXPECT_EQ(allocations_of(both), 0);
}

TEST(NoAllocation, Layer) {
  constexpr Index B = 2, T = 150, E = 256;
  const auto square = Array<float>::random({E, E}, 1), bias = Array<float>::random({E}, 2);
  const MultiHeadAttentionConfig config = {E, 4};
  const MultiHeadAttention layer(config, {{square.view(), bias.view()},
                                          {square.view(), bias.view()},
                                          {square.view(), bias.view()},
                                          {square.view(), bias.view()}});
  const auto x = Array<float>::random({B, T, E}, 3), other = Array<float>::random({B, T, E}, 4);
  Array<float> out({B, T, E}, 0), weights({B, 4, T, T}, 0);
  AttentionOptions options;
  for (int threads : {1, 2, 3}) {
    options.num_threads = threads;
    const auto self = [&] { layer.forward(x.view(), x.view(), x.view(), out.view(), {}, options); };
    const auto cross = [&] {
      layer.forward(x.view(), other.view(), other.view(), out.view(), weights.view(), options);
    };
    const std::int64_t offsets[] = {0, 20, 20, 150};
    const TensorView rows(x.data().data(), {T, E});
    const auto ragged = [&] {
      layer.forward_varlen(rows, rows, rows, {3, offsets, offsets}, MutableTensorView(out.data().data(), {T, E}),
                           options);
    };
    self();
    cross();
    ragged();
    EXPECT_EQ(allocations_of(self), 0) << threads << " threads";
    EXPECT_EQ(allocations_of(cross), 0) << threads << " threads";
    EXPECT_EQ(allocations_of(ragged), 0) << threads << " threads";
  }
}

TEST(NoAllocation, LayerWithAddedKeys) {
  constexpr Index B = 2, T = 150, E = 256;
  const auto square = Array<float>::random({E, E}, 1), row = Array<float>::random({E}, 2);
  MultiHeadAttentionConfig config = {E, 4};
  config.add_bias_kv = config.add_zero_attn = true;
  const MultiHeadAttention layer(
      config, {{square.view()}, {square.view()}, {square.view()}, {square.view()}, row.view(), row.view()});
  const auto x = Array<float>::random({B, T, E}, 3);
  Array<float> out({B, T, E}, 0), weights({B, 4, T, T + 2}, 0);
  AttentionOptions options;
  for (int threads : {1, 2, 3}) {
    options.num_threads = threads;
    const auto attend = [&] { layer.forward(x.view(), x.view(), x.view(), out.view(), weights.view(), options); };
    attend();
    EXPECT_EQ(allocations_of(attend), 0) << threads << " threads";
  }
}

TEST(NoAllocation, EncoderAndDecoder) {
  constexpr Index B = 2, T = 90, E = 128;
  const auto square = Array<float>::random({E, E}, 1), wide = Array<float>::random({2 * E, E}, 2);
  const auto narrow = Array<float>::random({E, 2 * E}, 3), row = Array<float>::random({E}, 4);
  const MultiHeadAttentionConfig config = {E, 4};
  const MultiHeadAttention attention(config, {{square.view()}, {square.view()}, {square.view()}, {square.view()}});
  const FeedForward feed_forward({{wide.view()}, {narrow.view(), row.view()}}, Activation::gelu);
  const FeedForward gated({{wide.view()}, {narrow.view()}, {wide.view()}}, Activation::silu);
  const Linear linear({square.view()});
  const LayerNorm norm(row.view());
  const TransformerLayer layer = {attention, {}, feed_forward, norm, norm, {}};
  const TransformerLayer decoder_layer = {attention, attention, feed_forward, norm, norm, norm, NormPlacement::before};
  const TransformerStack encoder(&layer, 1, &norm), decoder(&decoder_layer, 1);
  const auto x = Array<float>::random({B, T, E}, 5);
  Array<float> out({B, T, E}, 0);
  TransformerExtras extras;
  extras.memory = x.view();
  AttentionOptions options;
  for (int threads : {1, 2, 3}) {
    options.num_threads = threads;
    const auto both = [&] {
      encoder.forward(x.view(), out.view(), options);
      decoder.forward(x.view(), out.view(), options, extras);
      feed_forward.forward(x.view(), out.view(), threads);
      gated.forward(x.view(), out.view(), threads);
      linear.forward(x.view(), out.view(), threads);
    };
    both();
    EXPECT_EQ(allocations_of(both), 0) << threads << " threads";
  }
}

TEST(NoAllocation, AStepInC) {
  constexpr Index B = 2, E = 64, layers = 3;
  const auto square = Array<float>::random({E, E}, 1), row = Array<float>::random({E}, 2);
  const auto x = Array<float>::random({B, 1, E}, 3);
  Array<float> out({B, 1, E}, 0);
  const mha_tensor c_square = testing::c_tensor(square), c_row = testing::c_tensor(row), c_x = testing::c_tensor(x),
                   c_out = testing::c_tensor(out);
  const mha_layer_config config = {E, 4, 0, 0, 0, 0, 0, 0, false, false, MHA_WEIGHT_FORMAT_PLAIN};
  const mha_linear_weights linear = {&c_square, &c_row, nullptr, MHA_WEIGHT_FORMAT_PLAIN};
  const mha_layer_weights weights = {linear, linear, linear, linear, nullptr, nullptr};
  const mha_feed_forward_weights feed_forward_weights = {{&c_square, nullptr, nullptr, MHA_WEIGHT_FORMAT_PLAIN},
                                                         {&c_square, nullptr, nullptr, MHA_WEIGHT_FORMAT_PLAIN},
                                                         {}};
  mha_layer* attention = nullptr;
  mha_feed_forward* feed_forward = nullptr;
  mha_norm* norm = nullptr;
  mha_transformer* encoder = nullptr;
  mha_cache* caches[layers] = {};
  EXPECT_OK(mha_layer_create(&config, &weights, &attention));
  EXPECT_OK(
      mha_feed_forward_create(&feed_forward_weights, MHA_ACTIVATION_GELU, MHA_WEIGHT_FORMAT_PLAIN, &feed_forward));
  EXPECT_OK(mha_norm_create(&c_row, nullptr, 1e-5, &norm));
  const mha_transformer_layer layer = {attention,       nullptr, feed_forward, norm,    norm,   nullptr,
                                       MHA_NORM_BEFORE, norm,    norm,         nullptr, nullptr};
  const mha_transformer_layer stack[layers] = {layer, layer, layer};
  EXPECT_OK(mha_transformer_create(stack, layers, norm, &encoder));
  const mha_cache_config sizes = {B, 4, 20, E / 4, 0, MHA_DTYPE_f32};
  for (mha_cache*& cache : caches) EXPECT_OK(mha_cache_create(&sizes, &cache));
  mha_transformer_extras extras = {};
  extras.caches = caches;
  const auto step = [&] { EXPECT_EQ(mha_transformer_forward(encoder, &c_x, &c_out, nullptr, &extras), MHA_OK); };
  step();
  EXPECT_EQ(allocations_of(step), 0);
  for (mha_cache* cache : caches) mha_cache_destroy(cache);
  mha_transformer_destroy(encoder);
  mha_norm_destroy(norm);
  mha_feed_forward_destroy(feed_forward);
  mha_layer_destroy(attention);
}

TEST(NoAllocation, LayerWithACache) {
  constexpr Index B = 3, E = 256;
  const auto square = Array<float>::random({E, E}, 1);
  const MultiHeadAttentionConfig config = {E, 4};
  QueryKeySteps steps;
  const auto table = Array<float>::random({40, 32}, 2), weight = Array<float>::random({64}, 4);
  steps.query_norm = steps.key_norm = RMSNorm(weight.view());
  steps.rotary = RotaryEmbedding(table.view(), table.view());
  const MultiHeadAttention layer(config, {{square.view()}, {square.view()}, {square.view()}, {square.view()}}, steps);
  const auto x = Array<float>::random({B, 2, E}, 3);
  Array<float> out({B, 2, E}, 0);
  KVCache cache({B, 4, 40, 64});
  const std::int64_t counts[] = {2, 1, 0}, circle[] = {1, 2, 0}, starts[] = {0, 3, 3, 6}, names[] = {2, 0, 1};
  const TensorView rows(x.data().data(), {B * 2, E});
  const MutableTensorView result(out.data().data(), {B * 2, E});
  AttentionOptions options;
  options.is_causal = true;
  for (int threads : {1, 2, 3}) {
    options.num_threads = threads;
    const auto step = [&] {
      layer.forward(x.view(), x.view(), x.view(), cache, out.view(), {}, options, counts);
      layer.attend(x.view(), cache, out.view(), {}, options);
      layer.forward_varlen(rows, rows, rows, {B, starts, starts, names}, cache, result, options);
      cache.reorder(circle);
      cache.keep_last(5);
    };
    step();
    EXPECT_EQ(allocations_of(step), 0) << threads << " threads";
  }
}

}  // namespace
}  // namespace mha

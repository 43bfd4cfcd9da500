// The C functions give the results of the C++ functions, and turn their exceptions into a status and a sentence.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "arrays.hpp"
#include "c_calls.hpp"
#include "mha/mha.hpp"

namespace mha {
namespace {

using testing::Array;
using testing::c_tensor;
using testing::expect_failure;
using testing::nans;

TEST(CApi, Attention) {
  const auto query = Array<double>::random({2, 4, 30, 8}, 1), key = Array<double>::random({2, 2, 40, 8}, 2);
  const auto sinks = Array<double>::random({4}, 3), bias = Array<double>::random({4, 19}, 5),
             mask = Array<double>::random({30, 40}, 4);
  const std::int64_t lengths[] = {40, 25}, offsets[] = {3, 11};
  AttentionOptions options;
  options.attn_mask = mask.view();
  options.is_causal = true;
  options.query_offsets = offsets;
  options.key_lengths = lengths;
  options.window_left = 20;
  options.scale = 0.5;
  options.softcap = 3;
  options.position_bias = bias.view();
  options.sinks = sinks.view();
  auto expected = nans<double>({2, 4, 30, 8}), expected_lse = nans<double>({2, 4, 30});
  scaled_dot_product_attention(query.view(), key.view(), key.view(), expected.view(), expected_lse.view(), options);

  const mha_tensor c_query = c_tensor(query), c_key = c_tensor(key), c_sinks = c_tensor(sinks), c_bias = c_tensor(bias),
                   c_mask = c_tensor(mask);
  mha_attention_options c_options = mha_default_options();
  c_options.attn_mask = &c_mask;
  c_options.is_causal = true;
  c_options.query_offsets = offsets;
  c_options.key_lengths = lengths;
  c_options.window_left = 20;
  c_options.scale = 0.5;
  c_options.softcap = 3;
  c_options.position_bias = &c_bias;
  c_options.sinks = &c_sinks;
  auto out = nans<double>({2, 4, 30, 8}), lse = nans<double>({2, 4, 30});
  const mha_tensor c_out = c_tensor(out), c_lse = c_tensor(lse);
  EXPECT_OK(mha_scaled_dot_product_attention(&c_query, &c_key, &c_key, &c_out, &c_lse, &c_options));
  EXPECT_EQ(out.data(), expected.data());
  EXPECT_EQ(lse.data(), expected_lse.data());
}

TEST(CApi, DefaultOptionsAreThoseOfNoOptions) {
  const auto x = Array<float>::random({2, 30, 8}, 1), slopes = Array<float>::random({2}, 2);
  auto without = nans<float>({2, 30, 8}), defaults = nans<float>({2, 30, 8}), biased = nans<float>({2, 30, 8});
  const mha_tensor c_x = c_tensor(x), outs[] = {c_tensor(without), c_tensor(defaults), c_tensor(biased)};
  mha_attention_options options = mha_default_options();
  EXPECT_OK(mha_scaled_dot_product_attention(&c_x, &c_x, &c_x, &outs[0], nullptr, nullptr));
  EXPECT_OK(mha_scaled_dot_product_attention(&c_x, &c_x, &c_x, &outs[1], nullptr, &options));
  const mha_tensor c_slopes = c_tensor(slopes);
  options.alibi_slopes = &c_slopes;
  options.query_offset = 5;
  EXPECT_OK(mha_scaled_dot_product_attention(&c_x, &c_x, &c_x, &outs[2], nullptr, &options));
  EXPECT_EQ(defaults.data(), without.data());
  EXPECT_NE(biased.data(), without.data());
}

TEST(CApi, RaggedWeightsAndStatistics) {
  const auto x = Array<float>::random({30, 2, 8}, 1), dense = Array<float>::random({2, 30, 8}, 2);
  const std::int64_t offsets[] = {0, 10, 10, 30};
  auto expected = nans<float>({30, 2, 8}), out = nans<float>({30, 2, 8});
  scaled_dot_product_attention_varlen(x.view(), x.view(), x.view(), {3, offsets, offsets}, expected.view());
  const mha_tensor c_x = c_tensor(x), c_out = c_tensor(out), c_dense = c_tensor(dense);
  const mha_ragged_batch batch = {3, offsets, offsets, nullptr};
  EXPECT_OK(mha_scaled_dot_product_attention_varlen(&c_x, &c_x, &c_x, &batch, &c_out, nullptr, nullptr));
  EXPECT_EQ(out.data(), expected.data());

  auto weights = nans<float>({2, 30, 30}), c_weights = nans<float>({2, 30, 30});
  const mha_tensor weights_tensor = c_tensor(c_weights);
  for (int stage = MHA_SCORES_SCALED; stage <= MHA_WEIGHTS; ++stage) {
    attention_weights(dense.view(), dense.view(), weights.view(), {}, static_cast<ScoreStage>(stage));
    EXPECT_OK(mha_attention_weights(&c_dense, &c_dense, &weights_tensor, nullptr, stage));
    EXPECT_EQ(c_weights.data(), weights.data());
  }

  auto entropy = nans<float>({2, 30}), received = nans<float>({2, 30});
  auto c_entropy = nans<float>({2, 30}), c_received = nans<float>({2, 30});
  std::vector<std::int64_t> max_key(60, -2), c_max_key(60, -2);
  AttentionStatistics statistics;
  statistics.entropy = entropy.view();
  statistics.received_weight = received.view();
  statistics.max_key = max_key.data();
  attention_statistics(dense.view(), dense.view(), statistics);
  const mha_tensor entropy_tensor = c_tensor(c_entropy), received_tensor = c_tensor(c_received);
  mha_statistics results = {};
  results.entropy = &entropy_tensor;
  results.received_weight = &received_tensor;
  results.max_key = c_max_key.data();
  EXPECT_OK(mha_attention_statistics(&c_dense, &c_dense, &results, nullptr));
  EXPECT_EQ(c_entropy.data(), entropy.data());
  EXPECT_EQ(c_received.data(), received.data());
  EXPECT_EQ(c_max_key, max_key);
}

TEST(CApi, MergedShards) {
  auto first = Array<double>::random({2, 30, 8}, 1), first_lse = Array<double>::random({2, 30}, 2);
  const auto second = Array<double>::random({2, 30, 8}, 3), second_lse = Array<double>::random({2, 30}, 4);
  const TensorView outs[] = {first.view(), second.view()}, lses[] = {first_lse.view(), second_lse.view()};
  auto expected = nans<double>({2, 30, 8}), expected_lse = nans<double>({2, 30}), out = nans<double>({2, 30, 8});
  merge_attention(outs, lses, 2, expected.view(), expected_lse.view());
  const mha_tensor c_outs[] = {c_tensor(first), c_tensor(second)},
                   c_lses[] = {c_tensor(first_lse), c_tensor(second_lse)};
  const mha_tensor c_out = c_tensor(out);
  EXPECT_OK(mha_merge_attention(c_outs, c_lses, 2, &c_out, nullptr, 1));
  EXPECT_EQ(out.data(), expected.data());
  expect_failure(MHA_INVALID_ARGUMENT, mha_merge_attention(c_outs, c_lses, 2, &c_outs[1], nullptr, 0),
                 {"merge_attention", "outs[1]", "[2, 30, 8]"});
  expect_failure(MHA_INVALID_ARGUMENT, mha_merge_attention(c_outs, c_lses, 0, &c_out, nullptr, 0), {"one shard"});
  expect_failure(MHA_INVALID_ARGUMENT, mha_merge_attention(c_outs, nullptr, 2, &c_out, nullptr, 0), {"lses"});
  expect_failure(MHA_INVALID_ARGUMENT, mha_merge_attention(nullptr, c_lses, 2, &c_out, nullptr, 0), {"outs"});
  EXPECT_OK(mha_merge_attention(c_outs, c_lses, 2, &c_outs[0], &c_lses[0], 0));
  EXPECT_EQ(first.data(), expected.data());
  EXPECT_EQ(first_lse.data(), expected_lse.data());
}

TEST(CApi, LayerAndCache) {
  constexpr Index B = 2, T = 6, E = 16, F = 8;
  const auto square = Array<float>::random({E, E}, 1), narrow = Array<float>::random({F, E}, 2);
  const auto bias = Array<float>::random({E}, 3), added = Array<float>::random({F}, 4);
  const auto x = Array<float>::random({B, T, E}, 5);
  MultiHeadAttentionConfig config{E, 4, 2};
  config.add_bias_kv = true;
  MultiHeadAttentionWeights weights{{square.view(), bias.view()}, {narrow.view()}, {narrow.view()},
                                    {square.view(), bias.view()}, added.view(),    added.view()};
  const MultiHeadAttention layer(config, weights);

  const mha_tensor c_square = c_tensor(square), c_narrow = c_tensor(narrow), c_bias = c_tensor(bias),
                   c_added = c_tensor(added), c_x = c_tensor(x);
  const mha_layer_config c_config = {E, 4, 2, 0, 0, 0, 0, 0, true, false, MHA_WEIGHT_FORMAT_PLAIN};
  const mha_linear_weights c_wide = {&c_square, &c_bias, nullptr, MHA_WEIGHT_FORMAT_PLAIN},
                           c_key = {&c_narrow, nullptr, nullptr, MHA_WEIGHT_FORMAT_PLAIN};
  const mha_layer_weights c_weights = {c_wide, c_key, c_key, c_wide, &c_added, &c_added};
  mha_layer* c_layer = nullptr;
  ASSERT_EQ(mha_layer_create(&c_config, &c_weights, &c_layer), MHA_OK) << mha_last_error();
  mha_cache* c_cache = nullptr;
  const mha_cache_config cache_config = {B, 2, 20, 4, 0, MHA_DTYPE_f32};
  ASSERT_EQ(mha_cache_create(&cache_config, &c_cache), MHA_OK) << mha_last_error();
  KVCache cache({B, 2, 20, 4});

  auto expected = nans<float>({B, T, E}), out = nans<float>({B, T, E});
  auto expected_weights = nans<float>({B, 4, T, T + 1}), out_weights = nans<float>({B, 4, T, T + 1});
  const mha_tensor c_out = c_tensor(out), c_out_weights = c_tensor(out_weights);
  const auto expect_same = [&] {
    EXPECT_EQ(out.data(), expected.data());
    EXPECT_EQ(std::vector<std::int64_t>(mha_cache_lengths(c_cache), mha_cache_lengths(c_cache) + B),
              std::vector<std::int64_t>(cache.lengths(), cache.lengths() + B));
  };
  layer.forward(x.view(), x.view(), x.view(), expected.view(), expected_weights.view());
  EXPECT_OK(mha_layer_forward(c_layer, &c_x, &c_x, &c_x, &c_out, &c_out_weights, nullptr));
  expect_same();
  EXPECT_EQ(out_weights.data(), expected_weights.data());

  const std::int64_t counts[] = {6, 4}, swapped[] = {1, 0}, rejected[] = {1, 0};
  layer.forward(x.view(), x.view(), x.view(), cache, expected.view(), {}, {}, counts);
  EXPECT_OK(mha_layer_forward_cached(c_layer, &c_x, &c_x, &c_x, c_cache, &c_out, nullptr, nullptr, counts));
  expect_same();

  layer.append_to(cache, x.view(), x.view(), counts);
  const TensorView token(x.data().data(), {B, 2, T, 4});
  cache.append(token, token, rejected);
  cache.rollback(rejected);
  cache.reorder(swapped);
  cache.keep_last(7);
  layer.attend(x.view(), cache, expected.view());
  const Index token_shape[] = {B, 2, T, 4};
  const mha_tensor tokens = mha_dense(x.data().data(), MHA_DTYPE_f32, 4, token_shape);
  EXPECT_OK(mha_layer_append_to(c_layer, c_cache, &c_x, &c_x, counts, 0));
  EXPECT_OK(mha_cache_append(c_cache, &tokens, &tokens, rejected));
  EXPECT_OK(mha_cache_rollback(c_cache, rejected));
  EXPECT_OK(mha_cache_reorder(c_cache, swapped));
  EXPECT_OK(mha_cache_keep_last(c_cache, 7));
  EXPECT_OK(mha_layer_attend(c_layer, &c_x, c_cache, &c_out, nullptr, nullptr));
  expect_same();

  const mha_tensor keys = mha_cache_keys(c_cache), values = mha_cache_values(c_cache);
  EXPECT_EQ(std::vector<Index>(keys.extents, keys.extents + 4), (std::vector<Index>{B, 2, 20, 4}));
  EXPECT_NE(keys.data, values.data);
  EXPECT_EQ(*static_cast<const float*>(keys.data), *static_cast<const float*>(cache.keys().data));
  EXPECT_OK(mha_cache_advance(c_cache, 1, nullptr));
  cache.advance(1);
  expect_same();
  EXPECT_OK(mha_cache_clear(c_cache));
  cache.clear();
  expect_same();

  const std::int64_t offsets[] = {0, 2, 6};
  const TensorView rows(x.data().data(), {T, E});
  layer.forward_varlen(rows, rows, rows, {2, offsets, offsets}, MutableTensorView(expected.data().data(), {T, E}));
  const Index row_shape[] = {T, E};
  const mha_tensor c_rows = mha_dense(x.data().data(), MHA_DTYPE_f32, 2, row_shape),
                   c_out_rows = mha_dense(out.data().data(), MHA_DTYPE_f32, 2, row_shape);
  const mha_ragged_batch batch = {2, offsets, offsets, nullptr};
  EXPECT_OK(mha_layer_forward_varlen(c_layer, &c_rows, &c_rows, &c_rows, &batch, &c_out_rows, nullptr));
  expect_same();

  mha_cache_destroy(c_cache);
  mha_layer_destroy(c_layer);
  mha_cache_destroy(nullptr);
  mha_layer_destroy(nullptr);
}

TEST(CApi, WhatACacheAndALayerAre) {
  const auto square = Array<double>::random({6, 6}, 1), narrow = Array<double>::random({2, 6}, 2);
  const auto bias = Array<double>::random({6}, 3), tokens = Array<double>::random({2, 1, 3, 2}, 4);
  const mha_tensor c_square = c_tensor(square), c_narrow = c_tensor(narrow), c_bias = c_tensor(bias),
                   c_tokens = c_tensor(tokens);
  const mha_layer_config config = {6, 3, 1, 0, 0, 0, 0, 0, false, true, MHA_WEIGHT_FORMAT_PLAIN};
  const mha_linear_weights query = {&c_square, nullptr, nullptr, MHA_WEIGHT_FORMAT_PLAIN},
                           key = {&c_narrow, nullptr, nullptr, MHA_WEIGHT_FORMAT_PLAIN};
  const mha_layer_weights weights = {query,   key,    key, {&c_square, &c_bias, nullptr, MHA_WEIGHT_FORMAT_PLAIN},
                                     nullptr, nullptr};
  mha_layer* layer = nullptr;
  ASSERT_EQ(mha_layer_create(&config, &weights, &layer), MHA_OK) << mha_last_error();
  const mha_layer_config sizes = mha_layer_config_of(layer);
  EXPECT_EQ(std::vector<Index>({sizes.embed_dim, sizes.num_heads, sizes.num_kv_heads, sizes.head_dim,
                                sizes.value_head_dim, sizes.kdim, sizes.vdim, sizes.out_dim}),
            std::vector<Index>({6, 3, 1, 2, 2, 6, 6, 6}));
  EXPECT_TRUE(!sizes.add_bias_kv && sizes.add_zero_attn);
  EXPECT_EQ(mha_layer_dtype(layer), MHA_DTYPE_f64);
  auto weight_copy = nans<double>({2, 6}), bias_copy = nans<double>({6});
  const mha_tensor c_weight_copy = c_tensor(weight_copy), c_bias_copy = c_tensor(bias_copy);
  mha_layer_weights outputs = {};
  outputs.value.weight = &c_weight_copy;
  outputs.out.bias = &c_bias_copy;
  EXPECT_OK(mha_layer_copy_weights(layer, &outputs));
  EXPECT_EQ(weight_copy.data(), narrow.data());
  EXPECT_EQ(bias_copy.data(), bias.data());
  expect_failure(MHA_INVALID_ARGUMENT, mha_layer_copy_weights(layer, nullptr), {"outputs"});
  mha_layer_destroy(layer);

  mha_cache* cache = nullptr;
  const mha_cache_config cache_config = {2, 1, 9, 2, 0, MHA_DTYPE_f64};
  ASSERT_EQ(mha_cache_create(&cache_config, &cache), MHA_OK) << mha_last_error();
  const mha_cache_config found = mha_cache_config_of(cache);
  EXPECT_EQ(std::vector<Index>({found.batch_size, found.num_kv_heads, found.capacity, found.head_dim,
                                found.value_head_dim, found.dtype}),
            std::vector<Index>({2, 1, 9, 2, 2, MHA_DTYPE_f64}));
  const std::int64_t counts[] = {3, 1};
  const auto lengths = [&] {
    return std::vector<std::int64_t>(mha_cache_lengths(cache), mha_cache_lengths(cache) + 2);
  };
  EXPECT_OK(mha_cache_append(cache, &c_tokens, &c_tokens, nullptr));
  EXPECT_OK(mha_cache_assign(cache, &c_tokens, &c_tokens, counts));
  EXPECT_EQ(lengths(), (std::vector<std::int64_t>{3, 1}));
  EXPECT_EQ(mha_cache_longest(cache, 0, nullptr), 3);
  EXPECT_EQ(mha_cache_longest(cache, 3, counts), 6);
  EXPECT_OK(mha_cache_rollback_by(cache, 1));
  EXPECT_EQ(lengths(), (std::vector<std::int64_t>{2, 0}));
  expect_failure(MHA_INVALID_ARGUMENT, mha_cache_rollback_by(cache, 1), {"KVCache.rollback", "sequence 1"});
  EXPECT_EQ(lengths(), (std::vector<std::int64_t>{2, 0}));
  mha_cache_destroy(cache);
}

TEST(CApi, ErrorsAreStatusesWithASentence) {
  const auto x = Array<float>::random({2, 30, 8}, 1), narrow = Array<float>::random({2, 30, 7}, 1);
  const auto other = Array<double>::random({2, 30, 8}, 1);
  auto out = nans<float>({2, 30, 8});
  const mha_tensor c_x = c_tensor(x), c_narrow = c_tensor(narrow), c_other = c_tensor(other), c_out = c_tensor(out);
  const auto attend = [&](const mha_tensor* query, const mha_tensor* key) {
    return mha_scaled_dot_product_attention(query, key, key, &c_out, nullptr, nullptr);
  };
  expect_failure(MHA_INVALID_ARGUMENT, attend(&c_x, &c_narrow), {"scaled_dot_product_attention", "[2, 30, 7]"});
  expect_failure(MHA_DTYPE_ERROR, attend(&c_x, &c_other), {"float64"});
  expect_failure(MHA_INVALID_ARGUMENT, attend(nullptr, &c_x), {"scaled_dot_product_attention", "query"});
  mha_tensor bad = c_x;
  bad.rank = 5;
  expect_failure(MHA_INVALID_ARGUMENT, attend(&bad, &c_x), {"rank", "got 5"});
  bad = c_x;
  bad.dtype = 99;
  expect_failure(MHA_DTYPE_ERROR, attend(&bad, &c_x), {"mha_dtype", "got 99"});
  expect_failure(MHA_INVALID_ARGUMENT, mha_attention_weights(&c_x, &c_x, &c_out, nullptr, 4), {"mha_score_stage"});
  for (double mha_attention_options::* const option :
       {&mha_attention_options::scale, &mha_attention_options::softcap}) {
    mha_attention_options subnormal = mha_default_options();
    subnormal.*option = 1e-310;
    expect_failure(MHA_INVALID_ARGUMENT, mha_attention_weights(&c_x, &c_x, &c_out, &subnormal, 0),
                   {"at least 2.3e-308"});
  }
  expect_failure(MHA_INVALID_ARGUMENT,
                 mha_scaled_dot_product_attention_varlen(&c_x, &c_x, &c_x, nullptr, &c_out, nullptr, nullptr),
                 {"batch"});
  expect_failure(MHA_INVALID_ARGUMENT, mha_layer_forward(nullptr, &c_x, &c_x, &c_x, &c_out, nullptr, nullptr),
                 {"layer"});
  expect_failure(MHA_INVALID_ARGUMENT, mha_cache_clear(nullptr), {"cache"});
  expect_failure(MHA_INVALID_ARGUMENT, mha_set_num_threads(-1), {"set_num_threads"});
  expect_failure(MHA_INVALID_ARGUMENT, mha_set_isa("avx1024"), {"avx1024"});
  mha_cache* cache = nullptr;
  const mha_cache_config huge = {1, 1, Index{1} << 62, 1, 0, MHA_DTYPE_f32};
  expect_failure(MHA_OUT_OF_MEMORY, mha_cache_create(&huge, &cache), {"could not allocate"});
  EXPECT_EQ(cache, nullptr);
  for (float element : out.data()) ASSERT_TRUE(std::isnan(element));

  std::thread([] { EXPECT_STREQ(mha_last_error(), ""); }).join();  // each thread has its own
  EXPECT_STRNE(mha_last_error(), "");
  EXPECT_OK(attend(&c_x, &c_x));
  EXPECT_STREQ(mha_last_error(), "");
}

TEST(CApi, WhatOnlyCCanGetWrongNamesTheFunctionAndTheArgument) {
  const auto x = Array<float>::random({2, 8, 8}, 1);
  const mha_tensor good = c_tensor(x);
  mha_tensor of_high_rank = good, of_no_dtype = good;
  of_high_rank.rank = -1;
  of_no_dtype.dtype = 99;
  mha_attention_options options = mha_default_options();
  options.key_mask = &of_high_rank;
  expect_failure(MHA_INVALID_ARGUMENT,
                 mha_scaled_dot_product_attention(&good, &good, &of_high_rank, &good, nullptr, nullptr),
                 {"mha_scaled_dot_product_attention: value: rank must be 0 to 4; got -1"});
  expect_failure(MHA_INVALID_ARGUMENT, mha_attention_weights(&good, &good, &good, &options, MHA_WEIGHTS),
                 {"mha_attention_weights: key_mask: rank"});
  expect_failure(MHA_DTYPE_ERROR, mha_attention_weights(&good, &of_no_dtype, &good, nullptr, MHA_WEIGHTS),
                 {"mha_attention_weights: key: expected an mha_dtype, 0 to 5; got 99"});
  expect_failure(MHA_INVALID_ARGUMENT, mha_attention_weights(&good, &good, &good, nullptr, -1),
                 {"mha_attention_weights: stage: expected an mha_score_stage, 0 to 3; got -1"});
  expect_failure(MHA_INVALID_ARGUMENT, mha_attention_statistics(&good, &good, nullptr, nullptr),
                 {"mha_attention_statistics: results: a null pointer"});
  expect_failure(MHA_DTYPE_ERROR, mha_sinusoidal_positions(&of_no_dtype, 0), {"mha_sinusoidal_positions: out: "});
  expect_failure(MHA_INVALID_ARGUMENT, mha_merge_attention(&of_high_rank, &good, 1, &good, nullptr, 0),
                 {"mha_merge_attention: outs: rank"});

  const mha_cache_config of_cache = {1, 1, 1, 1, 0, -1};
  mha_cache* cache = nullptr;
  expect_failure(MHA_DTYPE_ERROR, mha_cache_create(&of_cache, &cache), {"mha_cache_create: dtype: expected an mha_d"});
  expect_failure(MHA_INVALID_ARGUMENT, mha_cache_reorder(nullptr, nullptr), {"mha_cache_reorder: cache: a null"});

  const mha_layer_config of_layer = {8, 2, 0, 0, 0, 0, 0, 0, false, false, kNumWeightFormats};
  const mha_linear_weights linear = {&good, nullptr, nullptr, MHA_WEIGHT_FORMAT_PLAIN},
                           bad_linear = {&of_no_dtype, nullptr, nullptr, MHA_WEIGHT_FORMAT_PLAIN};
  const mha_layer_weights weights = {linear, linear, linear, linear, nullptr, nullptr},
                          bad_weights = {linear, bad_linear, linear, linear, nullptr, nullptr};
  mha_layer* layer = nullptr;
  expect_failure(MHA_INVALID_ARGUMENT, mha_layer_create(&of_layer, &weights, &layer),
                 {("mha_layer_create: weight_format: expected an mha_weight_format, 0 to " +
                   std::to_string(kNumWeightFormats - 1) + "; got " + std::to_string(kNumWeightFormats))
                      .c_str()});
  expect_failure(MHA_DTYPE_ERROR, mha_layer_create(&of_layer, &bad_weights, &layer),
                 {"mha_layer_create: key: expected"});
  const mha_feed_forward_weights of_rows = {linear, linear, {}};
  mha_feed_forward* feed_forward = nullptr;
  expect_failure(MHA_INVALID_ARGUMENT, mha_feed_forward_create(&of_rows, 9, 0, &feed_forward),
                 {"mha_feed_forward_create: activation: expected an mha_activation, 0 to 6; got 9"});
  const mha_transformer_layer of_stack = {nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
                                          0,       nullptr, nullptr, nullptr, nullptr};
  mha_transformer* stack = nullptr;
  expect_failure(MHA_INVALID_ARGUMENT, mha_transformer_create(&of_stack, 1, nullptr, &stack),
                 {"mha_transformer_create: layers[0].self_attention: a null pointer"});
}

TEST(CApi, ExecutorsAreOfTheirThread) {
  const auto x = Array<float>::random({4, 200, 64}, 1);
  auto expected = nans<float>({4, 200, 64}), out = nans<float>({4, 200, 64});
  const mha_tensor c_x = c_tensor(x), c_expected = c_tensor(expected), c_out = c_tensor(out);
  EXPECT_OK(mha_scaled_dot_product_attention(&c_x, &c_x, &c_x, &c_expected, nullptr, nullptr));
  int calls = 0;
  const mha_executor executor = {[](void* state, int count, void (*body)(void* context, int i), void* context) {
                                   ++*static_cast<int*>(state);
                                   for (int i = 0; i < count; ++i) body(context, i);
                                 },
                                 &calls, 3};
  EXPECT_OK(mha_set_executor(&executor));
  const mha_executor none = {};
  expect_failure(MHA_INVALID_ARGUMENT, mha_set_executor(&none), {"parallel_for"});  // and the executor of before stays
  EXPECT_OK(mha_scaled_dot_product_attention(&c_x, &c_x, &c_x, &c_out, nullptr, nullptr));
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(out.data(), expected.data());
  EXPECT_OK(mha_set_executor(nullptr));
  EXPECT_OK(mha_scaled_dot_product_attention(&c_x, &c_x, &c_x, &c_out, nullptr, nullptr));
  EXPECT_EQ(calls, 1);
}

TEST(CApi, CallsAreCancelled) {
  constexpr Index T = 20000;
  const auto x = Array<float>::random({1, T, 64}, 1);
  auto out = nans<float>({1, T, 64});
  const mha_tensor c_x = c_tensor(x), c_out = c_tensor(out);
  int times = 0;
  EXPECT_OK(mha_set_cancellation([](void* state) { return ++*static_cast<int*>(state) == 1; }, &times));
  expect_failure(MHA_CANCELLED, mha_scaled_dot_product_attention(&c_x, &c_x, &c_x, &c_out, nullptr, nullptr),
                 {"cancelled"});
  EXPECT_EQ(times, 1);
  EXPECT_OK(mha_set_cancellation(nullptr, nullptr));
  const Index extents[] = {300, 64};
  const mha_tensor few = mha_dense(x.data().data(), MHA_DTYPE_f32, 2, extents);
  const mha_tensor c_few_out = mha_dense(out.data().data(), MHA_DTYPE_f32, 2, few.extents);
  EXPECT_OK(mha_scaled_dot_product_attention(&few, &few, &few, &c_few_out, nullptr, nullptr));
  EXPECT_EQ(times, 1);
}

TEST(CApi, TheRuntime) {
  EXPECT_STREQ(mha_version(), MHA_VERSION);
  EXPECT_STREQ(mha_active_isa(), active_isa());
  EXPECT_OK(mha_set_isa(built_isa(0)));
  EXPECT_STREQ(active_isa(), built_isa(0));
  EXPECT_OK(mha_set_isa(nullptr));
  int last = num_built_isas() - 1;
  while (!isa_supported(last)) --last;
  EXPECT_OK(mha_set_thread_isa(0));
  EXPECT_OK(mha_set_isa(built_isa(last)));
  EXPECT_STREQ(mha_active_isa(), built_isa(0));
  expect_failure(MHA_INVALID_ARGUMENT, mha_set_thread_isa(num_built_isas()), {"mha_set_thread_isa"});
  EXPECT_OK(mha_set_thread_isa(-1));
  EXPECT_STREQ(mha_active_isa(), built_isa(last));
  EXPECT_OK(mha_set_isa(nullptr));
  EXPECT_OK(mha_set_num_threads(3));
  EXPECT_EQ(mha_num_threads(), 3);
  EXPECT_OK(mha_set_num_threads(0));
  EXPECT_EQ(mha_num_threads(), num_threads());
  EXPECT_STREQ(mha_num_threads_reason(), num_threads_reason());

  ASSERT_EQ(mha_num_built_isas(), num_built_isas());
  for (int i = 0; i < num_built_isas(); ++i) {
    EXPECT_STREQ(mha_built_isa(i), built_isa(i));
    EXPECT_EQ(mha_isa_supported(i), isa_supported(i));
    EXPECT_STREQ(mha_isa_reason(i), isa_reason(i));
  }
  EXPECT_EQ(mha_built_isa(-1), nullptr);
  testing::expect_words(mha_last_error(), {"isa index", "got -1"});
  EXPECT_FALSE(mha_isa_supported(num_built_isas()));
  testing::expect_words(mha_last_error(), {"isa index"});
  EXPECT_EQ(mha_isa_reason(-1), nullptr);
  testing::expect_words(mha_last_error(), {"isa index", "got -1"});
  EXPECT_STREQ(mha_active_isa_reason(), active_isa_reason());
  EXPECT_STREQ(mha_last_error(), "");
  EXPECT_STREQ(mha_last_used_isa(), last_used_isa());
  EXPECT_EQ(mha_in_forked_child(), in_forked_child());
  EXPECT_EQ(mha_scratch_bytes(), scratch_bytes());
}

}  // namespace
}  // namespace mha

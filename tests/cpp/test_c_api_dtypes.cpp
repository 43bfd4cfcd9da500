// 16-bit elements and caches, and weights in bfloat16 and int8, in C: the bits are those of the C++ functions.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "c_calls.hpp"
#include "mha/half_precision.hpp"
#include "mha/mha.hpp"

namespace mha {
namespace {

using testing::Array;
using testing::c_tensor;
using testing::expect_failure;
using testing::nans;
using testing::Owned;

using Rows = Array<float>;
using Bytes = Array<std::int8_t>;

template <class S>
class CApiElementsOf : public ::testing::Test {
 protected:
  static Array<S> random(std::initializer_list<Index> shape, unsigned seed) {
    Array<S> array(shape, S{});
    std::mt19937 generator(seed);
    std::normal_distribution<double> normal;
    for (S& element : array.data()) element = from_double<S>(normal(generator));
    return array;
  }
  static Array<S> nans_of(std::initializer_list<Index> shape) { return Array<S>(shape, from_double<S>(std::nan(""))); }
  static std::vector<std::uint16_t> bits(const Array<S>& array) {
    std::vector<std::uint16_t> all;
    for (const S element : array.data()) all.push_back(element.bits);
    return all;
  }
};

using Elements = ::testing::Types<Float16, BFloat16>;
TYPED_TEST_SUITE(CApiElementsOf, Elements);

TYPED_TEST(CApiElementsOf, AttentionAndMerging) {
  const auto query = this->random({2, 4, 30, 17}, 1), key = this->random({2, 2, 70, 17}, 2);
  const auto value = this->random({2, 2, 70, 9}, 3);
  auto expected = this->nans_of({2, 4, 30, 9}), out = expected;
  auto expected_lse = nans<float>({2, 4, 30}), lse = expected_lse;
  scaled_dot_product_attention(query.view(), key.view(), value.view(), expected.view(), expected_lse.view());
  const mha_tensor c_query = c_tensor(query), c_key = c_tensor(key), c_value = c_tensor(value), c_out = c_tensor(out),
                   c_lse = c_tensor(lse);
  EXPECT_OK(mha_scaled_dot_product_attention(&c_query, &c_key, &c_value, &c_out, &c_lse, nullptr));
  EXPECT_EQ(this->bits(out), this->bits(expected));
  EXPECT_EQ(lse.data(), expected_lse.data());

  const auto other = this->random({2, 4, 30, 9}, 4);
  const Rows other_lse = Rows::random({2, 4, 30}, 5);
  const TensorView outs[] = {out.view(), other.view()}, lses[] = {lse.view(), other_lse.view()};
  auto merged = this->nans_of({2, 4, 30, 9}), expected_merged = merged;
  auto merged_lse = nans<float>({2, 4, 30}), expected_merged_lse = merged_lse;
  merge_attention(outs, lses, 2, expected_merged.view(), expected_merged_lse.view());
  const mha_tensor c_outs[] = {c_out, c_tensor(other)}, c_lses[] = {c_lse, c_tensor(other_lse)};
  const mha_tensor c_merged = c_tensor(merged), c_merged_lse = c_tensor(merged_lse);
  EXPECT_OK(mha_merge_attention(c_outs, c_lses, 2, &c_merged, &c_merged_lse, 0));
  EXPECT_EQ(this->bits(merged), this->bits(expected_merged));
  EXPECT_NE(this->bits(merged), this->bits(out));
  EXPECT_EQ(merged_lse.data(), expected_merged_lse.data());
  expect_failure(MHA_DTYPE_ERROR, mha_merge_attention(c_outs, c_outs, 2, &c_merged, nullptr, 0), {"merge_attention"});
}

TYPED_TEST(CApiElementsOf, CacheBehindALayerInF32) {
  constexpr Index B = 2, T = 5, E = 18, H = 3;
  const Rows square = Rows::random({E, E}, 1), x = Rows::random({B, T, E}, 2);
  const MultiHeadAttention layer({E, H}, {{square.view()}, {square.view()}, {square.view()}, {square.view()}});
  const mha_tensor c_square = c_tensor(square), c_x = c_tensor(x);
  mha_layer_config config = {};
  config.embed_dim = E;
  config.num_heads = H;
  mha_layer_weights weights = {};
  weights.query.weight = weights.key.weight = weights.value.weight = weights.out.weight = &c_square;
  mha_layer* c_layer = nullptr;
  ASSERT_EQ(mha_layer_create(&config, &weights, &c_layer), MHA_OK) << mha_last_error();
  const Owned<mha_layer> owned_layer(c_layer, &mha_layer_destroy);

  constexpr DType dtype = DTypeOf<TypeParam>::value;
  KVCache cache({B, H, 20, E / H, 0, dtype});
  const mha_cache_config sizes = {B, H, 20, E / H, 0, static_cast<mha_dtype>(dtype)};
  mha_cache* c_cache = nullptr;
  ASSERT_EQ(mha_cache_create(&sizes, &c_cache), MHA_OK) << mha_last_error();
  const Owned<mha_cache> owned_cache(c_cache, &mha_cache_destroy);
  EXPECT_EQ(mha_cache_config_of(c_cache).dtype, static_cast<mha_dtype>(dtype));
  EXPECT_EQ(mha_cache_keys(c_cache).dtype, static_cast<mha_dtype>(dtype));

  Rows expected = nans<float>({B, T, E}), out = expected, exact = expected;
  const mha_tensor c_out = c_tensor(out);
  layer.forward(x.view(), x.view(), x.view(), exact.view());
  for (int step = 0; step < 2; ++step) {
    layer.forward(x.view(), x.view(), x.view(), cache, expected.view());
    EXPECT_OK(mha_layer_forward_cached(c_layer, &c_x, &c_x, &c_x, c_cache, &c_out, nullptr, nullptr, nullptr));
    EXPECT_EQ(out.data(), expected.data()) << "step " << step;
    EXPECT_NE(out.data(), exact.data()) << "keys and values are rounded";
  }
}

/// The same layer in C and in C++. Its widths fill neither whole words of narrow weights nor whole vectors.
struct Layer {
  static constexpr Index E = 18, H = 3, kKey = 19, kValue = 21;

  explicit Layer(WeightFormat format) {
    config.embed_dim = c_config.embed_dim = E;
    config.num_heads = c_config.num_heads = H;
    config.kdim = c_config.kdim = kKey;
    config.vdim = c_config.vdim = kValue;
    config.weight_format = format;
    c_config.weight_format = static_cast<mha_weight_format>(format);
  }

  Rows query = Rows::random({E, E}, 1), key = Rows::random({E, kKey}, 2), value = Rows::random({E, kValue}, 3);
  Rows out = Rows::random({E, E}, 4), bias = Rows::random({E}, 5);
  MultiHeadAttentionConfig config;
  mha_layer_config c_config = {};
};

Owned<mha_layer> c_layer(const mha_layer_config& config, const mha_layer_weights& weights) {
  mha_layer* layer = nullptr;
  EXPECT_OK(mha_layer_create(&config, &weights, &layer));
  return {layer, &mha_layer_destroy};
}

constexpr WeightFormat kFormats[] = {WeightFormat::plain, WeightFormat::bf16, WeightFormat::int8, WeightFormat::int4};

TEST(CApiWeightFormats, Layer) {
  constexpr Index E = Layer::E, kKey = Layer::kKey, kValue = Layer::kValue, T = 4;
  const Rows query = Rows::random({T, E}, 6), key = Rows::random({T, kKey}, 7), value = Rows::random({T, kValue}, 8);
  const mha_tensor c_query = c_tensor(query), c_key = c_tensor(key), c_value = c_tensor(value);
  std::vector<float> plain;
  for (const WeightFormat format : kFormats) {
    SCOPED_TRACE(static_cast<int>(format));
    const Layer l(format);
    const MultiHeadAttention layer(
        l.config, {{l.query.view(), l.bias.view()}, {l.key.view()}, {l.value.view()}, {l.out.view(), l.bias.view()}});
    const mha_tensor matrices[] = {c_tensor(l.query), c_tensor(l.key), c_tensor(l.value), c_tensor(l.out)};
    const mha_tensor bias = c_tensor(l.bias);
    mha_layer_weights weights = {};
    weights.query = {&matrices[0], &bias, nullptr, MHA_WEIGHT_FORMAT_PLAIN};
    weights.key.weight = &matrices[1];
    weights.value.weight = &matrices[2];
    weights.out = {&matrices[3], &bias, nullptr, MHA_WEIGHT_FORMAT_PLAIN};
    const Owned<mha_layer> c = c_layer(l.c_config, weights);
    EXPECT_EQ(mha_layer_config_of(c.get()).weight_format, static_cast<mha_weight_format>(format));
    EXPECT_EQ(mha_layer_dtype(c.get()), MHA_DTYPE_f32);

    Rows expected = nans<float>({T, E}), out = expected;
    const mha_tensor c_out = c_tensor(out);
    layer.forward(query.view(), key.view(), value.view(), expected.view());
    EXPECT_OK(mha_layer_forward(c.get(), &c_query, &c_key, &c_value, &c_out, nullptr, nullptr));
    EXPECT_EQ(out.data(), expected.data());
    if (format == WeightFormat::plain) plain = out.data();
    EXPECT_EQ(out.data() == plain, format == WeightFormat::plain) << "the format must reach the layer";
  }
}

TEST(CApiWeightFormats, ALayerTakesTheIntegersThatItGives) {
  constexpr Index E = Layer::E, kKey = Layer::kKey, kValue = Layer::kValue, T = 4;
  const Layer l(WeightFormat::int8);
  const mha_tensor matrices[] = {c_tensor(l.query), c_tensor(l.key), c_tensor(l.value), c_tensor(l.out)};
  mha_layer_weights weights = {};
  weights.query.weight = &matrices[0];
  weights.key.weight = &matrices[1];
  weights.value.weight = &matrices[2];
  weights.out.weight = &matrices[3];
  const Owned<mha_layer> layer = c_layer(l.c_config, weights);

  Bytes integers[] = {Bytes({E, E}, 99), Bytes({E, kKey}, 99), Bytes({E, kValue}, 99), Bytes({E, E}, 99)};
  Bytes expected_integers[] = {integers[0], integers[1], integers[2], integers[3]};
  Rows scales[] = {nans<float>({E}), nans<float>({E}), nans<float>({E}), nans<float>({E})};
  Rows expected_scales[] = {scales[0], scales[1], scales[2], scales[3]};
  mha_tensor c_integers[4], c_scales[4];
  for (int i = 0; i < 4; ++i) {
    c_integers[i] = c_tensor(integers[i]);
    c_scales[i] = c_tensor(scales[i]);
  }
  const mha_layer_weights stored = {{&c_integers[0], nullptr, &c_scales[0], MHA_WEIGHT_FORMAT_PLAIN},
                                    {&c_integers[1], nullptr, &c_scales[1], MHA_WEIGHT_FORMAT_PLAIN},
                                    {&c_integers[2], nullptr, &c_scales[2], MHA_WEIGHT_FORMAT_PLAIN},
                                    {&c_integers[3], nullptr, &c_scales[3], MHA_WEIGHT_FORMAT_PLAIN},
                                    nullptr,
                                    nullptr};
  EXPECT_OK(mha_layer_copy_weights(layer.get(), &stored));
  MultiHeadAttention(l.config, {{l.query.view()}, {l.key.view()}, {l.value.view()}, {l.out.view()}})
      .copy_weights({{expected_integers[0].view(), {}, expected_scales[0].view()},
                     {expected_integers[1].view(), {}, expected_scales[1].view()},
                     {expected_integers[2].view(), {}, expected_scales[2].view()},
                     {expected_integers[3].view(), {}, expected_scales[3].view()}});
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(integers[i].data(), expected_integers[i].data()) << i;
    EXPECT_EQ(scales[i].data(), expected_scales[i].data()) << i;
  }

  const Owned<mha_layer> again = c_layer(l.c_config, stored);
  const Rows query = Rows::random({T, E}, 6), key = Rows::random({T, kKey}, 7), value = Rows::random({T, kValue}, 8);
  const mha_tensor c_query = c_tensor(query), c_key = c_tensor(key), c_value = c_tensor(value);
  Rows expected = nans<float>({T, E}), out = expected;
  const mha_tensor c_expected = c_tensor(expected), c_out = c_tensor(out);
  EXPECT_OK(mha_layer_forward(layer.get(), &c_query, &c_key, &c_value, &c_expected, nullptr, nullptr));
  EXPECT_OK(mha_layer_forward(again.get(), &c_query, &c_key, &c_value, &c_out, nullptr, nullptr));
  EXPECT_EQ(out.data(), expected.data());
  for (const float element : out.data()) ASSERT_FALSE(std::isnan(element));
}

TEST(CApiWeightFormats, FeedForward) {
  constexpr Index E = 18, F = 37;
  const Rows up = Rows::random({F, E}, 1), down = Rows::random({E, F}, 2), bias1 = Rows::random({F}, 3);
  const Rows x = Rows::random({7, E}, 4);
  const mha_tensor c_up = c_tensor(up), c_down = c_tensor(down), c_bias1 = c_tensor(bias1), c_x = c_tensor(x);
  const mha_feed_forward_weights weights = {
      {&c_up, &c_bias1, nullptr, MHA_WEIGHT_FORMAT_PLAIN}, {&c_down, nullptr, nullptr, MHA_WEIGHT_FORMAT_PLAIN}, {}};
  std::vector<float> plain;
  for (const WeightFormat format : kFormats) {
    const auto c_format = static_cast<mha_weight_format>(format);
    SCOPED_TRACE(c_format);
    mha_feed_forward* layer = nullptr;
    ASSERT_EQ(mha_feed_forward_create(&weights, MHA_ACTIVATION_RELU, c_format, &layer), MHA_OK) << mha_last_error();
    const Owned<mha_feed_forward> owned(layer, &mha_feed_forward_destroy);
    EXPECT_EQ(mha_feed_forward_weight_format(layer), c_format);
    EXPECT_EQ(mha_feed_forward_dtype(layer), MHA_DTYPE_f32);
    Rows expected = nans<float>({7, E}), out = expected;
    FeedForward({{up.view(), bias1.view()}, {down.view()}}, Activation::relu, format)
        .forward(x.view(), expected.view());
    const mha_tensor c_out = c_tensor(out);
    EXPECT_OK(mha_feed_forward_forward(layer, &c_x, &c_out, 0));
    EXPECT_EQ(out.data(), expected.data());
    if (format == WeightFormat::plain) plain = out.data();
    EXPECT_EQ(out.data() == plain, format == WeightFormat::plain) << "the format must reach the layer";
    if (!has_scales(format)) continue;

    Bytes integers1({F, E}, 99), integers2({E, F}, 99);
    Rows scale1 = nans<float>({F}), scale2 = nans<float>({E});
    const mha_tensor c_integers1 = c_tensor(integers1), c_integers2 = c_tensor(integers2), c_scale1 = c_tensor(scale1),
                     c_scale2 = c_tensor(scale2);
    mha_feed_forward_weights stored = {{&c_integers1, nullptr, &c_scale1, MHA_WEIGHT_FORMAT_PLAIN},
                                       {&c_integers2, nullptr, &c_scale2, MHA_WEIGHT_FORMAT_PLAIN},
                                       {}};
    EXPECT_OK(mha_feed_forward_copy_weights(layer, &stored));
    stored.up.bias = &c_bias1;
    mha_feed_forward* again = nullptr;
    ASSERT_EQ(mha_feed_forward_create(&stored, MHA_ACTIVATION_RELU, c_format, &again), MHA_OK) << mha_last_error();
    const Owned<mha_feed_forward> owned_again(again, &mha_feed_forward_destroy);
    for (float& element : out.data()) element = std::nanf("");
    EXPECT_OK(mha_feed_forward_forward(again, &c_x, &c_out, 0));
    EXPECT_EQ(out.data(), expected.data());
  }
}

TEST(CApiWeightFormats, WhatIsRefused) {
  constexpr Index E = 18;
  const Rows square = Rows::random({E, E}, 1), scale = Rows::random({E}, 2);
  const auto wide = Array<double>::random({E, E}, 3);
  const Bytes bytes({E, E}, 1);
  const mha_tensor c_square = c_tensor(square), c_scale = c_tensor(scale), c_wide = c_tensor(wide),
                   c_bytes = c_tensor(bytes);
  mha_feed_forward* feed_forward = nullptr;
  const auto create = [&](const mha_tensor& matrix, const mha_tensor* scales, mha_weight_format format) {
    const mha_feed_forward_weights weights = {
        {&matrix, nullptr, scales, MHA_WEIGHT_FORMAT_PLAIN}, {&matrix, nullptr, scales, MHA_WEIGHT_FORMAT_PLAIN}, {}};
    return mha_feed_forward_create(&weights, MHA_ACTIVATION_RELU, format, &feed_forward);
  };
  const std::string range = "0 to " + std::to_string(kNumWeightFormats - 1);
  for (const mha_weight_format format : {-1, kNumWeightFormats})
    expect_failure(MHA_INVALID_ARGUMENT, create(c_square, nullptr, format),
                   {"mha_weight_format", range.c_str(), ("got " + std::to_string(format)).c_str()});
  expect_failure(MHA_INVALID_ARGUMENT, create(c_bytes, nullptr, MHA_WEIGHT_FORMAT_INT8), {"FeedForward", "up_scale"});
  expect_failure(MHA_INVALID_ARGUMENT, create(c_square, &c_scale, MHA_WEIGHT_FORMAT_PLAIN),
                 {"FeedForward", "up_scale"});
  expect_failure(MHA_DTYPE_ERROR, create(c_bytes, &c_scale, MHA_WEIGHT_FORMAT_BF16), {"FeedForward", "int8"});
  expect_failure(MHA_DTYPE_ERROR, create(c_wide, nullptr, MHA_WEIGHT_FORMAT_INT8), {"FeedForward", "float64"});
  EXPECT_EQ(MHA_WEIGHT_FORMAT_BF16X3, 3);
  expect_failure(MHA_INVALID_ARGUMENT, create(c_square, nullptr, MHA_WEIGHT_FORMAT_BF16X3),
                 {"FeedForward: weight_format", "bfloat16x3", "removed"});
  EXPECT_EQ(feed_forward, nullptr);

  Layer l(WeightFormat::plain);
  mha_layer_weights weights = {};
  weights.query.weight = weights.key.weight = weights.value.weight = weights.out.weight = &c_square;
  l.c_config.kdim = l.c_config.vdim = 0;
  mha_layer* layer = nullptr;
  l.c_config.weight_format = kNumWeightFormats;
  const std::string got = "got " + std::to_string(kNumWeightFormats);
  expect_failure(MHA_INVALID_ARGUMENT, mha_layer_create(&l.c_config, &weights, &layer),
                 {"mha_weight_format", got.c_str()});
  l.c_config.weight_format = MHA_WEIGHT_FORMAT_BF16X3;
  expect_failure(MHA_INVALID_ARGUMENT, mha_layer_create(&l.c_config, &weights, &layer), {"bfloat16x3", "removed"});
  l.c_config.weight_format = MHA_WEIGHT_FORMAT_INT8;
  weights.query = weights.key = weights.value = {&c_bytes, nullptr, &c_scale, MHA_WEIGHT_FORMAT_PLAIN};
  weights.out.weight = &c_bytes;
  expect_failure(MHA_INVALID_ARGUMENT, mha_layer_create(&l.c_config, &weights, &layer), {"out_scale"});
  EXPECT_EQ(layer, nullptr);

  mha_tensor c_out = c_bytes;
  expect_failure(MHA_DTYPE_ERROR,
                 mha_scaled_dot_product_attention(&c_bytes, &c_bytes, &c_bytes, &c_out, nullptr, nullptr), {"int8"});
  const mha_cache_config sizes = {1, 1, 4, 2, 0, MHA_DTYPE_boolean};
  mha_cache* cache = nullptr;
  expect_failure(MHA_DTYPE_ERROR, mha_cache_create(&sizes, &cache), {"KVCache", "bool"});
  EXPECT_EQ(cache, nullptr);
  mha_tensor unknown = c_bytes;
  unknown.dtype = MHA_DTYPE_int8 + 1;
  expect_failure(MHA_DTYPE_ERROR,
                 mha_scaled_dot_product_attention(&unknown, &c_bytes, &c_bytes, &c_out, nullptr, nullptr),
                 {"mha_dtype", "0 to 5", "got 6"});
}

}  // namespace
}  // namespace mha

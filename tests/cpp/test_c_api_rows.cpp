// Layer norm, feed-forward, positions and embeddings in C: the bits are those of the C++ functions; calls that are
// refused.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
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
using testing::Owned;

using Rows = Array<float>;

constexpr Index kEmbed = 24, kHidden = 40;

TEST(CApiRows, LayerNorm) {
  const Rows weight = Rows::random({kEmbed}, 1), bias = Rows::random({kEmbed}, 2);
  const Rows x = Rows::random({2, 5, kEmbed}, 3);
  const mha_tensor c_weight = c_tensor(weight), c_bias = c_tensor(bias);
  for (const bool has_bias : {false, true}) {
    const LayerNorm expected_norm(weight.view(), has_bias ? bias.view() : TensorView{}, 0.25);
    mha_norm* norm = nullptr;
    ASSERT_EQ(mha_norm_create(&c_weight, has_bias ? &c_bias : nullptr, 0.25, &norm), MHA_OK) << mha_last_error();
    const Owned<mha_norm> owned(norm, &mha_norm_destroy);
    Rows expected = nans<float>({2, 5, kEmbed}), out = expected, in_place = x;
    expected_norm.forward(x.view(), expected.view());
    const mha_tensor c_x = c_tensor(x), c_out = c_tensor(out), c_in_place = c_tensor(in_place);
    EXPECT_OK(mha_norm_forward(norm, &c_x, &c_out, 2));
    EXPECT_OK(mha_norm_forward(norm, &c_in_place, &c_in_place, 0));
    EXPECT_EQ(out.data(), expected.data());
    EXPECT_EQ(in_place.data(), expected.data());

    EXPECT_EQ(mha_norm_embed_dim(norm), kEmbed);
    EXPECT_EQ(mha_norm_eps(norm), 0.25);
    EXPECT_EQ(mha_norm_has_bias(norm), has_bias);
    EXPECT_EQ(mha_norm_kind_of(norm), MHA_NORM_LAYER);
    EXPECT_EQ(mha_norm_dtype(norm), MHA_DTYPE_f32);
    Rows weight_copy = nans<float>({kEmbed}), bias_copy = nans<float>({kEmbed});
    const mha_tensor c_weight_copy = c_tensor(weight_copy), c_bias_copy = c_tensor(bias_copy);
    EXPECT_OK(mha_norm_copy_weights(norm, &c_weight_copy, has_bias ? &c_bias_copy : nullptr));
    EXPECT_EQ(weight_copy.data(), weight.data());
    if (has_bias) {
      EXPECT_EQ(bias_copy.data(), bias.data());
    }
  }
}

TEST(CApiRows, Linear) {
  const Rows weight = Rows::random({kHidden, kEmbed}, 1), bias = Rows::random({kHidden}, 2);
  const Rows x = Rows::random({2, 5, kEmbed}, 3);
  const mha_tensor c_weight = c_tensor(weight), c_bias = c_tensor(bias), c_x = c_tensor(x);
  for (const bool has_bias : {false, true}) {
    const mha_linear_weights weights = {&c_weight, has_bias ? &c_bias : nullptr, nullptr, MHA_WEIGHT_FORMAT_PLAIN};
    for (const WeightFormat format :
         {WeightFormat::plain, WeightFormat::bf16, WeightFormat::int8, WeightFormat::int4}) {
      const auto c_format = static_cast<mha_weight_format>(format);
      mha_linear* linear = nullptr;
      ASSERT_EQ(mha_linear_create(&weights, c_format, &linear), MHA_OK) << mha_last_error();
      const Owned<mha_linear> owned(linear, &mha_linear_destroy);
      Rows expected = nans<float>({2, 5, kHidden}), out = expected;
      Linear({weight.view(), has_bias ? bias.view() : TensorView{}}, format).forward(x.view(), expected.view());
      const mha_tensor c_out = c_tensor(out);
      EXPECT_OK(mha_linear_forward(linear, &c_x, &c_out, 2));
      EXPECT_EQ(out.data(), expected.data());
      EXPECT_EQ(mha_linear_in_features(linear), kEmbed);
      EXPECT_EQ(mha_linear_out_features(linear), kHidden);
      EXPECT_EQ(mha_linear_has_bias(linear), has_bias);
      EXPECT_EQ(mha_linear_dtype(linear), MHA_DTYPE_f32);
      EXPECT_EQ(mha_linear_weight_format(linear), c_format);
      if (format != WeightFormat::plain) continue;
      Rows weight_copy = nans<float>({kHidden, kEmbed}), bias_copy = nans<float>({kHidden});
      const mha_tensor c_weight_copy = c_tensor(weight_copy), c_bias_copy = c_tensor(bias_copy);
      const mha_linear_weights copies = {&c_weight_copy, has_bias ? &c_bias_copy : nullptr, nullptr,
                                         MHA_WEIGHT_FORMAT_PLAIN};
      EXPECT_OK(mha_linear_copy_weights(linear, &copies));
      EXPECT_EQ(weight_copy.data(), weight.data());
      if (has_bias) {
        EXPECT_EQ(bias_copy.data(), bias.data());
      }
    }
  }
}

TEST(CApiRows, RMSNorm) {
  const Rows weight = Rows::random({kEmbed}, 1), x = Rows::random({2, 5, kEmbed}, 3);
  const mha_tensor c_weight = c_tensor(weight), c_x = c_tensor(x);
  for (const bool unit_offset : {false, true}) {
    mha_norm* norm = nullptr;
    ASSERT_EQ(mha_rms_norm_create(&c_weight, 0.25, unit_offset, &norm), MHA_OK) << mha_last_error();
    const Owned<mha_norm> owned(norm, &mha_norm_destroy);
    Rows expected = nans<float>({2, 5, kEmbed}), out = expected;
    RMSNorm(weight.view(), 0.25, unit_offset).forward(x.view(), expected.view());
    const mha_tensor c_out = c_tensor(out);
    EXPECT_OK(mha_norm_forward(norm, &c_x, &c_out, 2));
    EXPECT_EQ(out.data(), expected.data());
    EXPECT_EQ(mha_norm_kind_of(norm), unit_offset ? MHA_NORM_RMS_UNIT_OFFSET : MHA_NORM_RMS);
    EXPECT_EQ(mha_norm_eps(norm), 0.25);
    EXPECT_FALSE(mha_norm_has_bias(norm));
  }
}

TEST(CApiRows, FeedForward) {
  const auto up = Array<double>::random({kHidden, kEmbed}, 1), down = Array<double>::random({kEmbed, kHidden}, 2);
  const auto bias1 = Array<double>::random({kHidden}, 3), x = Array<double>::random({7, kEmbed}, 4);
  const mha_tensor c_up = c_tensor(up), c_down = c_tensor(down), c_bias1 = c_tensor(bias1), c_x = c_tensor(x);
  const mha_feed_forward_weights weights = {
      {&c_up, &c_bias1, nullptr, MHA_WEIGHT_FORMAT_PLAIN}, {&c_down, nullptr, nullptr, MHA_WEIGHT_FORMAT_PLAIN}, {}};
  for (const mha_activation activation : {MHA_ACTIVATION_NONE, MHA_ACTIVATION_RELU, MHA_ACTIVATION_GELU,
                                          MHA_ACTIVATION_GELU_TANH, MHA_ACTIVATION_SILU, MHA_ACTIVATION_QUICK_GELU}) {
    mha_feed_forward* layer = nullptr;
    ASSERT_EQ(mha_feed_forward_create(&weights, activation, MHA_WEIGHT_FORMAT_PLAIN, &layer), MHA_OK)
        << mha_last_error();
    const Owned<mha_feed_forward> owned(layer, &mha_feed_forward_destroy);
    auto expected = nans<double>({7, kEmbed}), out = expected;
    FeedForward({{up.view(), bias1.view()}, {down.view()}}, static_cast<Activation>(activation))
        .forward(x.view(), expected.view());
    const mha_tensor c_out = c_tensor(out);
    EXPECT_OK(mha_feed_forward_forward(layer, &c_x, &c_out, 1));
    EXPECT_EQ(out.data(), expected.data()) << "activation " << activation;

    EXPECT_EQ(mha_feed_forward_embed_dim(layer), kEmbed);
    EXPECT_EQ(mha_feed_forward_feedforward_dim(layer), kHidden);
    EXPECT_EQ(mha_feed_forward_activation(layer), activation);
    EXPECT_TRUE(mha_feed_forward_has_up_bias(layer));
    EXPECT_FALSE(mha_feed_forward_has_down_bias(layer));
    EXPECT_EQ(mha_feed_forward_dtype(layer), MHA_DTYPE_f64);
    auto down_copy = nans<double>({kEmbed, kHidden}), bias_copy = nans<double>({kHidden});
    const mha_tensor c_down_copy = c_tensor(down_copy), c_bias_copy = c_tensor(bias_copy);
    const mha_feed_forward_weights outputs = {{nullptr, &c_bias_copy, nullptr, MHA_WEIGHT_FORMAT_PLAIN},
                                              {&c_down_copy, nullptr, nullptr, MHA_WEIGHT_FORMAT_PLAIN},
                                              {}};
    EXPECT_OK(mha_feed_forward_copy_weights(layer, &outputs));
    EXPECT_EQ(down_copy.data(), down.data());
    EXPECT_EQ(bias_copy.data(), bias1.data());
  }
}

TEST(CApiRows, PositionsEmbeddingsAndMeans) {
  auto positions = nans<double>({9, kEmbed}), c_positions = positions;
  sinusoidal_positions(positions.view(), 4);
  const mha_tensor positions_tensor = c_tensor(c_positions);
  EXPECT_OK(mha_sinusoidal_positions(&positions_tensor, 4));
  EXPECT_EQ(c_positions.data(), positions.data());

  const auto words = Array<double>::random({5, kEmbed}, 1);
  const auto weight = Array<double>::random({kEmbed}, 2), bias = Array<double>::random({kEmbed}, 3);
  const std::int64_t tokens[] = {4, 0, 0, 3, 2}, offsets[] = {0, 2, 2, 5};
  EmbeddingTables tables = {words.view(), positions.view(), weight.view(), bias.view(), 1e-3};
  auto expected = nans<double>({5, kEmbed}), out = expected;
  embed_tokens(tokens, nullptr, offsets, 3, tables, expected.view());
  const mha_tensor c_words = c_tensor(words), c_weight = c_tensor(weight), c_bias = c_tensor(bias),
                   c_out = c_tensor(out);
  const mha_embedding_tables c_tables = {&c_words, &positions_tensor, &c_weight, &c_bias, 1e-3};
  const std::int64_t places[] = {8, 0, 7, 7, 1};
  auto placed = nans<double>({5, kEmbed}), c_placed = placed;
  embed_tokens(tokens, places, offsets, 3, tables, placed.view());
  const mha_tensor placed_out = c_tensor(c_placed);
  EXPECT_OK(mha_embed_tokens(tokens, places, offsets, 3, &c_tables, &placed_out, 2));
  EXPECT_EQ(c_placed.data(), placed.data());
  EXPECT_OK(mha_embed_tokens(tokens, nullptr, offsets, 3, &c_tables, &c_out, 2));
  EXPECT_EQ(out.data(), expected.data());

  for (const bool normalize : {false, true}) {
    auto means = nans<double>({3, kEmbed}), c_means = means;
    mean_pool(expected.view(), offsets, 3, normalize, means.view());
    const mha_tensor means_tensor = c_tensor(c_means);
    EXPECT_OK(mha_mean_pool(&c_out, offsets, 3, normalize, &means_tensor, 2));
    EXPECT_EQ(c_means.data(), means.data());
  }
}

TEST(CApiRows, WhatIsRefused) {
  const Rows table = Rows::random({kEmbed, kEmbed}, 1), wide = Rows::random({kHidden, kEmbed}, 2);
  const Rows weight = Rows::random({kEmbed}, 3), x = Rows::random({3, kEmbed}, 4);
  const Rows narrow = Rows::random({3, kEmbed - 1}, 5), down_weight = Rows::random({kEmbed, kHidden}, 6);
  Rows out = nans<float>({3, kEmbed});
  const mha_tensor rows = c_tensor(x), out_rows = c_tensor(out), c_narrow = c_tensor(narrow),
                   c_weight = c_tensor(weight), down = c_tensor(down_weight);
  const std::int64_t offsets[] = {0, 3}, tokens[] = {0, 9, 0};
  const auto expect_invalid = [](mha_status status, std::initializer_list<const char*> words) {
    expect_failure(MHA_INVALID_ARGUMENT, status, words);
  };
  mha_norm* norm = nullptr;
  mha_feed_forward* feed_forward = nullptr;
  const mha_tensor square = c_tensor(table), up = c_tensor(wide);
  expect_invalid(mha_norm_create(nullptr, nullptr, 0, &norm), {"LayerNorm", "weight"});
  for (const double eps : {1e-310, 1e-45, -1.0}) {  // the kernels would take the first two for 0
    expect_invalid(mha_norm_create(&c_weight, nullptr, eps, &norm), {"LayerNorm", "eps"});
    expect_invalid(mha_rms_norm_create(&c_weight, eps, false, &norm), {"RMSNorm", "eps"});
  }
  expect_invalid(mha_norm_create(&square, nullptr, 0, &norm), {"LayerNorm", "weight", "[24, 24]"});
  expect_invalid(mha_rms_norm_create(nullptr, 0, false, &norm), {"RMSNorm", "weight"});
  expect_invalid(mha_feed_forward_create(nullptr, MHA_ACTIVATION_RELU, MHA_WEIGHT_FORMAT_PLAIN, &feed_forward),
                 {"weights", "null"});
  const mha_feed_forward_weights weights = {
      {&up, nullptr, nullptr, MHA_WEIGHT_FORMAT_PLAIN}, {&up, nullptr, nullptr, MHA_WEIGHT_FORMAT_PLAIN}, {}};
  expect_invalid(mha_feed_forward_create(&weights, MHA_ACTIVATION_RELU, MHA_WEIGHT_FORMAT_PLAIN, &feed_forward),
                 {"FeedForward", "down_weight"});
  expect_invalid(mha_feed_forward_create(&weights, 99, MHA_WEIGHT_FORMAT_PLAIN, &feed_forward),
                 {"mha_activation", "got 99"});
  expect_invalid(mha_feed_forward_create(&weights, -1, MHA_WEIGHT_FORMAT_PLAIN, &feed_forward),
                 {"mha_activation", "got -1"});
  EXPECT_EQ(norm, nullptr);
  EXPECT_EQ(feed_forward, nullptr);

  mha_linear* linear = nullptr;
  const mha_linear_weights of_linear = {&up, nullptr, nullptr, MHA_WEIGHT_FORMAT_PLAIN},
                           no_matrix = {&c_weight, nullptr, nullptr, MHA_WEIGHT_FORMAT_PLAIN};
  expect_invalid(mha_linear_create(nullptr, MHA_WEIGHT_FORMAT_PLAIN, &linear), {"weights", "null"});
  expect_invalid(mha_linear_create(&no_matrix, MHA_WEIGHT_FORMAT_PLAIN, &linear), {"Linear", "weight", "[24]"});
  expect_invalid(mha_linear_create(&of_linear, kNumWeightFormats, &linear),
                 {"mha_weight_format", ("got " + std::to_string(kNumWeightFormats)).c_str()});
  EXPECT_EQ(linear, nullptr);
  ASSERT_EQ(mha_linear_create(&of_linear, MHA_WEIGHT_FORMAT_PLAIN, &linear), MHA_OK) << mha_last_error();
  expect_invalid(mha_linear_forward(nullptr, &rows, &out_rows, 0), {"linear", "null"});
  expect_invalid(mha_linear_forward(linear, &rows, &out_rows, 0), {"Linear", "out", "40 features"});
  expect_invalid(mha_linear_copy_weights(linear, nullptr), {"outputs", "null"});
  mha_linear_destroy(linear);
  mha_linear_destroy(nullptr);

  const mha_feed_forward_weights good_weights = {
      {&up, nullptr, nullptr, MHA_WEIGHT_FORMAT_PLAIN}, {&down, nullptr, nullptr, MHA_WEIGHT_FORMAT_PLAIN}, {}};
  ASSERT_EQ(mha_norm_create(&c_weight, nullptr, 0, &norm), MHA_OK) << mha_last_error();
  ASSERT_EQ(mha_feed_forward_create(&good_weights, MHA_ACTIVATION_RELU, MHA_WEIGHT_FORMAT_PLAIN, &feed_forward), MHA_OK)
      << mha_last_error();
  expect_invalid(mha_norm_forward(nullptr, &rows, &out_rows, 0), {"norm", "null"});
  expect_invalid(mha_norm_forward(norm, &c_narrow, &out_rows, 0), {"LayerNorm", "24 features"});
  expect_invalid(mha_norm_copy_weights(nullptr, &out_rows, nullptr), {"norm", "null"});
  expect_invalid(mha_feed_forward_forward(nullptr, &rows, &out_rows, 0), {"feed_forward", "null"});
  expect_invalid(mha_feed_forward_forward(feed_forward, &c_narrow, &out_rows, 0), {"FeedForward", "24 features"});
  expect_invalid(mha_feed_forward_copy_weights(feed_forward, nullptr), {"outputs", "null"});

  const mha_embedding_tables tables = {&rows, &rows, nullptr, nullptr, 0};
  expect_invalid(mha_sinusoidal_positions(nullptr, 0), {"sinusoidal_positions", "out"});
  expect_invalid(mha_embed_tokens(nullptr, nullptr, offsets, 1, &tables, &out_rows, 0), {"tokens", "null"});
  expect_invalid(mha_embed_tokens(tokens, nullptr, offsets, 1, nullptr, &out_rows, 0), {"tables", "null"});
  expect_invalid(mha_embed_tokens(tokens, nullptr, nullptr, 1, &tables, &out_rows, 0), {"cu_seqlens"});
  expect_invalid(mha_embed_tokens(tokens, nullptr, offsets, 1, &tables, &out_rows, 0),
                 {"embed_tokens", "token 1 is 9"});
  expect_invalid(mha_mean_pool(&rows, nullptr, 1, false, &out_rows, 0), {"mean_pool", "cu_seqlens"});
  expect_invalid(mha_mean_pool(&rows, offsets, 1, false, &out_rows, 0), {"mean_pool", "[1, 24]", "[3, 24]"});
  for (float element : out.data()) ASSERT_TRUE(std::isnan(element));
  mha_norm_destroy(norm);
  mha_feed_forward_destroy(feed_forward);
  mha_norm_destroy(nullptr);
  mha_feed_forward_destroy(nullptr);
}

TEST(CApiRows, RowsOfAMatrixInBlocks) {
  std::vector<std::int8_t> blocks;  // of Q8_0: 1 in binary16, and 32 integers
  for (int row = 0; row < 3; ++row) {
    blocks.insert(blocks.end(), {0x00, 0x3c});
    for (int i = 0; i < 32; ++i) blocks.push_back(static_cast<std::int8_t>(32 * row + i - 48));
  }
  const mha_tensor c_weight = {blocks.data(), MHA_DTYPE_int8, 2, {3, 34}, {34, 1}};
  const mha_linear_weights weights = {&c_weight, nullptr, nullptr, MHA_WEIGHT_FORMAT_Q8_0};
  mha_linear* linear = nullptr;
  ASSERT_EQ(mha_linear_create(&weights, MHA_WEIGHT_FORMAT_PLAIN, &linear), MHA_OK) << mha_last_error();
  const Owned<mha_linear> owned(linear, &mha_linear_destroy);
  Rows rows = nans<float>({3, 32});
  const mha_tensor c_rows = c_tensor(rows);
  const std::int64_t features[] = {2, 0, 2}, beyond[] = {0, 3, 0};
  EXPECT_OK(mha_linear_dequantize_rows(linear, features, 3, &c_rows));
  for (std::size_t i = 0; i < 96; ++i)
    EXPECT_EQ(rows.data()[i], float(32 * features[i / 32] + std::int64_t(i % 32) - 48));
  expect_failure(MHA_INVALID_ARGUMENT, mha_linear_dequantize_rows(linear, beyond, 3, &c_rows),
                 {"features", "less than 3", "got 3"});
  expect_failure(MHA_INVALID_ARGUMENT, mha_linear_dequantize_rows(linear, nullptr, 3, &c_rows), {"features", "null"});
  expect_failure(MHA_INVALID_ARGUMENT, mha_linear_dequantize_rows(linear, features, 2, &c_rows), {"rows", "[3, 32]"});
}

}  // namespace
}  // namespace mha

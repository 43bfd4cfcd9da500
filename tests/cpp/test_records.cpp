// Calls that keep what their gradients need, in C++ and C: the same bits, and the rows that attention reads.
#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>

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

constexpr Index B = 2, T = 6, E = 16, H = 4, D = 4;

/// The arrays of a record, and their views in both languages.
struct Record {
  Rows query = nans<float>({B, H, T, D}), key = nans<float>({B, H, T, D}), value = nans<float>({B, H, T, D}),
       heads = nans<float>({B, T, E}), lse = nans<float>({B, H, T});
  const AttentionRecord views = {query.view(), key.view(), value.view(), heads.view(), lse.view()};
  const mha_tensor tensors[5] = {c_tensor(query), c_tensor(key), c_tensor(value), c_tensor(heads), c_tensor(lse)};
  const mha_attention_record in_c = {&tensors[0], &tensors[1], &tensors[2], &tensors[3], &tensors[4]};
};

class Records : public ::testing::Test {
 protected:
  const Rows square = Rows::random({E, E}, 1), bias = Rows::random({E}, 2), x = Rows::random({B, T, E}, 3);
  const LinearWeights map = {square.view(), bias.view()};
  const mha_tensor c_square = c_tensor(square), c_bias = c_tensor(bias), c_x = c_tensor(x);
};

TEST_F(Records, HoldTheRowsOfAttention) {
  const MultiHeadAttention layer({E, H}, {map, map, map, map});
  Record record;
  Rows expected = nans<float>({B, T, E}), out = expected;
  AttentionOptions options;
  options.is_causal = true;
  layer.forward(x.view(), x.view(), x.view(), expected.view(), {}, options);
  layer.forward_and_record(x.view(), x.view(), x.view(), nullptr, record.views, out.view(), options);
  EXPECT_EQ(out.data(), expected.data());

  Rows heads = nans<float>({B, T, E}), lse = nans<float>({B, H, T});
  const MutableTensorView by_head(heads.data().data(), DType::f32, {B, H, T, D}, {T * E, D, E, 1});
  scaled_dot_product_attention(record.query.view(), record.key.view(), record.value.view(), by_head, lse.view(),
                               options);
  EXPECT_EQ(record.heads.data(), heads.data());
  EXPECT_EQ(record.lse.data(), lse.data());
}

TEST_F(Records, InCHaveTheSameBits) {
  MultiHeadAttentionConfig config{E, H};
  config.add_bias_kv = config.add_zero_attn = true;
  const MultiHeadAttention layer(config, {map, map, map, map, bias.view(), bias.view()});
  const mha_layer_config c_config = {E, H, 0, 0, 0, 0, 0, 0, true, true, MHA_WEIGHT_FORMAT_PLAIN};
  const mha_linear_weights c_map = {&c_square, &c_bias, nullptr, MHA_WEIGHT_FORMAT_PLAIN};
  const mha_layer_weights c_weights = {c_map, c_map, c_map, c_map, &c_bias, &c_bias};
  mha_layer* c_layer = nullptr;
  ASSERT_EQ(mha_layer_create(&c_config, &c_weights, &c_layer), MHA_OK) << mha_last_error();
  const Owned<mha_layer> owned(c_layer, &mha_layer_destroy);
  Record record, c_record;
  Rows expected = nans<float>({B, T, E}), out = expected, c_out = expected;
  const mha_tensor of_out = c_tensor(c_out);
  layer.forward(x.view(), x.view(), x.view(), expected.view());
  layer.forward_and_record(x.view(), x.view(), x.view(), nullptr, record.views, out.view());
  EXPECT_OK(mha_layer_forward_and_record(c_layer, &c_x, &c_x, &c_x, nullptr, &c_record.in_c, &of_out, nullptr));
  EXPECT_EQ(out.data(), expected.data());
  EXPECT_EQ(c_out.data(), expected.data());
  EXPECT_EQ(c_record.heads.data(), record.heads.data());
  EXPECT_EQ(c_record.lse.data(), record.lse.data());
  EXPECT_EQ(c_record.query.data(), record.query.data());

  // One of all rows as a ragged batch of a single sequence each.
  const std::int64_t offsets[] = {0, 2, 2, T};
  const RaggedBatch batch{3, offsets, offsets};
  const mha_ragged_batch c_batch = {3, offsets, offsets, nullptr};
  const TensorView rows(x.data().data(), {T, E});
  const Index shape[] = {T, E};
  const mha_tensor c_rows = mha_dense(const_cast<float*>(x.data().data()), MHA_DTYPE_f32, 2, shape);
  Rows of_rows = nans<float>({T, E}), c_of_rows = of_rows, expected_rows = of_rows;
  const mha_tensor c_result = c_tensor(c_of_rows);
  Rows query = nans<float>({1, H, T, D}), key = query, value = query, heads = nans<float>({1, T, E}),
       lse = nans<float>({1, H, T});
  const AttentionRecord ragged = {query.view(), key.view(), value.view(), heads.view(), lse.view()};
  layer.forward_varlen(rows, rows, rows, batch, expected_rows.view());
  layer.forward_and_record(rows, rows, rows, &batch, ragged, of_rows.view());
  const mha_tensor tensors[] = {c_tensor(query), c_tensor(key), c_tensor(value), c_tensor(heads), c_tensor(lse)};
  const mha_attention_record c_ragged = {&tensors[0], &tensors[1], &tensors[2], &tensors[3], &tensors[4]};
  EXPECT_OK(mha_layer_forward_and_record(c_layer, &c_rows, &c_rows, &c_rows, &c_batch, &c_ragged, &c_result, nullptr));
  EXPECT_EQ(of_rows.data(), expected_rows.data());
  EXPECT_EQ(c_of_rows.data(), expected_rows.data());

  mha_attention_record missing = c_record.in_c;
  missing.lse = nullptr;
  expect_failure(MHA_INVALID_ARGUMENT,
                 mha_layer_forward_and_record(c_layer, &c_x, &c_x, &c_x, nullptr, &missing, &of_out, nullptr),
                 {"the record of lse must have the shape"});
}

TEST_F(Records, AreRefusedIfTheyDoNotFit) {
  const MultiHeadAttention layer({E, H}, {map, map, map, map});
  Record record;
  Rows out = nans<float>({B, T, E});
  AttentionRecord wrong = record.views;
  wrong.heads = x.view();  // an input
  EXPECT_THROW(layer.forward_and_record(x.view(), x.view(), x.view(), nullptr, wrong, out.view()),
               std::invalid_argument);
  wrong = record.views;
  wrong.key = record.query.view();  // twice the same memory
  EXPECT_THROW(layer.forward_and_record(x.view(), x.view(), x.view(), nullptr, wrong, out.view()),
               std::invalid_argument);
}

TEST_F(Records, SumsAreNormedInOnePass) {
  const Rows residual = Rows::random({B, T, E}, 4);
  const LayerNorm norm(bias.view(), bias.view());
  Rows sum = x, out = nans<float>({B, T, E}), expected = nans<float>({B, T, E}), c_sum = x, c_out = out;
  add_and_normalize(sum.view(), residual.view(), &norm, sum.view(), out.view(), 2);
  for (std::size_t i = 0; i < sum.data().size(); ++i) EXPECT_EQ(sum.data()[i], x.data()[i] + residual.data()[i]);
  norm.forward(sum.view(), expected.view());
  EXPECT_EQ(out.data(), expected.data());

  mha_norm* c_norm = nullptr;
  ASSERT_EQ(mha_norm_create(&c_bias, &c_bias, 1e-5, &c_norm), MHA_OK) << mha_last_error();
  const Owned<mha_norm> owned(c_norm, &mha_norm_destroy);
  const mha_tensor c_residual = c_tensor(residual), of_sum = c_tensor(c_sum), of_out = c_tensor(c_out);
  EXPECT_OK(mha_add_and_normalize(&of_sum, &c_residual, c_norm, &of_sum, &of_out, 1));
  EXPECT_EQ(c_sum.data(), sum.data());
  EXPECT_EQ(c_out.data(), out.data());
  EXPECT_OK(mha_add_and_normalize(&c_x, &c_residual, nullptr, &of_sum, nullptr, 1));
  EXPECT_EQ(c_sum.data(), sum.data());
  expect_failure(MHA_INVALID_ARGUMENT, mha_add_and_normalize(&c_x, &c_residual, nullptr, &of_sum, &of_out, 1),
                 {"out with a norm alone"});
  expect_failure(MHA_INVALID_ARGUMENT, mha_add_and_normalize(&c_x, &c_bias, nullptr, &of_sum, nullptr, 1),
                 {"residual must have the shape of x"});
  expect_failure(MHA_INVALID_ARGUMENT, mha_add_and_normalize(&c_x, &c_residual, c_norm, &of_sum, &of_sum, 1), {"out"});
}

TEST_F(Records, FeedForwardLendsItsMaps) {
  const Rows wide = Rows::random({40, E}, 5), tall = Rows::random({E, 40}, 6), rows = Rows::random({T, E}, 7);
  const FeedForward layer({{wide.view(), {}}, {tall.view(), bias.view()}}, Activation::none);
  Rows hidden = nans<float>({T, 40}), expected = nans<float>({T, E}), out = expected;
  layer.up().forward(rows.view(), hidden.view());
  layer.down().forward(hidden.view(), out.view());
  layer.forward(rows.view(), expected.view());
  EXPECT_EQ(out.data(), expected.data());
  EXPECT_THROW(layer.gate(), std::invalid_argument);

  const mha_tensor c_wide = c_tensor(wide), c_tall = c_tensor(tall), c_rows = c_tensor(rows);
  const mha_feed_forward_weights weights = {{&c_wide, nullptr, nullptr, MHA_WEIGHT_FORMAT_PLAIN},
                                            {&c_tall, &c_bias, nullptr, MHA_WEIGHT_FORMAT_PLAIN},
                                            {&c_wide, nullptr, nullptr, MHA_WEIGHT_FORMAT_PLAIN}};
  mha_feed_forward* gated = nullptr;
  ASSERT_EQ(mha_feed_forward_create(&weights, MHA_ACTIVATION_SILU, MHA_WEIGHT_FORMAT_PLAIN, &gated), MHA_OK);
  const Owned<mha_feed_forward> owned(gated, &mha_feed_forward_destroy);
  for (const auto lend : {&mha_feed_forward_up, &mha_feed_forward_gate}) {
    mha_linear* linear = nullptr;
    ASSERT_EQ(lend(gated, &linear), MHA_OK) << mha_last_error();
    const Owned<mha_linear> owned_linear(linear, &mha_linear_destroy);
    Rows again = nans<float>({T, 40});
    const mha_tensor c_again = c_tensor(again);
    EXPECT_OK(mha_linear_forward(linear, &c_rows, &c_again, 1));
    EXPECT_EQ(again.data(), hidden.data());
  }
  mha_linear* down = nullptr;
  ASSERT_EQ(mha_feed_forward_down(gated, &down), MHA_OK) << mha_last_error();
  const Owned<mha_linear> owned_down(down, &mha_linear_destroy);
  EXPECT_EQ(mha_linear_in_features(down), 40);
}

}  // namespace
}  // namespace mha

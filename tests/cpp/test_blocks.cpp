// Matrices in the blocks of GGUF files, in C++ and in C: their bytes come back, their numbers, and products with them.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "arrays.hpp"
#include "c_calls.hpp"
#include "every_isa.hpp"
#include "mha/errors.hpp"
#include "mha/linear.hpp"
#include "mha/multi_head_attention.hpp"
#include "mha/transformer.hpp"

namespace mha::testing {
namespace {

constexpr Index kRows = 70, kFeatures = 64, kRowBytes = 68;

/// Rows of q8_0: two blocks, each of a scale in binary16 and 32 integers. Scales are powers of two, so products are exact.
Array<std::int8_t> bytes_of_q8_0() {
  Array<std::int8_t> bytes({kRows, kRowBytes}, 0);
  for (Index row = 0; row < kRows; ++row)
    for (Index block = 0; block < 2; ++block) {
      std::int8_t* const at = bytes.data().data() + row * kRowBytes + block * 34;
      at[1] = block == 0 ? 0x3c : 0x38;  // 1 and 0.5
      for (Index i = 0; i < 32; ++i) at[2 + i] = static_cast<std::int8_t>((row * 37 + block * 11 + i * 5) % 256 - 128);
    }
  return bytes;
}

float weight_of(Index row, Index feature) {
  const Index block = feature / 32, i = feature % 32;
  return float((row * 37 + block * 11 + i * 5) % 256 - 128) * (block == 0 ? 1.0f : 0.5f);
}

LinearWeights weights_of(const Array<std::int8_t>& bytes) { return {bytes.view(), {}, {}, WeightFormat::q8_0}; }

TEST(Blocks, NumbersAreScaledIntegers) {
  const Array<std::int8_t> bytes = bytes_of_q8_0();
  Array<float> numbers = nans<float>({kRows, kFeatures});
  dequantize(weights_of(bytes), numbers.view());
  for (Index row = 0; row < kRows; ++row)
    for (Index i = 0; i < kFeatures; ++i)
      ASSERT_EQ(numbers.data()[static_cast<std::size_t>(row * kFeatures + i)], weight_of(row, i));
}

TEST(Blocks, ProductsOfIntegersAreExact) {
  const Array<std::int8_t> bytes = bytes_of_q8_0();
  on_every_isa([&] {
    const Linear layer(weights_of(bytes));
    EXPECT_EQ(layer.weight_format(), WeightFormat::q8_0);
    EXPECT_EQ(layer.in_features(), kFeatures);
    EXPECT_EQ(layer.out_features(), kRows);
    for (Index rows : {1, 2, 3, 9}) {
      Array<float> x({rows, kFeatures}, 0), out = nans<float>({rows, kRows}), once = nans<float>({rows, kRows});
      for (Index r = 0; r < rows; ++r)
        for (Index i = 0; i < kFeatures; ++i)
          x.data()[static_cast<std::size_t>(r * kFeatures + i)] = i % 32 == 0 ? 127.0f : float((r * 7 + i) % 19 - 9);
      layer.forward(x.view(), out.view(), 2);
      linear(x.view(), weights_of(bytes), once.view(), 1);
      for (Index r = 0; r < rows; ++r)
        for (Index c = 0; c < kRows; ++c) {
          float sum = 0;
          for (Index i = 0; i < kFeatures; ++i)
            sum += x.data()[static_cast<std::size_t>(r * kFeatures + i)] * weight_of(c, i);
          ASSERT_EQ(out.data()[static_cast<std::size_t>(r * kRows + c)], sum);
        }
      EXPECT_EQ(once.data(), out.data());
    }
  });
}

TEST(Blocks, BytesComeBackFromC) {
  const Array<std::int8_t> bytes = bytes_of_q8_0();
  const Array<std::int8_t> copied({kRows, kRowBytes}, 0);
  const mha_tensor c_bytes = c_tensor(bytes), c_copied = c_tensor(copied);
  const mha_linear_weights weights = {&c_bytes, nullptr, nullptr, MHA_WEIGHT_FORMAT_Q8_0};
  mha_linear* created = nullptr;
  ASSERT_EQ(mha_linear_create(&weights, MHA_WEIGHT_FORMAT_PLAIN, &created), MHA_OK) << mha_last_error();
  const Owned<mha_linear> linear(created, &mha_linear_destroy);
  EXPECT_EQ(mha_linear_weight_format(created), MHA_WEIGHT_FORMAT_Q8_0);
  EXPECT_EQ(mha_linear_in_features(created), kFeatures);
  const mha_linear_weights copies = {&c_copied, nullptr, nullptr, MHA_WEIGHT_FORMAT_PLAIN};
  EXPECT_OK(mha_linear_copy_weights(created, &copies));
  EXPECT_EQ(copied.data(), bytes.data());
  const Array<float> numbers = nans<float>({kRows, kFeatures});
  const mha_tensor c_numbers = c_tensor(numbers);
  EXPECT_OK(mha_dequantize(&weights, &c_numbers, 1));
  EXPECT_EQ(numbers.data()[40], weight_of(0, 40));
}

TEST(Blocks, EachProjectionHasItsFormat) {
  const Array<std::int8_t> bytes({32, 34}, 0);
  const Array<float> numbers({32, 32}, 1);
  const LinearWeights blocks{bytes.view(), {}, {}, WeightFormat::q8_0}, plain{numbers.view()};
  MultiHeadAttentionConfig config;
  config.embed_dim = 32;
  config.num_heads = 2;
  const MultiHeadAttention layer(config, {blocks, plain, blocks, plain});
  EXPECT_EQ(layer.dtype(), DType::f32);
  const std::array<WeightFormat, 4> expected = {WeightFormat::q8_0, WeightFormat::plain, WeightFormat::q8_0,
                                                WeightFormat::plain};
  EXPECT_EQ(layer.weight_formats(), expected);
  const FeedForward feed_forward({plain, blocks, blocks}, Activation::silu);
  EXPECT_EQ(feed_forward.up().weight_format(), WeightFormat::plain);
  EXPECT_EQ(feed_forward.gate().weight_format(), WeightFormat::q8_0);
}

TEST(Blocks, DamagedBlocksAreRefused) {
  const Array<std::int8_t> cut({4, 33}, 0), whole({4, 34}, 0), wide({4, 68}, 0);
  const Array<float> numbers({4, 32}, 0);
  const auto in = [](const TensorView& matrix, WeightFormat format = WeightFormat::q8_0) {
    return LinearWeights(matrix, {}, {}, format);
  };
  EXPECT_THROW(Linear(in(cut.view())), std::invalid_argument);
  EXPECT_THROW(Linear(in(numbers.view())), DTypeError);
  EXPECT_THROW(Linear(in(whole.view(), WeightFormat::int8)), std::invalid_argument);
  EXPECT_THROW(Linear(LinearWeights(numbers.view()), WeightFormat::q8_0), std::invalid_argument);
  const TensorView every_other(wide.view().data, DType::int8, {4, 34}, {68, 2});
  EXPECT_THROW(Linear(in(every_other)), std::invalid_argument);
  const Array<float> narrow = nans<float>({4, 31});
  EXPECT_THROW(dequantize(in(whole.view()), narrow.view()), std::invalid_argument);
  EXPECT_THROW(dequantize(LinearWeights(numbers.view()), narrow.view()), std::invalid_argument);
}

}  // namespace
}  // namespace mha::testing

// Sizes, strides and positions near the ends of what numbers of 64 bits say.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "arrays.hpp"
#include "mha/mha.h"
#include "mha/mha.hpp"
#include "views/sizes.hpp"

namespace mha {
namespace {

using testing::message_of;

constexpr Index D = 4;

TEST(HugeSizes, ProductsStopAtTheLargestIndex) {
  EXPECT_EQ(saturated_product(3, 5), 15);
  EXPECT_EQ(saturated_product(Index{1} << 40, Index{1} << 40), PTRDIFF_MAX);
  const Index extents[] = {1, Index{1} << 40, Index{1} << 40, 3};
  EXPECT_EQ(mha_dense(nullptr, MHA_DTYPE_f32, 4, extents).strides[0], PTRDIFF_MAX);
  const TensorView view(nullptr, DType::f32, {1, Index{1} << 40, Index{1} << 40, 3});
  EXPECT_EQ(view.strides[0], PTRDIFF_MAX);
}

TEST(HugeSizes, WhatIsAddressableAtAGlance) {
  constexpr Index kMost = (Index{1} << 14) - 1, kFar = (Index{1} << 40) - 1;
  double element = 0;
  const TensorView largest(&element, {kMost, kMost, kMost, kMost}, {kFar, -kFar, kFar, -kFar});
  EXPECT_TRUE(is_plainly_addressable(largest));
  EXPECT_TRUE(is_addressable(largest));
  for (Index extent : {kMost + 1, Index{-1}, Index{PTRDIFF_MIN}})
    EXPECT_FALSE(is_plainly_addressable(TensorView(&element, {1, extent}, {1, 1})));
  for (Index stride : {kFar + 1, -kFar - 2, Index{PTRDIFF_MAX}, Index{PTRDIFF_MIN}})
    EXPECT_FALSE(is_plainly_addressable(TensorView(&element, {1, 1}, {1, stride})));
}

TEST(HugeSizes, OfConfigurations) {
  const Index huge = Index{1} << 40;
  MultiHeadAttentionConfig config{8, huge};
  config.head_dim = huge;
  testing::expect_words(
      message_of<std::invalid_argument>([&] { MultiHeadAttention(config, MultiHeadAttentionWeights{}); }),
      {"MultiHeadAttention", "query_weight"});
  for (const KVCacheConfig& sizes : {KVCacheConfig{0, huge, huge, huge}, KVCacheConfig{huge, huge, 0, huge}})
    EXPECT_THROW(KVCache{sizes}, AllocationError);
  EXPECT_EQ(KVCache({1, 1, 4, 4}).longest(PTRDIFF_MAX), PTRDIFF_MAX);
}

TEST(HugeSizes, PositionsThatDoNotFit) {
  std::vector<float> out(8);
  const MutableTensorView rows(out.data(), {2, 4});
  testing::expect_words(
      message_of<std::invalid_argument>([&] { sinusoidal_positions(rows, std::numeric_limits<std::int64_t>::max()); }),
      {"sinusoidal_positions", "first_position", "9223372036854775807"});
  EXPECT_NO_THROW(sinusoidal_positions(rows, std::numeric_limits<std::int64_t>::max() - 2));
  EXPECT_NO_THROW(sinusoidal_positions(rows, std::numeric_limits<std::int64_t>::min()));
}

TEST(FarPositions, AWindowIsWhereItIs) {
  // One query far from the keys, which only a window as wide as the distance reaches.
  constexpr std::int64_t kFar = std::int64_t{1} << 62, kMost = std::numeric_limits<std::int64_t>::max();
  std::vector<float> x(4 * D, 1), weights(4);
  const TensorView query(x.data(), {1, D}), key(x.data(), {4, D});
  const MutableTensorView out(weights.data(), {1, 4});
  const auto seen = [&](std::int64_t offset, std::int64_t left, std::int64_t right) {
    AttentionOptions options;
    options.query_offset = offset;
    options.window_left = left;
    options.window_right = right;
    attention_weights(query, key, out, options);
    int count = 0;
    for (float weight : weights) count += weight != 0;
    return count;
  };
  EXPECT_EQ(seen(kFar, kFar - 1, 0), 3);
  EXPECT_EQ(seen(kFar, kFar - 3, 0), 1);
  EXPECT_EQ(seen(kFar, kFar - 4, 0), 0);
  EXPECT_EQ(seen(kFar, kMost, 0), 4);
  EXPECT_EQ(seen(kFar, kMost, kMost), 4);
  EXPECT_EQ(seen(-kFar, kMost, kFar), 1);
  EXPECT_EQ(seen(-kFar, -1, kFar - 1), 0);
  EXPECT_EQ(seen(0, kMost, 1), 2);
  for (const std::int64_t beyond : {kFar + 1, kMost, -kFar - 1, std::numeric_limits<std::int64_t>::min()})
    testing::expect_words(message_of<std::invalid_argument>([&] { seen(beyond, 0, 0); }),
                          {"attention_weights: query_offset must lie in [-2^62, 2^62]"});
}

}  // namespace
}  // namespace mha

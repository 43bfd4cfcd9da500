// attention_statistics compared with the statistics of the reference weights, and the calls that it refuses.
#include "mha/attention_statistics.hpp"

#include <gtest/gtest.h>

#include <cstdint>

#include "arrays.hpp"
#include "attention_reference.hpp"
#include "every_isa.hpp"
#include "mha/runtime.hpp"

namespace mha {
namespace {

using testing::Array;
using testing::expect_close;
using testing::expect_words;
using testing::message_of;
using testing::nans;
using testing::tolerance;

/// The results of one call, set beforehand to values that no call gives.
template <class T>
struct Results {
  Array<T> entropy, max_weight, mean_distance, received_weight;
  std::vector<std::int64_t> max_key;

  Results(Index B, Index H, Index Tq, Index Tk)
      : entropy(nans<T>({B, H, Tq})),
        max_weight(nans<T>({B, H, Tq})),
        mean_distance(nans<T>({B, H, Tq})),
        received_weight(nans<T>({B, H, Tk})),
        max_key(static_cast<std::size_t>(B * H * Tq), -7) {}

  AttentionStatistics views() {
    return {entropy.view(), max_weight.view(), max_key.data(), mean_distance.view(), received_weight.view()};
  }
};

template <class T>
class StatisticsOf : public ::testing::Test {
 protected:
  void TearDown() override { set_isa(nullptr); }

  template <class Check>
  void on_every_isa(Check check) {
    testing::on_every_isa([&] {
      check();
      EXPECT_STREQ(last_used_isa(), active_isa());
    });
  }

  void check(const TensorView& query, const TensorView& key, const AttentionOptions& options = {}) {
    const Index B = query.extents[0], H = query.extents[1], Tq = query.extents[2], Tk = key.extents[2];
    const std::vector<double> weights =
        reference::scaled_dot_product_attention(query, key, TensorView(key.data, key.dtype, {B, key.extents[1], Tk, 0}),
                                                options)
            .weights;
    std::vector<double> entropy, max_weight, mean_distance, received(static_cast<std::size_t>(B * H * Tk));
    const double* weight = weights.data();
    for (Index row = 0; row < B * H * Tq; ++row) {
      const Index i = row % Tq,
                  offset = options.query_offsets ? options.query_offsets[row / Tq / H] : options.query_offset;
      double spread = 0, largest = 0, distance = 0;
      for (Index j = 0; j < Tk; ++j, ++weight) {
        if (*weight > 0) spread -= *weight * std::log(*weight);
        largest = std::max(largest, *weight);
        distance += *weight * std::abs(static_cast<double>(offset + i - j));
        received[static_cast<std::size_t>(row / Tq * Tk + j)] += *weight;
      }
      entropy.push_back(spread);
      max_weight.push_back(largest);
      mean_distance.push_back(distance);
    }
    const double bound = tolerance<T>(query.extents[3], Tk, 40);
    on_every_isa([&] {
      Results<T> actual(B, H, Tq, Tk);
      attention_statistics(query, key, actual.views(), options);
      expect_close(actual.entropy.data(), entropy, bound * 8);  // logarithms of weights are below 8
      expect_close(actual.max_weight.data(), max_weight, bound);
      expect_close(actual.mean_distance.data(), mean_distance, bound * static_cast<double>(Tk + Tq));
      expect_close(actual.received_weight.data(), received, bound * static_cast<double>(Tq));
      for (Index row = 0; row < B * H * Tq; ++row) {
        const std::int64_t at = actual.max_key[static_cast<std::size_t>(row)];
        const double largest = max_weight[static_cast<std::size_t>(row)];
        if (largest == 0) {
          EXPECT_EQ(at, -1) << row;
        } else {
          ASSERT_TRUE(at >= 0 && at < Tk) << row;
          EXPECT_NEAR(weights[static_cast<std::size_t>(row * Tk + at)], largest, bound) << row;
        }
      }
    });
  }
};

using Elements = ::testing::Types<float, double>;
TYPED_TEST_SUITE(StatisticsOf, Elements);

TYPED_TEST(StatisticsOf, EveryShape) {
  struct Sizes {
    Index B, H, Hk, Tq, Tk, D;
  };
  for (const Sizes& s : {Sizes{1, 1, 1, 1, 1, 1}, Sizes{2, 3, 3, 7, 9, 5}, Sizes{1, 8, 2, 5, 100, 16},
                         Sizes{1, 4, 1, 65, 129, 40}, Sizes{3, 2, 2, 130, 97, 64}}) {
    const auto query = Array<TypeParam>::random({s.B, s.H, s.Tq, s.D}, 1);
    const auto key = Array<TypeParam>::random({s.B, s.Hk, s.Tk, s.D}, 2);
    this->check(query.view(), key.view());
  }
}

TYPED_TEST(StatisticsOf, EveryOptionAtOnce) {
  constexpr Index B = 2, H = 4, Hk = 2, Tq = 37, Tk = 101, D = 16;
  const auto query = Array<TypeParam>::random({B, H, Tq, D}, 1);
  const auto key = Array<TypeParam>::random({B, Hk, Tk, D}, 2);
  const TypeParam slopes[] = {0.5, 0.25, -0.125, 0}, sinks[] = {1, -2, 0, 4};
  const std::int64_t offsets[] = {-10, 64}, key_lengths[] = {90, 97};
  bool unmasked[Tq * Tk];
  for (Index i = 0; i < Tq * Tk; ++i) unmasked[i] = i * 7919 % 13 < 8 && i / Tk != 15;  // row 15 sees nothing
  AttentionOptions options;
  options.attn_mask = TensorView(unmasked, {Tq, Tk});
  this->check(query.view(), key.view(), options);
  options.is_causal = true;
  options.query_offsets = offsets;
  options.key_lengths = key_lengths;
  options.window_left = 60;
  options.key_mask = TensorView(unmasked, {B, Tk});
  options.softcap = 1.5;
  options.alibi_slopes = TensorView(slopes, {H});
  options.sinks = TensorView(sinks, {H});
  options.num_threads = 2;
  this->check(query.view(), key.view(), options);
}

TYPED_TEST(StatisticsOf, EachResultByItself) {
  constexpr Index H = 2, Tq = 19, Tk = 70, D = 8;
  const auto query = Array<TypeParam>::random({1, H, Tq, D}, 1), key = Array<TypeParam>::random({1, H, Tk, D}, 2);
  Results<TypeParam> all(1, H, Tq, Tk), apart(1, H, Tq, Tk);
  attention_statistics(query.view(), key.view(), all.views());
  const AttentionStatistics views = apart.views();
  AttentionStatistics one;
  attention_statistics(query.view(), key.view(), one);
  one.max_key = views.max_key;
  attention_statistics(query.view(), key.view(), one);
  for (auto member : {&AttentionStatistics::entropy, &AttentionStatistics::max_weight,
                      &AttentionStatistics::mean_distance, &AttentionStatistics::received_weight}) {
    one = {};
    one.*member = views.*member;
    attention_statistics(query.view(), key.view(), one);
  }
  EXPECT_EQ(apart.entropy.data(), all.entropy.data());
  EXPECT_EQ(apart.max_weight.data(), all.max_weight.data());
  EXPECT_EQ(apart.max_key, all.max_key);
  EXPECT_EQ(apart.mean_distance.data(), all.mean_distance.data());
  EXPECT_EQ(apart.received_weight.data(), all.received_weight.data());
}

TYPED_TEST(StatisticsOf, AStridedResultAndMissingAxes) {
  constexpr Index H = 3, T = 21, D = 8;
  const auto x = Array<TypeParam>::random({1, H, T, D}, 1);
  Results<TypeParam> expected(1, H, T, T);
  attention_statistics(x.view(), x.view(), expected.views());
  auto entropy = nans<TypeParam>({T, H}), received = nans<TypeParam>({H, 2 * T});
  const TensorView without_batch(x.data().data(), {H, T, D});
  AttentionStatistics views;
  views.entropy = MutableTensorView(entropy.data().data(), {H, T}, {1, H});
  views.received_weight = MutableTensorView(received.data().data(), {H, T}, {2 * T, 2});
  attention_statistics(without_batch, without_batch, views);
  for (Index h = 0; h < H; ++h)
    for (Index t = 0; t < T; ++t) {
      const auto at = static_cast<std::size_t>(h * T + t);
      EXPECT_EQ(entropy.data()[static_cast<std::size_t>(t * H + h)], expected.entropy.data()[at]);
      EXPECT_EQ(received.data()[at * 2], expected.received_weight.data()[at]);
      EXPECT_TRUE(std::isnan(received.data()[at * 2 + 1])) << "memory between the elements was written";
    }
}

TYPED_TEST(StatisticsOf, EmptySizes) {
  const TypeParam nothing = 0;
  const auto query = Array<TypeParam>::random({2, 3, 5, 4}, 1);
  Results<TypeParam> no_keys(2, 3, 5, 0), no_queries(2, 3, 0, 5);
  attention_statistics(query.view(), TensorView(&nothing, {2, 3, 0, 4}), no_keys.views());
  for (const auto* array : {&no_keys.entropy, &no_keys.max_weight, &no_keys.mean_distance})
    for (TypeParam element : array->data()) EXPECT_EQ(element, 0);
  for (std::int64_t key : no_keys.max_key) EXPECT_EQ(key, -1);
  attention_statistics(TensorView(&nothing, {2, 3, 0, 4}), query.view(), no_queries.views());
  for (TypeParam element : no_queries.received_weight.data()) EXPECT_EQ(element, 0);
  EXPECT_NO_THROW(attention_statistics(TensorView(&nothing, {0, 3, 5, 4}), TensorView(&nothing, {0, 3, 5, 4}), {}));
}

TYPED_TEST(StatisticsOf, TheSameBitsOnAnyNumberOfThreads) {
  constexpr Index B = 2, H = 8, Tq = 150, Tk = 170, D = 64;
  const auto query = Array<TypeParam>::random({B, H, Tq, D}, 1), key = Array<TypeParam>::random({B, 2, Tk, D}, 2);
  this->on_every_isa([&] {
    AttentionOptions options;
    options.num_threads = 1;
    Results<TypeParam> one(B, H, Tq, Tk);
    attention_statistics(query.view(), key.view(), one.views(), options);
    for (int threads : {2, 3, 7}) {
      options.num_threads = threads;
      Results<TypeParam> more(B, H, Tq, Tk);
      attention_statistics(query.view(), key.view(), more.views(), options);
      EXPECT_EQ(more.entropy.data(), one.entropy.data()) << threads;
      EXPECT_EQ(more.max_weight.data(), one.max_weight.data()) << threads;
      EXPECT_EQ(more.max_key, one.max_key) << threads;
      EXPECT_EQ(more.mean_distance.data(), one.mean_distance.data()) << threads;
      EXPECT_EQ(more.received_weight.data(), one.received_weight.data()) << threads;
    }
  });
}

TEST(StatisticsValidation, WhatIsRefused) {
  constexpr Index B = 2, H = 4, Tq = 5, Tk = 7, D = 8;
  Array<float> query({B, H, Tq, D}, 1), key({B, H, Tk, D}, 1);
  Array<double> doubles({B, H, Tk}, 3);
  Results<float> results(B, H, Tq, Tk);
  AttentionStatistics views = results.views();
  AttentionOptions options;
  const auto refused = [&](auto error) {
    const std::string message =
        message_of<decltype(error)>([&] { attention_statistics(query.view(), key.view(), views, options); });
    EXPECT_TRUE(std::isnan(results.entropy.data()[0])) << "written before the error: " << message;
    expect_words(message, {"attention_statistics: "});
    views = results.views();
    options = {};
    return message;
  };
  const std::invalid_argument value("");
  const DTypeError dtype("");
  views.entropy.extents[2] = Tk;
  expect_words(refused(value), {"entropy", "[2, 4, 7]", "query [2, 4, 5, 8]"});
  views.received_weight.extents[2] = Tq;
  expect_words(refused(value), {"received_weight", "ending in 7", "[2, 4, 5]"});
  views.mean_distance = MutableTensorView(doubles.data().data(), {B, H, Tq});
  expect_words(refused(dtype), {"mean_distance float64"});
  views.max_weight.data = query.data().data();
  expect_words(refused(value), {"max_weight must not overlap query"});
  views.max_key = reinterpret_cast<std::int64_t*>(key.data().data());
  expect_words(refused(value), {"max_key must not overlap key"});
  views.mean_distance = views.entropy;
  expect_words(refused(value), {"mean_distance must not overlap entropy"});
  views.received_weight.data = results.max_key.data();
  expect_words(refused(value), {"received_weight must not overlap max_key"});
  views.entropy.strides[1] = 0;
  expect_words(refused(value), {"entropy", "stride of 0"});
  options.window_left = -2;
  expect_words(refused(value), {"window", "(-2, -1)"});
  const std::int64_t too_long[] = {7, 8};
  options.key_lengths = too_long;
  expect_words(refused(value), {"key_lengths", "8"});
  EXPECT_NO_THROW(attention_statistics(query.view(), key.view(), views, options));
}

}  // namespace
}  // namespace mha

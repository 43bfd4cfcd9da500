// Experts: results, bits, memory, refusals, and the same in C. Layers with experts are in the tests in Python, too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "allocator.hpp"
#include "c_calls.hpp"
#include "every_isa.hpp"
#include "transformer_layers.hpp"

namespace mha {
namespace {

using testing::c_tensor;
using testing::Owned;
using testing::Rows;

constexpr Index kWidth = 40, kInner = 24, kCount = 5, kRows = 70;

FeedForward network(unsigned seed, WeightFormat format = WeightFormat::plain, Index inner = kInner) {
  const Rows up = Rows::random({inner, kWidth}, seed), gate = Rows::random({inner, kWidth}, seed + 1);
  const Rows down = Rows::random({kWidth, inner}, seed + 2);
  return {{{up.view()}, {down.view()}, {gate.view()}}, Activation::silu, format};
}

Linear map(Index out_features, unsigned seed) {
  const Rows weight = Rows::random({out_features, kWidth}, seed);
  return Linear({weight.view()});
}

ExpertsConfig choice_of(Index used) {
  ExpertsConfig config;
  config.experts_per_token = used;
  return config;
}

std::vector<FeedForward> networks(WeightFormat format = WeightFormat::plain) {
  std::vector<FeedForward> all;
  for (unsigned i = 0; i < kCount; ++i) all.push_back(network(10 * i, format));
  return all;
}

Experts experts(Index used, WeightFormat format = WeightFormat::plain, bool with_shared = false) {
  const FeedForward shared = network(100, format, 2 * kInner);
  const Linear gate = map(1, 200);
  return {map(kCount, 300), networks(format).data(),         kCount,
          choice_of(used),  with_shared ? &shared : nullptr, with_shared ? &gate : nullptr};
}

std::vector<float> forward(const Experts& layer, const Rows& x, int threads) {
  Rows out({x.view().extents[0], kWidth}, 0);
  layer.forward(x.view(), out.view(), threads);
  return out.data();
}

TEST(Experts, AreWeightedByTheSoftmaxOfTheirLogits) {
  const Rows x = Rows::random({kRows, kWidth}, 7);
  Rows logits({kRows, kCount}, 0);
  map(kCount, 300).forward(x.view(), logits.view());
  std::vector<Rows> results;
  for (const FeedForward& one : networks()) {
    results.emplace_back(Rows({kRows, kWidth}, 0));
    one.forward(x.view(), results.back().view());
  }
  const std::vector<float> found = forward(experts(kCount), x, 2);
  for (Index row = 0; row < kRows; ++row) {
    const float* const of_row = logits.data().data() + row * kCount;
    double sum = 0;
    for (Index e = 0; e < kCount; ++e) sum += std::exp(double(of_row[e]));
    for (Index c = 0; c < kWidth; ++c) {
      double expected = 0, size = 0;
      for (Index e = 0; e < kCount; ++e) {
        const double term =
            std::exp(double(of_row[e])) / sum * double(results[std::size_t(e)].data()[std::size_t(row * kWidth + c)]);
        expected += term;
        size += std::abs(term);
      }
      EXPECT_NEAR(double(found[std::size_t(row * kWidth + c)]), expected, 1e-6 * size);
    }
  }
}

TEST(Experts, RowsHaveTheBitsThatTheyHaveAlone) {
  testing::on_every_isa([] {
    for (const WeightFormat format : {WeightFormat::plain, WeightFormat::bf16, WeightFormat::int8}) {
      const Experts layer = experts(2, format, true);
      const Rows x = Rows::random({kRows, kWidth}, 8);
      const std::vector<float> whole = forward(layer, x, 1);
      for (int threads : {2, 3, 7}) EXPECT_EQ(forward(layer, x, threads), whole) << threads << " threads";
      for (Index row : {Index{0}, Index{33}, kRows - 1}) {
        Rows one({1, kWidth}, 0);
        std::copy_n(x.data().data() + row * kWidth, kWidth, one.data().data());
        const float* const expected = whole.data() + row * kWidth;
        EXPECT_EQ(forward(layer, one, 2), std::vector<float>(expected, expected + kWidth)) << "row " << row;
      }
    }
  });
}

TEST(Experts, ARepeatedCallAllocatesNothing) {
  const Experts layer = experts(2, WeightFormat::plain, true);
  const Rows x = Rows::random({kRows, kWidth}, 9);
  Rows out({kRows, kWidth}, 0);
  TransformerLayer of_stack{testing::attention(kWidth, 4, kWidth, 1), {}, {}, {}, {}, {}};
  of_stack.norm_placement = NormPlacement::before;
  of_stack.experts = layer;
  const TransformerStack stack(&of_stack, 1);
  for (int threads : {1, 2, 3}) {
    const auto both = [&] {
      layer.forward(x.view(), out.view(), threads);
      stack.forward(x.view(), out.view(), testing::with_threads(threads));
    };
    both();
    const long before = testing::allocations();
    both();
    EXPECT_EQ(testing::allocations() - before, 0) << threads << " threads";
  }
}

TEST(Experts, FailingAllocationsAreReported) {
  const Experts layer = experts(2, WeightFormat::int8, true);
  const Rows x = Rows::random({kRows, kWidth}, 9);
  for (long n = 1;; ++n) {
    ASSERT_LT(n, 100) << "allocates for ever";
    Rows out({kRows, kWidth}, 0);
    const Rows untouched = out;
    bool has_failed = false;
    std::thread([&] {  // which has no scratch memory yet
      testing::fail_allocation(n);
      try {
        layer.forward(x.view(), out.view(), 2);
      } catch (const std::bad_alloc&) {
        has_failed = true;
      }
      testing::fail_allocation(0);
    })
        .join();
    if (!has_failed) {
      EXPECT_GT(n, 1);
      return;
    }
    EXPECT_EQ(out.data(), untouched.data());
  }
}

TEST(Experts, InCHaveTheSameBits) {
  const std::vector<FeedForward> all = networks();
  const FeedForward shared = network(100, WeightFormat::plain, 2 * kInner);
  const Linear router = map(kCount, 300), gate = map(1, 200);
  std::vector<const mha_feed_forward*> handles;
  for (const FeedForward& one : all) handles.push_back(reinterpret_cast<const mha_feed_forward*>(&one));
  const auto c_linear = [](const Linear& linear) { return reinterpret_cast<const mha_linear*>(&linear); };
  const mha_experts_config config = {2, false, true, 1};
  mha_experts* made = nullptr;
  EXPECT_OK(mha_experts_create(c_linear(router), handles.data(), kCount, &config,
                               reinterpret_cast<const mha_feed_forward*>(&shared), c_linear(gate), nullptr, &made));
  const Owned<mha_experts> layer(made, &mha_experts_destroy);
  EXPECT_EQ(mha_experts_num_experts(made), kCount);
  EXPECT_EQ(mha_experts_embed_dim(made), kWidth);
  EXPECT_EQ(mha_experts_dtype(made), MHA_DTYPE_f32);
  EXPECT_EQ(mha_experts_config_of(made).experts_per_token, 2);
  const Rows x = Rows::random({kRows, kWidth}, 9);
  Rows out({kRows, kWidth}, 0);
  const mha_tensor c_x = c_tensor(x), c_out = c_tensor(out);
  EXPECT_OK(mha_experts_forward(made, &c_x, &c_out, 2));
  EXPECT_EQ(out.data(), forward(experts(2, WeightFormat::plain, true), x, 1));

  const MultiHeadAttention attention = testing::attention(kWidth, 4, kWidth, 1);
  mha_transformer_layer parts = {};
  parts.self_attention = reinterpret_cast<const mha_layer*>(&attention);
  parts.experts = made;
  mha_transformer* stack = nullptr;
  EXPECT_OK(mha_transformer_create(&parts, 1, nullptr, &stack));
  const Owned<mha_transformer> owned(stack, &mha_transformer_destroy);
  EXPECT_EQ(mha_transformer_layer_of(stack, 0).feed_forward, nullptr);
  EXPECT_EQ(mha_experts_num_experts(mha_transformer_layer_of(stack, 0).experts), kCount);
  parts.feed_forward = handles[0];
  testing::expect_failure(MHA_INVALID_ARGUMENT, mha_transformer_create(&parts, 1, nullptr, &stack),
                          {"either a feed_forward or experts"});
  testing::expect_failure(MHA_INVALID_ARGUMENT,
                          mha_experts_create(c_linear(router), nullptr, 2, &config, nullptr, nullptr, nullptr, &made),
                          {"feed_forwards"});
}

TEST(Experts, EachHasAFormatOfItsOwn) {
  const WeightFormat formats[kCount] = {WeightFormat::plain, WeightFormat::int8, WeightFormat::bf16, WeightFormat::int4,
                                        WeightFormat::int8};
  std::vector<FeedForward> all;
  for (unsigned i = 0; i < kCount; ++i) all.push_back(network(10 * i, formats[i]));
  const Linear router = map(kCount, 300);
  const Rows x = Rows::random({kRows, kWidth}, 7);
  const std::vector<float> found = forward(Experts(router, all.data(), kCount, choice_of(1)), x, 2);
  Rows logits({kRows, kCount}, 0), expected({1, kWidth}, 0);
  router.forward(x.view(), logits.view());
  for (Index row = 0; row < kRows; ++row) {
    const float* const of_row = logits.data().data() + row * kCount;
    const TensorView own(x.data().data() + row * kWidth, DType::f32, {1, kWidth});
    all[static_cast<std::size_t>(std::max_element(of_row, of_row + kCount) - of_row)].forward(own, expected.view());
    for (Index c = 0; c < kWidth; ++c)
      ASSERT_EQ(found[static_cast<std::size_t>(row * kWidth + c)], expected.data()[static_cast<std::size_t>(c)]) << row;
  }
}

TEST(Experts, PartsThatDoNotFitAreRefused) {
  std::vector<FeedForward> all = networks();
  const Linear router = map(kCount, 300), gate = map(2, 200);
  const auto refuses = [&](Index count, Index used, const char* word, const Linear* shared_gate = nullptr,
                           const FeedForward* shared = nullptr, const TensorView& correction = {}) {
    try {
      const Experts made(router, all.data(), count, choice_of(used), shared, shared_gate, correction);
      ADD_FAILURE() << word;
    } catch (const std::invalid_argument& error) {
      testing::expect_words(error.what(), {"Experts: ", word});
    }
  };
  refuses(0, 1, "there must be at least 1 expert");
  refuses(kCount - 1, 1, "out_features of router must be 4; got 5");
  refuses(kCount, 0, "experts_per_token must be from 1 to 5; got 0");
  refuses(kCount, kCount + 1, "experts_per_token must be from 1 to 5; got 6");
  refuses(kCount, 1, "shared_gate must not be given without shared", &gate);
  refuses(kCount, 1, "out_features of shared_gate must be 1; got 2", &gate, &all[0]);
  const Rows correction({kCount}, 1);
  refuses(kCount, 1, "correction must not be given without is_sigmoid", nullptr, nullptr, correction.view());
  all[2] = network(1, WeightFormat::plain, kInner + 1);
  refuses(kCount, 1, "feedforward_dim of expert 2 must be 24; got 25");
}

}  // namespace
}  // namespace mha

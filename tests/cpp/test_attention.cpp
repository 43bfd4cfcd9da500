// Attention compared with the reference: views of all layouts, every option.
#include "mha/attention.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <utility>

#include "arrays.hpp"
#include "attention_reference.hpp"
#include "every_isa.hpp"
#include "mha/runtime.hpp"

namespace mha {
namespace {

using testing::Array;
using testing::expect_close;
using testing::nans;
using testing::tolerance;

template <class T>
class AttentionOf : public ::testing::Test {
 protected:
  void TearDown() override { set_isa(nullptr); }

  /// Runs `check` on every instruction set of this machine.
  template <class Check>
  void on_every_isa(Check check) {
    testing::on_every_isa([&] {
      check();
      EXPECT_STREQ(last_used_isa(), active_isa());
    });
  }

  /// Compares attention and its weights with the reference. The results are written to arrays of NaN.
  void check(const TensorView& query, const TensorView& key, const TensorView& value,
             const AttentionOptions& options = {}) {
    const reference::Attention expected = reference::scaled_dot_product_attention(query, key, value, options);
    const Index B = query.extents[0], H = query.extents[1], Tq = query.extents[2], Tk = key.extents[2];
    const double bound = tolerance<T>(query.extents[3], Tk, 40) * 4;  // values are below 4
    on_every_isa([&] {
      Array<T> out = nans<T>({B, H, Tq, value.extents[3]}), lse = nans<T>({B, H, Tq}),
               weights = nans<T>({B, H, Tq, Tk});
      scaled_dot_product_attention(query, key, value, out.view(), lse.view(), options);
      expect_close(out.data(), expected.out, bound);
      expect_close(lse.data(), expected.lse, bound);
      attention_weights(query, key, weights.view(), options);
      expect_close(weights.data(), expected.weights, bound);
      for (const auto& [stage, scores] : {std::pair(ScoreStage::scaled, expected.scaled),
                                          {ScoreStage::capped, expected.capped},
                                          {ScoreStage::masked, expected.masked}}) {
        Array<T> result = nans<T>({B, H, Tq, Tk});
        attention_weights(query, key, result.view(), options, stage);
        expect_close(result.data(), scores, bound);
      }
    });
  }
};

using Elements = ::testing::Types<float, double>;
TYPED_TEST_SUITE(AttentionOf, Elements);

TYPED_TEST(AttentionOf, EveryShape) {
  struct Sizes {
    Index B, H, Hk, Tq, Tk, D, Dv;
  };
  for (const Sizes& s : {Sizes{1, 1, 1, 1, 1, 1, 1}, Sizes{2, 3, 3, 7, 9, 5, 4}, Sizes{1, 8, 2, 5, 100, 16, 33},
                         Sizes{1, 4, 1, 65, 129, 40, 8}, Sizes{3, 2, 2, 96, 97, 64, 64}}) {
    const auto query = Array<TypeParam>::random({s.B, s.H, s.Tq, s.D}, 1);
    const auto key = Array<TypeParam>::random({s.B, s.Hk, s.Tk, s.D}, 2);
    const auto value = Array<TypeParam>::random({s.B, s.Hk, s.Tk, s.Dv}, 3);
    this->check(query.view(), key.view(), value.view());
  }
}

TYPED_TEST(AttentionOf, EveryOption) {
  constexpr Index B = 2, H = 4, Hk = 2, Tq = 37, Tk = 101, D = 16;
  const auto query = Array<TypeParam>::random({B, H, Tq, D}, 1);
  const auto key = Array<TypeParam>::random({B, Hk, Tk, D}, 2);
  const auto value = Array<TypeParam>::random({B, Hk, Tk, D}, 3);
  const auto check = [&](const AttentionOptions& options) {
    this->check(query.view(), key.view(), value.view(), options);
  };

  AttentionOptions causal;
  causal.is_causal = true;
  check(causal);
  causal.query_offset = 50;
  check(causal);
  const std::int64_t offsets[] = {-10, 64};
  causal.query_offsets = offsets;
  check(causal);

  AttentionOptions window;
  window.window_left = 7;
  window.window_right = 2;
  window.query_offset = 20;
  check(window);

  AttentionOptions lengths;
  const std::int64_t key_lengths[] = {0, 97};
  lengths.key_lengths = key_lengths;
  check(lengths);

  AttentionOptions scaled;
  scaled.scale = -0.3;
  check(scaled);
  scaled.scale = 0;
  check(scaled);

  AttentionOptions masked;
  bool unmasked[Tq * Tk];
  for (Index i = 0; i < Tq * Tk; ++i) unmasked[i] = i * 7919 % 13 < 8 && i / Tk != 5;  // row 5 sees nothing
  masked.attn_mask = TensorView(unmasked, {Tq, Tk});
  check(masked);
  masked.attn_mask = TensorView(unmasked, {Tk}, {-1});  // one row for all queries, backwards from its end
  masked.attn_mask.data = unmasked + Tk - 1;
  check(masked);

  auto bias = Array<TypeParam>::random({H, 1, Tk}, 4);
  for (Index i = 0; i < H * Tk; i += 3)
    bias.data()[static_cast<std::size_t>(i)] = -std::numeric_limits<TypeParam>::infinity();
  AttentionOptions biased;
  biased.attn_mask = bias.view();
  check(biased);

  AttentionOptions all = biased;
  all.key_mask = TensorView(unmasked, {B, Tk});
  all.is_causal = true;
  all.query_offsets = offsets;
  all.key_lengths = key_lengths;
  all.window_left = 60;
  all.scale = 0.2;
  all.num_threads = 2;
  check(all);
}

TYPED_TEST(AttentionOf, EveryChangeOfTheScores) {
  constexpr Index B = 2, H = 4, Hk = 2, Tq = 37, Tk = 101, D = 16;
  const auto query = Array<TypeParam>::random({B, H, Tq, D}, 1);
  const auto key = Array<TypeParam>::random({B, Hk, Tk, D}, 2);
  const auto value = Array<TypeParam>::random({B, Hk, Tk, D}, 3);
  const TypeParam slopes[] = {0.5, 0.25, -0.125, 0}, sinks[] = {1, -2, 0, 4};
  const auto by_distance = Array<TypeParam>::random({H, 2 * 30 + 1}, 5);
  const std::int64_t offsets[] = {-10, 64}, key_lengths[] = {0, 97};
  bool unmasked[Tq * Tk];
  for (Index i = 0; i < Tq * Tk; ++i) unmasked[i] = i * 7919 % 13 < 8 && i / Tk != 5;  // row 5 sees nothing
  const auto bias = Array<TypeParam>::random({H, 1, Tk}, 4);

  // Each score option by itself and all together; each of these without a mask, with each kind of mask, and with
  // bounds.
  for (int which = 1; which <= 5; ++which) {
    AttentionOptions options;
    if (which == 1 || which == 5) options.softcap = 1.5;
    if (which == 2 || which == 5) options.alibi_slopes = TensorView(slopes, {H});
    if (which == 3 || which == 5) options.sinks = TensorView(sinks, {H});
    if (which == 4 || which == 5) options.position_bias = by_distance.view();
    const auto check = [&] {
      SCOPED_TRACE(which);
      this->check(query.view(), key.view(), value.view(), options);
    };
    check();
    options.query_offset = 20;
    options.attn_mask = TensorView(unmasked, {Tq, Tk});
    check();
    options.attn_mask = bias.view();
    options.scale = -0.3;
    check();
    options.is_causal = true;
    options.query_offsets = offsets;
    options.key_lengths = key_lengths;
    options.window_left = 60;
    options.key_mask = TensorView(unmasked, {B, Tk});
    options.num_threads = 2;
    check();
  }

  // Slopes of each batch element, these and the heads by stride, and with several rows in a tile or one.
  const TypeParam of_each[] = {0.5, 0.25, -0.125, 0, 1, 0.75, -0.5, 0.0625};
  for (Index rows : {Tq, Index{1}}) {
    AttentionOptions each;
    const TensorView queries(query.data().data(), {B, H, rows, D});
    for (const TensorView& slopes_of_each :
         {TensorView(of_each, {B, H}), TensorView(of_each + 3, {B, H}, {4, -1}), TensorView(of_each, {1, H})}) {
      each.alibi_slopes = slopes_of_each;
      this->check(queries, key.view(), value.view(), each);
    }
  }

  // Values for each head, by stride: one number for all heads, and the heads in reverse order.
  AttentionOptions strided;
  strided.alibi_slopes = TensorView(slopes, {H}, {0});
  strided.sinks = TensorView(sinks + 3, {H}, {-1});
  strided.position_bias = TensorView(by_distance.data().data(), {H, 7}, {0, 3});
  this->check(query.view(), key.view(), value.view(), strided);
}

TYPED_TEST(AttentionOf, ARowThatSeesNothingButItsSink) {
  constexpr Index H = 2, Tq = 70, Tk = 65, D = 8;
  const auto x = Array<TypeParam>::random({1, H, Tq, D}, 1);
  const auto key = nans<TypeParam>({1, H, Tk, D});
  const TypeParam sinks[] = {TypeParam(0.3), -std::numeric_limits<TypeParam>::infinity()};
  const std::int64_t key_lengths[] = {0};
  AttentionOptions options;
  options.sinks = TensorView(sinks, {H});
  options.key_lengths = key_lengths;
  this->on_every_isa([&] {
    auto out = nans<TypeParam>({1, H, Tq, D}), lse = nans<TypeParam>({1, H, Tq}),
         weights = nans<TypeParam>({1, H, Tq, Tk});
    scaled_dot_product_attention(x.view(), key.view(), key.view(), out.view(), lse.view(), options);
    attention_weights(x.view(), key.view(), weights.view(), options);
    for (TypeParam element : out.data()) EXPECT_EQ(element, 0);
    for (TypeParam element : weights.data()) EXPECT_EQ(element, 0);
    for (Index i = 0; i < H * Tq; ++i) EXPECT_EQ(lse.data()[static_cast<std::size_t>(i)], sinks[i / Tq]) << i;
  });
}

TYPED_TEST(AttentionOf, AnyStrides) {
  constexpr Index B = 2, H = 3, Tq = 19, Tk = 70, D = 12;
  // One buffer of [B, T, 3, H, D], as a fused projection writes it.
  const auto packed = Array<TypeParam>::random({B, Tk, 3 * H * D}, 1);
  const TypeParam* const data = packed.data().data();
  const Index T_step = 3 * H * D;
  const TensorView query(data, {B, H, Tq, D}, {Tk * T_step, D, T_step, 1});
  const TensorView key(data + H * D, {B, H, Tk, D}, {Tk * T_step, D, T_step, 1});
  const TensorView value(data + 2 * H * D, {B, H, Tk, D}, {Tk * T_step, D, T_step, 1});
  this->check(query, key, value);

  // Negative strides on every axis, and every second element of a row.
  const auto wide = Array<TypeParam>::random({B, H, Tk, 2 * D}, 2);
  const TypeParam* const last = wide.data().data() + wide.data().size() - 1;
  const TensorView backwards(last, {B, H, Tk, D}, {-H * Tk * 2 * D, -Tk * 2 * D, -2 * D, -2});
  this->check(query, backwards, backwards);

  // One key and one value, shared by all heads and batch elements.
  const TensorView shared(data, {B, H, Tk, D}, {0, 0, T_step, 1});
  this->check(query, shared, shared);
}

TYPED_TEST(AttentionOf, AStridedResult) {
  constexpr Index H = 2, T = 20, D = 8;
  const auto x = Array<TypeParam>::random({1, H, T, D}, 1);
  const reference::Attention expected = reference::scaled_dot_product_attention(x.view(), x.view(), x.view());
  this->on_every_isa([&] {
    auto buffer = nans<TypeParam>({T, H, D, 3});
    auto lse_buffer = nans<TypeParam>({T, H});
    const MutableTensorView out(buffer.data().data() + 1, {1, H, T, D}, {0, D * 3, H * D * 3, 3});
    const MutableTensorView lse(lse_buffer.data().data(), {1, H, T}, {0, 1, H});
    scaled_dot_product_attention(x.view(), x.view(), x.view(), out, lse);
    std::vector<TypeParam> written, written_lse;
    for (Index h = 0; h < H; ++h)
      for (Index t = 0; t < T; ++t) {
        for (Index d = 0; d < D; ++d)
          written.push_back(buffer.data()[static_cast<std::size_t>(((t * H + h) * D + d) * 3 + 1)]);
        written_lse.push_back(lse_buffer.data()[static_cast<std::size_t>(t * H + h)]);
      }
    expect_close(written, expected.out, tolerance<TypeParam>(D, T, 10) * 4);
    expect_close(written_lse, expected.lse, tolerance<TypeParam>(D, T, 10) * 4);
    Index between = 0;
    for (const TypeParam& element : buffer.data()) between += std::isnan(element);
    EXPECT_EQ(between, H * T * D * 2) << "memory between the elements was written";
  });
}

TYPED_TEST(AttentionOf, MissingLeadingAxes) {
  constexpr Index H = 3, T = 9, D = 4;
  const auto x = Array<TypeParam>::random({1, H, T, D}, 1);
  auto expected = nans<TypeParam>({1, H, T, D}), out = nans<TypeParam>({1, H, T, D});
  scaled_dot_product_attention(x.view(), x.view(), x.view(), expected.view());
  const TypeParam* const data = x.data().data();
  const TensorView without_batch(data, {H, T, D});
  scaled_dot_product_attention(without_batch, without_batch, without_batch,
                               MutableTensorView(out.data().data(), {H, T, D}));
  EXPECT_EQ(out.data(), expected.data());
  for (Index h = 0; h < H; ++h) {
    const TensorView head(data + h * T * D, {T, D});
    scaled_dot_product_attention(head, head, head, MutableTensorView(out.data().data() + h * T * D, {T, D}));
  }
  EXPECT_EQ(out.data(), expected.data());
}

TYPED_TEST(AttentionOf, EmptySizes) {
  const TypeParam nothing = 0;
  const TensorView no_keys(&nothing, {2, 3, 0, 4});
  const auto query = Array<TypeParam>::random({2, 3, 5, 4}, 1);
  auto out = nans<TypeParam>({2, 3, 5, 4}), lse = nans<TypeParam>({2, 3, 5});
  scaled_dot_product_attention(query.view(), no_keys, no_keys, out.view(), lse.view());
  for (TypeParam element : out.data()) EXPECT_EQ(element, 0);
  for (TypeParam element : lse.data()) EXPECT_EQ(element, -std::numeric_limits<TypeParam>::infinity());

  TypeParam untouched = 7;
  for (const TensorView& empty :
       {TensorView(&nothing, {0, 3, 5, 4}), TensorView(&nothing, {2, 0, 5, 4}), TensorView(&nothing, {2, 3, 0, 4})}) {
    MutableTensorView result;
    result = MutableTensorView(&untouched, {empty.extents[0], empty.extents[1], empty.extents[2], 4});
    EXPECT_NO_THROW(scaled_dot_product_attention(empty, empty, empty, result));
    EXPECT_EQ(untouched, 7);
  }
}

TYPED_TEST(AttentionOf, TheSameBitsOnAnyNumberOfThreads) {
  constexpr Index H = 8, T = 150, D = 64;
  const auto x = Array<TypeParam>::random({2, H, T, D}, 1);
  const auto numbers = Array<TypeParam>::random({H}, 2);
  AttentionOptions modified;
  modified.softcap = 3;
  modified.alibi_slopes = modified.sinks = numbers.view();
  for (AttentionOptions options : {AttentionOptions{}, modified})
    this->on_every_isa([&] {
      auto one = nans<TypeParam>({2, H, T, D});
      options.num_threads = 1;
      scaled_dot_product_attention(x.view(), x.view(), x.view(), one.view(), {}, options);
      for (int threads : {2, 3, 7}) {
        auto out = nans<TypeParam>({2, H, T, D});
        options.num_threads = threads;
        scaled_dot_product_attention(x.view(), x.view(), x.view(), out.view(), {}, options);
        EXPECT_EQ(out.data(), one.data()) << threads << " threads, softcap " << options.softcap;
      }
    });
}

TEST(Attention, ANanInAnyColumnOfAMaskedValueStaysBehindTheMask) {
  constexpr Index queries = 6, keys = 9, width = 7;
  const auto q = Array<float>::random({queries, width}, 1), k = Array<float>::random({keys, width}, 2);
  const auto value = Array<float>::random({keys, width}, 3);
  bool mask[keys];
  for (Index i = 0; i < keys; ++i) mask[i] = i != 4;
  AttentionOptions options;
  options.attn_mask = TensorView(mask, {1, keys});
  auto expected = nans<float>({queries, width});
  scaled_dot_product_attention(q.view(), k.view(), value.view(), expected.view(), {}, options);
  for (Index column = 0; column < width; ++column) {
    auto spoiled = value;
    spoiled.data()[4 * width + column] = std::numeric_limits<float>::quiet_NaN();
    auto out = nans<float>({queries, width});
    scaled_dot_product_attention(q.view(), k.view(), spoiled.view(), out.view(), {}, options);
    expect_close(out.data(), {expected.data().begin(), expected.data().end()}, tolerance<float>(width, keys, 4));
  }
}

}  // namespace
}  // namespace mha

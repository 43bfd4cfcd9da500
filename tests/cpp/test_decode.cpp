// Few query rows, which have a kernel of their own: a row has the bits that it has among many rows, whichever threads
// sum the spans of keys, and nothing behind a mask has an effect.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "arrays.hpp"
#include "attention_reference.hpp"
#include "checks/attention.hpp"
#include "every_isa.hpp"
#include "execute/run_plan.hpp"
#include "mha/runtime.hpp"
#include "mha/varlen.hpp"
#include "plan/make_plan.hpp"
#include "platform/dispatch.hpp"

namespace mha {
namespace {

using testing::Array;
using testing::expect_close;
using testing::nans;
using testing::on_every_isa;
using testing::tolerance;

constexpr Index H = 8, Hk = 2, D = 64, Dv = 32, Tq = 40;
static_assert(2 * H / Hk == kMaxDecodeRows, "two queries are the most that decode takes");
// Numbers of keys around the ends of partial sums, blocks and spans.
constexpr Index kKeyCounts[] = {1, 15, 16, 17, 63, 64, 65, 511, 512, 513, 1023, 1025};

template <class T>
class DecodeOf : public ::testing::Test {
 protected:
  void TearDown() override { set_isa(nullptr); }
};

using Elements = ::testing::Types<float, double>;
TYPED_TEST_SUITE(DecodeOf, Elements);

template <class T>
struct Result {
  Array<T> out, lse;

  explicit Result(Index rows) : out(nans<T>({1, H, rows, Dv})), lse(nans<T>({1, H, rows})) {}

  /// The results of row i by themselves: of each head the row of `out`, then its lse.
  std::vector<T> row(Index i) const {
    const Index rows = out.view().extents[2];
    std::vector<T> elements;
    for (Index h = 0; h < H; ++h) {
      const T* const first = out.data().data() + (h * rows + i) * Dv;
      elements.insert(elements.end(), first, first + Dv);
      elements.push_back(lse.data()[static_cast<std::size_t>(h * rows + i)]);
    }
    return elements;
  }
};

/// The result of the queries [first, first + rows) of 40 in a call of their own.
template <class T>
Result<T> attend(const Array<T>& query, const TensorView& key, const TensorView& value, Index first, Index rows,
                 AttentionOptions options) {
  Result<T> result(rows);
  const TensorView some(query.data().data() + first * D, {1, H, rows, D}, {H * Tq * D, Tq * D, D, 1});
  options.query_offset += first;
  scaled_dot_product_attention(some, key, value, result.out.view(), result.lse.view(), options);
  return result;
}

/// Computes rows alone and in pairs, on one thread and on several, and compares them with the same rows among 40.
template <class T>
void expect_rows_of_prefill(const Array<T>& query, const TensorView& key, const TensorView& value,
                            AttentionOptions options = {}) {
  options.num_threads = 1;
  const Result<T> prefill = attend(query, key, value, 0, Tq, options);
  for (int threads : {1, 2, 7}) {
    options.num_threads = threads;
    for (Index first : {Index(0), Tq - 2})
      for (Index rows : {Index(1), Index(2)}) {
        const Result<T> few = attend(query, key, value, first, rows, options);
        for (Index i = 0; i < rows; ++i)
          EXPECT_EQ(few.row(i), prefill.row(first + i)) << "row " << first + i << " of " << rows << " with " << threads
                                                        << " threads and " << key.extents[2] << " keys";
      }
  }
}

TYPED_TEST(DecodeOf, AnyNumberOfKeys) {
  const auto query = Array<TypeParam>::random({1, H, Tq, D}, 1);
  on_every_isa([&] {
    for (Index keys : kKeyCounts) {
      const auto key = Array<TypeParam>::random({1, Hk, keys, D}, 2),
                 value = Array<TypeParam>::random({1, Hk, keys, Dv}, 3);
      expect_rows_of_prefill(query, key.view(), value.view());
      AttentionOptions options;
      options.is_causal = true;
      options.query_offset = keys - Tq;  // the first rows see nothing if there are less keys than queries
      expect_rows_of_prefill(query, key.view(), value.view(), options);
      options.window_left = keys / 2 + 3;
      expect_rows_of_prefill(query, key.view(), value.view(), options);
    }
  });
}

TYPED_TEST(DecodeOf, IsRightWithManyKeys) {
  constexpr Index keys = 1025;
  const auto query = Array<TypeParam>::random({1, H, 2, D}, 1), key = Array<TypeParam>::random({1, Hk, keys, D}, 2);
  const auto value = Array<TypeParam>::random({1, Hk, keys, Dv}, 3);
  const auto expected = reference::scaled_dot_product_attention(query.view(), key.view(), value.view());
  on_every_isa([&] {
    for (int threads : {1, 7}) {
      Result<TypeParam> result(2);
      AttentionOptions options;
      options.num_threads = threads;
      scaled_dot_product_attention(query.view(), key.view(), value.view(), result.out.view(), result.lse.view(),
                                   options);
      const double bound = tolerance<TypeParam>(D, keys, 40) * 4;
      expect_close(result.out.data(), expected.out, bound);
      expect_close(result.lse.data(), expected.lse, bound);
    }
  });
}

TYPED_TEST(DecodeOf, EveryChangeOfTheScores) {
  constexpr Index keys = 1040;
  const auto query = Array<TypeParam>::random({1, H, Tq, D}, 1), key = Array<TypeParam>::random({1, Hk, keys, D}, 2);
  const auto value = Array<TypeParam>::random({1, Hk, keys, Dv}, 3), numbers = Array<TypeParam>::random({H}, 4);
  const auto near = Array<TypeParam>::random({H, 2 * 60 + 1}, 7), wide = Array<TypeParam>::random({H, 2 * keys + 1}, 8);
  auto small = Array<TypeParam>::random({H}, 6), bias = Array<TypeParam>::random({keys}, 5);
  for (std::size_t i = 0; i < keys; i += 3) bias.data()[i] = -std::numeric_limits<TypeParam>::infinity();
  AttentionOptions capped, sloped, far, by_distance, reversed, sunk, biased, negative;
  capped.softcap = 2;
  sloped.alibi_slopes = sunk.sinks = numbers.view();
  for (TypeParam& slope : small.data()) slope *= TypeParam(1e-6);
  far.alibi_slopes = small.view();
  far.query_offset = 1 << 30;  // distances are rounded, to more than the 16 keys where decode may begin
  far.window_left = (1 << 30) - 500;
  by_distance.position_bias = near.view();
  by_distance.query_offset = 500;
  const TypeParam* const last = wide.data().data() + 2 * keys;
  reversed.position_bias = TensorView(last, {H, 2 * keys + 1}, {2 * keys + 1, -1});
  biased.attn_mask = bias.view();
  negative.scale = -0.4;
  AttentionOptions all = biased;
  all.softcap = 2;
  all.alibi_slopes = all.sinks = numbers.view();
  all.position_bias = wide.view();
  all.is_causal = true;
  all.query_offset = keys - Tq;
  on_every_isa([&] {
    for (const AttentionOptions& options : {capped, sloped, far, by_distance, reversed, sunk, biased, negative, all})
      expect_rows_of_prefill(query, key.view(), value.view(), options);
  });
}

TYPED_TEST(DecodeOf, NaNBehindMasks) {
  constexpr Index keys = 1200;
  const auto query = Array<TypeParam>::random({1, H, Tq, D}, 1);
  auto key = Array<TypeParam>::random({1, Hk, keys, D}, 2), value = Array<TypeParam>::random({1, Hk, keys, Dv}, 3);
  const auto hide = [&](auto hidden) {
    for (Index j = 0; j < Hk * keys; ++j) {
      if (!hidden(j % keys)) continue;
      for (Index d = 0; d < D; ++d) key.data()[std::size_t(j * D + d)] = std::numeric_limits<TypeParam>::quiet_NaN();
      for (Index d = 0; d < Dv; ++d) value.data()[std::size_t(j * Dv + d)] = std::numeric_limits<TypeParam>::infinity();
    }
  };
  const auto is_finite = [](const std::vector<TypeParam>& elements) {
    for (TypeParam element : elements)
      if (!std::isfinite(element)) return false;
    return true;
  };
  const auto check = [&](const AttentionOptions& options) {
    on_every_isa([&] {
      expect_rows_of_prefill(query, key.view(), value.view(), options);
      EXPECT_TRUE(is_finite(attend(query, key.view(), value.view(), 17, 1, options).row(0)));
    });
  };

  hide([](Index j) { return j < 75 || j >= 1101; });  // in blocks that bounds cut
  const std::int64_t lengths[] = {1101};
  AttentionOptions bounds;
  bounds.key_lengths = lengths;
  bounds.query_offset = 1000;
  bounds.window_left = 900;  // row 0 sees keys from 100 on
  check(bounds);

  hide([](Index j) { return j % 5 == 1 || (j >= 100 && j < 1100); });  // a whole span, too
  std::vector<char> unmasked(keys, 1);
  for (Index j = 0; j < keys; ++j)
    unmasked[std::size_t(j)] = j >= 75 && j < 1101 && j % 5 != 1 && (j < 100 || j >= 1100);
  AttentionOptions masked;
  masked.attn_mask = TensorView(reinterpret_cast<const bool*>(unmasked.data()), {keys});
  check(masked);

  unmasked.assign(keys, 0);
  on_every_isa([&] {
    expect_rows_of_prefill(query, key.view(), value.view(), masked);
    const Result<TypeParam> nothing = attend(query, key.view(), value.view(), 3, 2, masked);
    for (TypeParam element : nothing.out.data()) EXPECT_EQ(element, 0);
    for (TypeParam element : nothing.lse.data()) EXPECT_EQ(element, -std::numeric_limits<TypeParam>::infinity());
  });
}

TYPED_TEST(DecodeOf, AStridedResult) {
  constexpr Index keys = 1100;
  const auto query = Array<TypeParam>::random({1, H, Tq, D}, 1), key = Array<TypeParam>::random({1, Hk, keys, D}, 2);
  const auto value = Array<TypeParam>::random({1, Hk, keys, Dv}, 3);
  on_every_isa([&] {
    AttentionOptions options;
    for (int threads : {1, 7}) {
      options.num_threads = threads;
      const Result<TypeParam> dense = attend(query, key.view(), value.view(), 0, 1, options);
      auto buffer = nans<TypeParam>({H, Dv, 3});
      const MutableTensorView out(buffer.data().data() + 1, {1, H, 1, Dv}, {0, Dv * 3, 0, 3});
      const TensorView row(query.data().data(), {1, H, 1, D}, {0, Tq * D, D, 1});
      scaled_dot_product_attention(row, key.view(), value.view(), out, {}, options);
      for (std::size_t i = 0; i < buffer.data().size(); ++i)
        if (i % 3 == 1)
          EXPECT_EQ(buffer.data()[i], dense.out.data()[i / 3]) << i;
        else
          EXPECT_TRUE(std::isnan(buffer.data()[i])) << "memory between the elements was written";
    }
  });
}

AttentionPlan plan_of(AttentionArguments arguments) {
  validate(arguments, AttentionOutput::attended_values);
  return make_plan(arguments, AttentionOutput::attended_values, active_kernels());
}

/// The number of phases of a call: two if threads share the spans of keys of a tile.
int phases_of(const AttentionArguments& arguments, int threads) {
  const AttentionPlan plan = plan_of(arguments);
  const AttentionRun run{&plan, {threads, nullptr, 0}, nullptr};
  Phase phases[2];
  return attention_phases(run, phases);
}

TEST(Decode, SharesOutSpansWhenThereAreFewHeads) {
  constexpr Index keys = 1025;
  const auto query = Array<float>::random({1, H, Tq, D}, 1), key = Array<float>::random({1, Hk, keys, D}, 2);
  auto out = nans<float>({1, H, Tq, Dv});
  const auto arguments = [&](Index rows, Index count, Index value_step) {
    return AttentionArguments{"test",
                              TensorView(query.data().data(), {1, H, rows, D}, {0, Tq * D, D, 1}),
                              TensorView(key.data().data(), {1, Hk, count, D}, {0, keys * D, D, 1}),
                              TensorView(key.data().data(), {1, Hk, count, Dv}, {0, keys * D, D, value_step}),
                              MutableTensorView(out.data().data(), {1, H, rows, Dv}),
                              {},
                              {}};
  };
  EXPECT_EQ(phases_of(arguments(2, keys, 1), 2), 2);
  EXPECT_EQ(phases_of(arguments(2, 513, 1), 7), 2);
  EXPECT_EQ(phases_of(arguments(2, keys, 1), 1), 1) << "one thread has nobody to share with";
  EXPECT_EQ(phases_of(arguments(2, 512, 1), 7), 1) << "there is one span";
  EXPECT_EQ(phases_of(arguments(2, keys, 2), 7), 2) << "the other kernel knows spans, too";
  // These calls have enough work that run_plan() gives them the threads that the tests of this file ask for.
  const AttentionPlan plan = plan_of(arguments(1, keys, 1));
  EXPECT_GE(threads_for(2, plan.tiles() * plan.spans, plan.work), 2);
}

TEST(Decode, RaggedSequencesOfAnyLength) {
  // Some have spans that others lack; one has no keys, and many have no queries, and so no tiles.
  constexpr Index B = 9;
  const std::int64_t queries[B + 1] = {0, 1, 3, 4, 4, 4, 4, 4, 4, 5},
                                 keys[B + 1] = {0, 1025, 1040, 1040, 1041, 1042, 1043, 1044, 1104, 1617};
  const auto query = Array<float>::random({5, H, D}, 1), key = Array<float>::random({1617, Hk, D}, 2);
  const auto value = Array<float>::random({1617, Hk, Dv}, 3);
  for (int threads : {1, 2, 3, 7}) {
    auto out = nans<float>({5, H, Dv}), lse = nans<float>({5, H});
    AttentionOptions options;
    options.num_threads = threads;
    scaled_dot_product_attention_varlen(query.view(), key.view(), value.view(), {B, queries, keys}, out.view(),
                                        lse.view(), options);
    for (int b = 0; b < B; ++b) {
      const Index rows = queries[b + 1] - queries[b], count = keys[b + 1] - keys[b];
      auto alone = nans<float>({1, H, rows, Dv}), alone_lse = nans<float>({1, H, rows});
      options.num_threads = 1;
      scaled_dot_product_attention(
          TensorView(query.data().data() + queries[b] * H * D, {1, H, rows, D}, {0, D, H * D, 1}),
          TensorView(key.data().data() + keys[b] * Hk * D, {1, Hk, count, D}, {0, D, Hk * D, 1}),
          TensorView(value.data().data() + keys[b] * Hk * Dv, {1, Hk, count, Dv}, {0, Dv, Hk * Dv, 1}), alone.view(),
          alone_lse.view(), options);
      for (Index i = 0; i < rows; ++i)
        for (Index h = 0; h < H; ++h) {
          const std::size_t row = std::size_t((queries[b] + i) * H + h), row_alone = std::size_t(h * rows + i);
          EXPECT_EQ(lse.data()[row], alone_lse.data()[row_alone]) << threads << " threads, sequence " << b;
          for (std::size_t d = 0; d < Dv; ++d)
            EXPECT_EQ(out.data()[row * Dv + d], alone.data()[row_alone * Dv + d])
                << threads << " threads, sequence " << b;
        }
    }
  }
}

}  // namespace
}  // namespace mha

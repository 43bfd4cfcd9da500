// merge_attention: merged shards of the keys are attention over all keys. Compared with the reference, with views of
// all layouts; the same bits for any number of threads and any other rows; calls that are refused before anything is
// written.
#include "mha/merge_attention.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "attention_reference.hpp"
#include "mha/attention.hpp"
#include "mha/runtime.hpp"

namespace mha {
namespace {

using testing::Array;
using testing::expect_close;
using testing::expect_words;
using testing::message_of;
using testing::nans;
using testing::tolerance;

template <class T>
constexpr T kNaN = std::numeric_limits<T>::quiet_NaN();
template <class T>
constexpr T kInfinity = std::numeric_limits<T>::infinity();

/// The results of a call, [B, H, Tq, Dv] and [B, H, Tq], set to NaN before it.
template <class T>
struct Merged {
  Merged(Index B, Index H, Index Tq, Index Dv) : out(nans<T>({B, H, Tq, Dv})), lse(nans<T>({B, H, Tq})) {}

  Array<T> out, lse;
};

/// Results that shards could have: in some rows one shard has all the weight, and every fifth row sees no key in a
/// shard.
template <class T>
struct Shards {
  Shards(Index count, Index B, Index H, Index Tq, Index Dv) {
    for (Index s = 0; s < count; ++s) {
      Merged<T>& shard = shards.emplace_back(B, H, Tq, Dv);
      shard.out.data() = Array<T>::random({B, H, Tq, Dv}, unsigned(2 * s)).data();
      shard.lse.data() = Array<T>::random({B, H, Tq}, unsigned(2 * s + 1)).data();
      for (std::size_t row = 0; row < shard.lse.data().size(); ++row) {
        T& lse = shard.lse.data()[row];
        if (row % 3 == 0) lse *= 100;
        if (row % 5 == std::size_t(s % 5)) lse = -kInfinity<T>;
      }
      views.push_back(shard.out.view());
      lses.push_back(shard.lse.view());
    }
  }
  Shards(const Shards&) = delete;

  /// Writes NaN to the rows that see no key of a shard.
  void poison() {
    for (Merged<T>& shard : shards) {
      std::vector<T>& out = shard.out.data();
      const std::size_t rows = shard.lse.data().size(), width = rows > 0 ? out.size() / rows : 0;
      for (std::size_t i = 0; i < out.size(); ++i)
        if (shard.lse.data()[i / width] == -kInfinity<T>) out[i] = kNaN<T>;
    }
  }

  std::vector<Merged<T>> shards;
  std::vector<TensorView> views, lses;
};

/// The formula, row by row, in double precision.
template <class T>
void expect_merged(const Shards<T>& shards, const Merged<T>& actual) {
  const std::size_t rows = actual.lse.data().size(), width = rows > 0 ? actual.out.data().size() / rows : 0;
  std::vector<double> out(rows * width), lse(rows);
  for (std::size_t row = 0; row < rows; ++row) {
    double total = 0, largest = -kInfinity<double>;
    for (const Merged<T>& shard : shards.shards) largest = std::max(largest, double(shard.lse.data()[row]));
    for (const Merged<T>& shard : shards.shards) {
      if (shard.lse.data()[row] == -kInfinity<T>) continue;
      const double weight = std::exp(double(shard.lse.data()[row]) - largest);
      total += weight;
      for (std::size_t c = 0; c < width; ++c)
        out[row * width + c] += weight * double(shard.out.data()[row * width + c]);
    }
    for (std::size_t c = 0; c < width && total > 0; ++c) out[row * width + c] /= total;
    lse[row] = largest + std::log(total);
  }
  const Index count = Index(shards.shards.size());
  expect_close(actual.out.data(), out, 5 * tolerance<T>(0, count, 0));  // what a shard gives is below 5
  expect_close(actual.lse.data(), lse, tolerance<T>(1, count, 500));
}

template <class T>
class MergeOf : public ::testing::Test {
 protected:
  void TearDown() override { set_isa(nullptr); }
};

using Elements = ::testing::Types<float, double>;
TYPED_TEST_SUITE(MergeOf, Elements);

TYPED_TEST(MergeOf, ShardsOfTheKeysAreAllOfThem) {
  using T = TypeParam;
  constexpr Index B = 2, H = 4, Hk = 2, Tq = 37, Tk = 100, D = 16;
  const auto query = Array<T>::random({B, H, Tq, D}, 1);
  const auto key = Array<T>::random({B, Hk, Tk, D}, 2), value = Array<T>::random({B, Hk, Tk, D}, 3);
  AttentionOptions options;
  options.is_causal = true;
  options.query_offset = 40;
  const reference::Attention expected =
      reference::scaled_dot_product_attention(query.view(), key.view(), value.view(), options);
  const double bound = tolerance<T>(D, Tk, 40) * 4;  // values are below 4
  for (int isa = 0; isa < num_built_isas(); ++isa) {
    if (!isa_supported(isa)) continue;
    set_isa(built_isa(isa));
    for (const std::vector<Index>& cuts : {std::vector<Index>{0, 100}, {0, 50, 100}, {0, 1, 31, 64, 64, 90, 100}}) {
      std::vector<Merged<T>> shards;
      std::vector<TensorView> outs, lses;
      for (std::size_t s = 0; s + 1 < cuts.size(); ++s) {
        const auto part = [&](const Array<T>& x) {
          return TensorView(x.data().data() + cuts[s] * D, {B, Hk, cuts[s + 1] - cuts[s], D},
                            {Hk * Tk * D, Tk * D, D, 1});
        };
        options.query_offset = 40 - cuts[s];
        Merged<T>& shard = shards.emplace_back(B, H, Tq, D);
        scaled_dot_product_attention(query.view(), part(key), part(value), shard.out.view(), shard.lse.view(), options);
        outs.push_back(shard.out.view());
        lses.push_back(shard.lse.view());
      }
      EXPECT_STREQ(last_used_isa(), built_isa(isa));
      Merged<T> all(B, H, Tq, D);
      merge_attention(outs.data(), lses.data(), Index(outs.size()), all.out.view(), all.lse.view());
      expect_close(all.out.data(), expected.out, bound);
      expect_close(all.lse.data(), expected.lse, bound);
    }
  }
}

TYPED_TEST(MergeOf, EveryShape) {
  struct Sizes {
    Index B, H, Tq, Dv;
  };
  for (const Sizes& s : {Sizes{1, 1, 1, 1}, Sizes{2, 3, 7, 5}, Sizes{1, 4, 65, 128}, Sizes{1, 2, 5, 129},
                         Sizes{2, 1, 3, 300}, Sizes{0, 3, 4, 5}, Sizes{2, 3, 0, 5}, Sizes{2, 3, 4, 0}})
    for (Index count : {1, 2, 3, 4, 5, 7, 8, 33}) {
      Shards<TypeParam> shards(count, s.B, s.H, s.Tq, s.Dv);
      Merged<TypeParam> merged(s.B, s.H, s.Tq, s.Dv), poisoned(s.B, s.H, s.Tq, s.Dv);
      merge_attention(shards.views.data(), shards.lses.data(), count, merged.out.view(), merged.lse.view());
      expect_merged(shards, merged);
      shards.poison();
      merge_attention(shards.views.data(), shards.lses.data(), count, poisoned.out.view());
      EXPECT_EQ(poisoned.out.data(), merged.out.data());
    }
}

TYPED_TEST(MergeOf, ARowThatSeesNothing) {
  using T = TypeParam;
  constexpr T inf = kInfinity<T>;
  const T lse[] = {-inf, -inf, 3, -inf}, out[] = {kNaN<T>, inf, 7, -inf};
  const TensorView outs[] = {{out, {4, 1}}, {out, {4, 1}, {0, 1}}}, lses[] = {{lse, {4}}, {lse, {4}, {0}}};
  auto merged = nans<T>({4, 1}), merged_lse = nans<T>({4});
  merge_attention(outs, lses, 2, merged.view(), merged_lse.view());
  EXPECT_EQ(merged.data(), (std::vector<T>{0, 0, 7, 0}));
  EXPECT_EQ(merged_lse.data(), (std::vector<T>{-inf, -inf, 3, -inf}));
}

TYPED_TEST(MergeOf, AnLseWithoutMeaningStaysInItsRow) {
  using T = TypeParam;
  for (T poison : {kNaN<T>, kInfinity<T>})
    for (std::size_t shard : {0, 2}) {
      Shards<T> shards(3, 1, 2, 10, 6);
      Merged<T> clean(1, 2, 10, 6), dirty(1, 2, 10, 6);
      merge_attention(shards.views.data(), shards.lses.data(), 3, clean.out.view(), clean.lse.view());
      shards.shards[shard].lse.data()[13] = poison;
      merge_attention(shards.views.data(), shards.lses.data(), 3, dirty.out.view(), dirty.lse.view());
      for (std::size_t row = 0; row < 20; ++row) {
        const auto same = [&](T a, T b) { return row == 13 ? std::isnan(a) : a == b; };
        EXPECT_TRUE(same(dirty.lse.data()[row], clean.lse.data()[row])) << row;
        for (std::size_t i = row * 6; i < row * 6 + 6; ++i)
          EXPECT_TRUE(same(dirty.out.data()[i], clean.out.data()[i])) << i;
      }
    }
}

TYPED_TEST(MergeOf, StridedMemory) {
  using T = TypeParam;
  constexpr Index B = 2, H = 3, Tq = 5, Dv = 4;
  const Shards<T> shards(2, B, H, Tq, Dv);
  Merged<T> expected(B, H, Tq, Dv), apart(Tq, B, H, 2 * Dv);
  merge_attention(shards.views.data(), shards.lses.data(), 2, expected.out.view(), expected.lse.view());

  // The first shard has negative strides on every axis; the second is every other element of its memory.
  auto reversed = Array<T>::random({B, H, Tq, Dv}, 7), reversed_lse = Array<T>::random({B, H, Tq}, 8);
  auto spread = nans<T>({B, H, Tq, 2 * Dv});
  std::reverse_copy(shards.shards[0].out.data().begin(), shards.shards[0].out.data().end(), reversed.data().begin());
  std::reverse_copy(shards.shards[0].lse.data().begin(), shards.shards[0].lse.data().end(),
                    reversed_lse.data().begin());
  for (std::size_t i = 0; i < reversed.data().size(); ++i) spread.data()[2 * i] = shards.shards[1].out.data()[i];
  const TensorView outs[] = {{&reversed.data().back(), {B, H, Tq, Dv}, {-H * Tq * Dv, -Tq * Dv, -Dv, -1}},
                             {spread.data().data(), {B, H, Tq, Dv}, {2 * H * Tq * Dv, 2 * Tq * Dv, 2 * Dv, 2}}};
  const TensorView lses[] = {{&reversed_lse.data().back(), {B, H, Tq}, {-H * Tq, -Tq, -1}}, shards.lses[1]};
  // [Tq, B, H, 2 Dv] in memory, of which every other element is written.
  merge_attention(outs, lses, 2,
                  MutableTensorView(apart.out.data().data(), {B, H, Tq, Dv}, {H * 2 * Dv, 2 * Dv, B * H * 2 * Dv, 2}),
                  MutableTensorView(apart.lse.data().data(), {B, H, Tq}, {H, 1, B * H}));
  for (Index b = 0; b < B; ++b)
    for (Index h = 0; h < H; ++h)
      for (Index t = 0; t < Tq; ++t) {
        const auto row = std::size_t((b * H + h) * Tq + t), place = std::size_t((t * B + b) * H + h);
        EXPECT_EQ(apart.lse.data()[place], expected.lse.data()[row]);
        for (std::size_t c = 0; c < Dv; ++c) {
          EXPECT_EQ(apart.out.data()[(place * Dv + c) * 2], expected.out.data()[row * Dv + c]);
          EXPECT_TRUE(std::isnan(apart.out.data()[(place * Dv + c) * 2 + 1])) << "memory between elements was written";
        }
      }
}

TYPED_TEST(MergeOf, FewerAxes) {
  const Shards<TypeParam> shards(2, 2, 3, 5, 4);
  Merged<TypeParam> expected(2, 3, 5, 4);
  merge_attention(shards.views.data(), shards.lses.data(), 2, expected.out.view(), expected.lse.view());
  const auto check = [&](std::initializer_list<Index> shape, std::initializer_list<Index> lse_shape) {
    std::vector<TensorView> outs, lses;
    for (const Merged<TypeParam>& shard : shards.shards) {
      outs.emplace_back(shard.out.data().data(), shape);
      lses.emplace_back(shard.lse.data().data(), lse_shape);
    }
    auto out = nans<TypeParam>(shape), lse = nans<TypeParam>(lse_shape);
    merge_attention(outs.data(), lses.data(), 2, out.view(), lse.view());
    EXPECT_EQ(out.data(), expected.out.data());
    EXPECT_EQ(lse.data(), expected.lse.data());
  };
  check({6, 5, 4}, {6, 5});
  check({30, 4}, {30});
}

TYPED_TEST(MergeOf, IntoTheFirstShard) {
  Shards<TypeParam> shards(3, 2, 3, 40, 150);
  Merged<TypeParam> expected(2, 3, 40, 150);
  merge_attention(shards.views.data(), shards.lses.data(), 3, expected.out.view(), expected.lse.view());
  Merged<TypeParam>& first = shards.shards[0];
  merge_attention(shards.views.data(), shards.lses.data(), 3, first.out.view(), first.lse.view(), 2);
  EXPECT_EQ(first.out.data(), expected.out.data());
  EXPECT_EQ(first.lse.data(), expected.lse.data());
}

TYPED_TEST(MergeOf, TheSameBitsOnAnyThreadsAndAlone) {
  constexpr Index B = 2, H = 8, Tq = 100, Dv = 64, count = 3;
  const Shards<TypeParam> shards(count, B, H, Tq, Dv);
  Merged<TypeParam> one(B, H, Tq, Dv);
  merge_attention(shards.views.data(), shards.lses.data(), count, one.out.view(), one.lse.view(), 1);
  for (int threads : {2, 3, 7}) {
    Merged<TypeParam> more(B, H, Tq, Dv);
    merge_attention(shards.views.data(), shards.lses.data(), count, more.out.view(), more.lse.view(), threads);
    EXPECT_EQ(more.out.data(), one.out.data()) << threads;
    EXPECT_EQ(more.lse.data(), one.lse.data()) << threads;
  }
  for (Index row = 0; row < B * H * Tq; row += 97) {
    std::vector<TensorView> outs, lses;
    for (const Merged<TypeParam>& shard : shards.shards) {
      outs.emplace_back(shard.out.data().data() + row * Dv, std::initializer_list<Index>{1, Dv});
      lses.emplace_back(shard.lse.data().data() + row, std::initializer_list<Index>{1});
    }
    auto out = nans<TypeParam>({1, Dv}), lse = nans<TypeParam>({1});
    merge_attention(outs.data(), lses.data(), count, out.view(), lse.view());
    EXPECT_TRUE(std::equal(out.data().begin(), out.data().end(), one.out.data().begin() + row * Dv)) << row;
    EXPECT_EQ(lse.data()[0], one.lse.data()[std::size_t(row)]) << row;
  }
}

TEST(MergeStrides, WideRowsWhoseColumnsAreNoNeighbours) {
  constexpr Index rows = 3, columns = 300;
  const auto one = Array<float>::random({rows, columns}, 1), two = Array<float>::random({rows, columns}, 2);
  const auto lse = Array<float>::random({rows}, 3);
  const TensorView outs[] = {one.view(), two.view()}, lses[] = {lse.view(), lse.view()};
  auto dense = nans<float>({rows, columns}), spread = nans<float>({rows, columns, 2});
  merge_attention(outs, lses, 2, dense.view());
  merge_attention(outs, lses, 2, MutableTensorView(spread.data().data(), {rows, columns}, {2 * columns, 2}));
  for (std::size_t i = 0; i < dense.data().size(); ++i) {
    EXPECT_EQ(spread.data()[2 * i], dense.data()[i]) << "element " << i;
    EXPECT_TRUE(std::isnan(spread.data()[2 * i + 1])) << "behind element " << i;
  }
}

TEST(MergeValidation, WhatIsRefused) {
  constexpr Index B = 2, Tq = 5, Dv = 4;
  Shards<float> shards(3, B, 1, Tq, Dv);
  Merged<float> merged(B, 1, Tq, Dv);
  Array<double> doubles({B, 1, Tq, Dv}, 1), double_lse({B, 1, Tq}, 1);
  const std::vector<float> before = shards.shards[0].out.data();
  const bool booleans[B * Tq * Dv] = {};
  struct Call {
    std::vector<TensorView> outs, lses;
    Index count;
    MutableTensorView out, lse;
  };
  const auto refused = [&](auto error, auto spoil, std::initializer_list<const char*> words) {
    Call call = {shards.views, shards.lses, 3, merged.out.view(), merged.lse.view()};
    spoil(call);
    const std::string message = message_of<decltype(error)>(
        [&] { merge_attention(call.outs.data(), call.lses.data(), call.count, call.out, call.lse); });
    expect_words(message, {"merge_attention: "});
    expect_words(message, words);
  };

  const DTypeError dtype("");
  refused(dtype, [&](Call& c) { c.outs[2] = doubles.view(); },
          {"outs[2] must be of the dtype of outs[0], float32; got outs (float32, float32, float64), lses 3 x float32"});
  refused(dtype, [&](Call& c) { c.lses[1] = double_lse.view(); }, {"lses[1] must", "(float32, float64, float32)"});
  refused(dtype, [&](Call& c) { c.lses[0] = c.lses[1] = c.lses[2] = double_lse.view(); },
          {"lse must be of the dtype of lses[0], float64", "lse float32"});
  refused(dtype, [&](Call& c) { c.outs[0] = TensorView(booleans, {B, 1, Tq, Dv}); }, {"outs[0] bool"});
  refused(dtype, [&](Call& c) { c.out = doubles.view(); }, {"out must", "out float64"});
  refused(dtype, [&](Call& c) { c.lse = double_lse.view(); }, {"lse must", "lse float64"});

  const std::invalid_argument value("");
  refused(value, [](Call& c) { c.count = 0; }, {"outs must have at least one shard; got 0"});
  refused(value, [](Call& c) { c.count = -1; }, {"outs must have at least one shard; got -1"});
  refused(value, [](Call& c) { c.outs[0].rank = 1; },
          {"outs[0] must have two axes at least", "outs ([2], [2, 1, 5, 4]"});
  refused(value, [](Call& c) { c.outs[0].extents[0] = -2; }, {"outs[0] must not have a negative extent", "[-2, 1, 5"});
  refused(value, [](Call& c) { c.outs[1].extents[3] = 3; },
          {"outs[1] must have the shape of outs[0], [2, 1, 5, 4]; got outs ([2, 1, 5, 4], [2, 1, 5, 3], [2, 1, 5, 4]), "
           "lses 3 x [2, 1, 5], out [2, 1, 5, 4], lse [2, 1, 5]"});
  refused(value, [](Call& c) { c.outs[2] = {}; }, {"outs[2] must have the shape", "[])"});
  refused(value, [](Call& c) { c.lses[2].extents[2] = 1; },
          {"lses[2] must have the shape of outs[0] without its last axis, [2, 1, 5]; got outs 3 x", "[2, 1, 1])"});
  refused(value, [](Call& c) { c.lses[0].rank = 2; }, {"lses[0] must have the shape", "([2, 1], [2, 1, 5]"});
  refused(value, [](Call& c) { c.out.extents[0] = 1; }, {"out must have the shape of outs[0]", "out [1, 1, 5, 4]"});
  refused(value, [](Call& c) { c.out = {}; }, {"out must have the shape of outs[0]"});
  refused(value, [](Call& c) { c.lse.extents[2] = 4; },
          {"lse must have the shape of outs[0] without", "lse [2, 1, 4]"});

  refused(value, [](Call& c) { c.out.strides[2] = 0; }, {"out must not have two indices for one element"});
  refused(value, [](Call& c) { c.lse.strides[0] = 0; }, {"lse must not have two indices for one element"});
  refused(
      value, [&](Call& c) { c.out = shards.shards[1].out.view(); },
      {"out must not overlap outs[1] in memory, unless it is outs[0] itself; got out [2, 1, 5, 4], outs[1] [2, 1,"});
  refused(value, [&](Call& c) { c.lse = shards.shards[2].lse.view(); },
          {"lse must not overlap lses[2] in memory, unless it is lses[0] itself"});
  Array<float> shared({B, 1, Tq, Dv}, 1);
  refused(value,
          [&](Call& c) {
            c.lses[1].data = shared.data().data();
            c.out.data = shared.data().data();
          },
          {"out must not overlap lses[1]"});
  refused(value, [&](Call& c) { c.lse.data = shards.shards[0].out.data().data(); }, {"lse must not overlap outs[0]"});
  refused(value, [](Call& c) { c.lse.data = c.out.data; }, {"lse must not overlap out"});
  // The memory of outs[0] with the indices in another order, or an element further on.
  refused(value, [&](Call& c) { c.out = {shards.shards[0].out.data().data(), {B, 1, Tq, Dv}, {1, 1, B, B * Tq}}; },
          {"out must not overlap outs[0]"});
  refused(value, [&](Call& c) { c.out.data = shards.shards[0].out.data().data() + 1; },
          {"out must not overlap outs[0]"});
  // The same array as two shards is not in place.
  refused(value, [&](Call& c) { c.out = shards.shards[0].out.view(), c.outs[1] = c.outs[0]; },
          {"out must not overlap outs[1]"});

  EXPECT_EQ(shards.shards[0].out.data(), before);
  for (float element : merged.out.data()) EXPECT_TRUE(std::isnan(element));
  for (float element : merged.lse.data()) EXPECT_TRUE(std::isnan(element));
}

}  // namespace
}  // namespace mha

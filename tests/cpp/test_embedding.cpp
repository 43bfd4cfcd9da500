// embed_tokens and mean_pool: compared with the formulas in double precision; the same bits for any number of threads
// and any other texts; calls that are refused before anything is written.
#include "mha/embedding.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "arrays.hpp"

namespace mha {
namespace {

using testing::Array;
using testing::expect_close;
using testing::expect_words;
using testing::message_of;
using testing::nans;

constexpr Index V = 11, P = 130;
constexpr double kEps = 1e-5;
// Texts of one token, of none, of some, of as many as there are positions, and of none again.
const std::vector<std::int64_t> kTexts = {0, 1, 1, 70, 71, 201, 201};

Index texts() { return static_cast<Index>(kTexts.size()) - 1; }

std::vector<std::int64_t> some_tokens(Index count) {
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int64_t>(i * i % V);
  return tokens;
}

template <class T>
struct Tables {
  explicit Tables(Index width)
      : words(Array<T>::random({V, width}, 1)),
        positions(Array<T>::random({P, width}, 2)),
        weight(Array<T>::random({width}, 3)),
        bias(Array<T>::random({width}, 4)) {}
  EmbeddingTables views() const { return {words.view(), positions.view(), weight.view(), bias.view(), kEps}; }
  Array<T> words, positions, weight, bias;
};

template <class T>
class Embedding : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Embedding, Types);

TYPED_TEST(Embedding, TokensAreLookedUpAndNormalized) {
  using T = TypeParam;
  for (Index width : {1, 2, 7, 16, 33, 384}) {
    const Tables<T> tables(width);
    const auto tokens = some_tokens(kTexts.back());
    std::vector<double> expected;
    for (Index b = 0; b < texts(); ++b)
      for (std::int64_t i = kTexts[std::size_t(b)]; i < kTexts[std::size_t(b) + 1]; ++i) {
        std::vector<double> z;
        for (Index e = 0; e < width; ++e)
          z.push_back(double(tables.words.data()[std::size_t(tokens[std::size_t(i)] * width + e)]) +
                      double(tables.positions.data()[std::size_t((i - kTexts[std::size_t(b)]) * width + e)]));
        const double mean = std::accumulate(z.begin(), z.end(), 0.0) / double(width);
        double variance = 0;
        for (double value : z) variance += (value - mean) * (value - mean) / double(width);
        for (std::size_t e = 0; e < z.size(); ++e)
          expected.push_back((z[e] - mean) / std::sqrt(variance + kEps) * double(tables.weight.data()[e]) +
                             double(tables.bias.data()[e]));
      }
    // Numbers of size 1, but where two features are nearly alike: their difference is off by eps, and divided by
    // no less than sqrt(eps of the norm).
    const double magnitude = width == 2 ? 4 / std::sqrt(kEps) : 16;
    auto first = nans<T>({kTexts.back(), width});
    for (int threads : {1, 2, 3}) {
      auto out = nans<T>({kTexts.back(), width});
      embed_tokens(tokens.data(), nullptr, kTexts.data(), texts(), tables.views(), out.view(), threads);
      expect_close(out.data(), expected, magnitude * testing::tolerance<T>(width, 1, 1));
      if (threads == 1) first.data() = out.data();
      EXPECT_EQ(out.data(), first.data());
    }
  }
}

TYPED_TEST(Embedding, StridedRowsAndNoNorm) {
  using T = TypeParam;
  constexpr Index width = 20;
  const Tables<T> tables(width);
  // Every second row of a wider table, backwards, into every third row.
  auto wide = nans<T>({2 * V, width + 5});
  for (Index i = 0; i < V; ++i)
    for (Index e = 0; e < width; ++e)
      wide.data()[std::size_t(2 * (V - 1 - i) * (width + 5) + e)] = tables.words.data()[std::size_t(i * width + e)];
  const TensorView words(wide.data().data() + 2 * (V - 1) * (width + 5), {V, width}, {-2 * (width + 5), 1});
  const auto tokens = some_tokens(kTexts.back());
  auto out = nans<T>({3 * kTexts.back(), width}), expected = nans<T>({kTexts.back(), width});
  const MutableTensorView every_third(out.data().data(), {kTexts.back(), width}, {3 * width, 1});
  const auto ones = Array<T>({width}, T(1)), zeros = Array<T>({width}, T(0));
  embed_tokens(tokens.data(), nullptr, kTexts.data(), texts(), {words, tables.positions.view(), {}, {}, kEps},
               every_third);
  embed_tokens(tokens.data(), nullptr, kTexts.data(), texts(),
               {tables.words.view(), tables.positions.view(), ones.view(), zeros.view(), kEps}, expected.view());
  for (Index i = 0; i < kTexts.back(); ++i)
    for (Index e = 0; e < width; ++e) {
      EXPECT_EQ(out.data()[std::size_t(3 * i * width + e)], expected.data()[std::size_t(i * width + e)]);
      EXPECT_TRUE(std::isnan(out.data()[std::size_t((3 * i + 1) * width + e)]));
    }
}

TYPED_TEST(Embedding, PlacesSayWhichPositions) {
  using T = TypeParam;
  constexpr Index width = 20;
  const Tables<T> tables(width);
  const auto tokens = some_tokens(kTexts.back());
  std::vector<std::int64_t> in_text, backwards;
  for (std::size_t b = 0; b + 1 < kTexts.size(); ++b)
    for (std::int64_t i = kTexts[b]; i < kTexts[b + 1]; ++i) in_text.push_back(i - kTexts[b]);
  for (std::int64_t place : in_text) backwards.push_back(P - 1 - place);
  const TensorView reversed(tables.positions.data().data() + (P - 1) * width, {P, width}, {-width, 1});
  const auto embedded = [&](const std::int64_t* places, const TensorView& positions) {
    EmbeddingTables given = tables.views();
    given.positions = positions;
    auto out = nans<T>({kTexts.back(), width});
    embed_tokens(tokens.data(), places, kTexts.data(), texts(), given, out.view(), 2);
    return out;
  };
  const auto expected = embedded(nullptr, tables.positions.view());
  EXPECT_EQ(embedded(in_text.data(), tables.positions.view()).data(), expected.data());
  EXPECT_EQ(embedded(backwards.data(), reversed).data(), expected.data());
  // A text may then have more tokens than there are positions.
  const std::vector<std::int64_t> zeros(tokens.size());
  const TensorView first(tables.positions.data().data(), {1, width});
  EXPECT_EQ(embedded(zeros.data(), first).data(), embedded(zeros.data(), tables.positions.view()).data());
}

TYPED_TEST(Embedding, MeansOfTexts) {
  using T = TypeParam;
  for (Index width : {1, 7, 33}) {
    // x and out are transposed, so that neighbouring columns lie apart.
    const auto x = Array<T>::random({width, kTexts.back()}, 5);
    for (bool normalize : {false, true})
      for (int threads : {1, 2, 3}) {
        auto out = nans<T>({width, texts()});
        mean_pool(TensorView(x.data().data(), {kTexts.back(), width}, {1, kTexts.back()}), kTexts.data(), texts(),
                  normalize, MutableTensorView(out.data().data(), {texts(), width}, {1, texts()}), threads);
        for (Index b = 0; b < texts(); ++b) {
          const std::int64_t begin = kTexts[std::size_t(b)], end = kTexts[std::size_t(b) + 1];
          std::vector<double> mean;
          double square = 0;
          for (Index e = 0; e < width; ++e) {
            const auto* row = x.data().data() + e * kTexts.back();
            mean.push_back(begin == end ? 0 : std::accumulate(row + begin, row + end, 0.0) / double(end - begin));
            square += mean.back() * mean.back();
          }
          for (Index e = 0; e < width; ++e) {
            const double expected = mean[std::size_t(e)] / (normalize && square > 0 ? std::sqrt(square) : 1);
            const T actual = out.data()[std::size_t(e * texts() + b)];
            // Rounded once in float; in double the order of the sums differs.
            const double bound = std::is_same_v<T, float> ? 1 : 64;
            EXPECT_NEAR(double(actual), expected,
                        bound * std::numeric_limits<T>::epsilon() * std::abs(expected) +
                            64 * std::numeric_limits<double>::epsilon());
          }
        }
      }
  }
}

TEST(Pooling, NaNStaysInItsText) {
  constexpr Index width = 5;
  auto x = Array<float>::random({6, width}, 1);
  x.data()[2 * width + 3] = std::numeric_limits<float>::quiet_NaN();  // in the second of three texts
  const std::int64_t cu_seqlens[] = {0, 2, 4, 6};
  for (bool normalize : {false, true}) {
    auto out = nans<float>({3, width});
    mean_pool(x.view(), cu_seqlens, 3, normalize, out.view());
    for (Index e = 0; e < 3 * width; ++e)
      EXPECT_EQ(std::isnan(out.data()[std::size_t(e)]), normalize ? e / width == 1 : e == width + 3) << e;
  }
}

TEST(Pooling, ZerosHaveNoLength) {
  const Array<float> x({3, 4}, 0);
  const std::int64_t cu_seqlens[] = {0, 3, 3};
  auto out = nans<float>({2, 4});
  mean_pool(x.view(), cu_seqlens, 2, true, out.view());
  for (float element : out.data()) EXPECT_EQ(element, 0);
}

TYPED_TEST(Embedding, ATextHasTheSameBitsAloneAndAmongOthers) {
  using T = TypeParam;
  constexpr Index width = 33;
  const Tables<T> tables(width);
  const auto tokens = some_tokens(kTexts.back());
  auto rows = nans<T>({kTexts.back(), width}), pooled = nans<T>({texts(), width});
  embed_tokens(tokens.data(), nullptr, kTexts.data(), texts(), tables.views(), rows.view());
  mean_pool(rows.view(), kTexts.data(), texts(), true, pooled.view());
  for (Index b = 0; b < texts(); ++b) {
    const Index first = kTexts[std::size_t(b)], count = kTexts[std::size_t(b) + 1] - first;
    const std::int64_t alone[] = {0, count};
    auto one = nans<T>({count, width}), pooled_one = nans<T>({1, width});
    embed_tokens(tokens.data() + first, nullptr, alone, 1, tables.views(), one.view());
    mean_pool(one.view(), alone, 1, true, pooled_one.view());
    EXPECT_TRUE(std::equal(one.data().begin(), one.data().end(), rows.data().begin() + first * width));
    EXPECT_TRUE(std::equal(pooled_one.data().begin(), pooled_one.data().end(), pooled.data().begin() + b * width));
  }
}

TEST(EmbeddingThreads, ChangeNoBit) {
  constexpr Index width = 384, count = 2000;  // enough work for three threads
  const Tables<float> tables(width);
  std::vector<std::int64_t> cu_seqlens = {0};
  for (Index length = 1; cu_seqlens.back() + length < count; length = length * 7 % 131)
    cu_seqlens.push_back(cu_seqlens.back() + length);
  cu_seqlens.push_back(count);
  const Index size = static_cast<Index>(cu_seqlens.size()) - 1;
  const auto tokens = some_tokens(count);
  auto rows = nans<float>({count, width}), pooled = nans<float>({size, width});
  embed_tokens(tokens.data(), nullptr, cu_seqlens.data(), size, tables.views(), rows.view(), 1);
  mean_pool(rows.view(), cu_seqlens.data(), size, true, pooled.view(), 1);
  for (int threads : {2, 3}) {
    auto out = nans<float>({count, width}), means = nans<float>({size, width});
    embed_tokens(tokens.data(), nullptr, cu_seqlens.data(), size, tables.views(), out.view(), threads);
    mean_pool(out.view(), cu_seqlens.data(), size, true, means.view(), threads);
    EXPECT_EQ(out.data(), rows.data());
    EXPECT_EQ(means.data(), pooled.data());
  }
}

TEST(EmbeddingErrors, RefusesBeforeAnythingIsWritten) {
  const Tables<float> good(8);
  Array<float> out({5, 8}, 3);
  const std::int64_t tokens[] = {0, 1, 2, 3, 10}, cu_seqlens[] = {0, 2, 5};
  const auto refused = [&](const std::int64_t* ids, const std::int64_t* offsets, Index size,
                           const EmbeddingTables& tables, const MutableTensorView& target) {
    const std::string message =
        message_of<std::invalid_argument>([&] { embed_tokens(ids, nullptr, offsets, size, tables, target); });
    for (float element : out.data()) EXPECT_EQ(element, 3) << "written before the error: " << message;
    expect_words(message, {"embed_tokens: "});
    return message;
  };
  const auto with_tables = [&](const EmbeddingTables& tables) {
    return refused(tokens, cu_seqlens, 2, tables, out.view());
  };
  const std::int64_t above[] = {0, 1, 2, V, 4}, below[] = {-1, 1, 2, 3, 4}, falls[] = {0, 6, 5}, ends[] = {0, 2, 4};
  expect_words(refused(above, cu_seqlens, 2, good.views(), out.view()), {"token 3 is 11", "words [11, 8]"});
  expect_words(refused(below, cu_seqlens, 2, good.views(), out.view()), {"token 0 is -1", "words [11, 8]"});
  expect_words(refused(tokens, falls, 2, good.views(), out.view()), {"cu_seqlens", "never fall; got 5 after 6"});
  expect_words(refused(tokens, ends, 2, good.views(), out.view()),
               {"cu_seqlens", "end with the rows of out, 5; got 4"});
  expect_words(refused(tokens, nullptr, 2, good.views(), out.view()), {"cu_seqlens", "given"});
  expect_words(refused(tokens, cu_seqlens, -1, good.views(), out.view()), {"batch_size", "-1"});

  EmbeddingTables tables = good.views();
  tables.positions = TensorView(good.positions.data().data(), {2, 8});
  expect_words(with_tables(tables), {"text 1 has 3", "positions [2, 8]"});
  tables.positions = TensorView(good.positions.data().data(), {16, 7});
  expect_words(with_tables(tables), {"positions must be as wide as words", "positions [16, 7]", "words [11, 8]"});
  tables = good.views();
  tables.norm_bias = TensorView(good.bias.data().data(), {7});
  expect_words(with_tables(tables), {"norm_bias must be as wide as words", "norm_bias [7]"});
  tables = good.views();
  tables.words = TensorView(good.words.data().data(), {8, 8}, {1, 8});
  expect_words(with_tables(tables), {"words must have neighbours along E next to each other"});
  tables = good.views();
  tables.norm_eps = std::numeric_limits<double>::quiet_NaN();
  expect_words(with_tables(tables), {"norm_eps", "nan"});
  tables = good.views();
  tables.words = {};
  expect_words(with_tables(tables), {"words must have 2 axes"});
  const Tables<double> other(8);
  tables = good.views();
  tables.norm_weight = other.weight.view();
  EXPECT_NE(message_of<DTypeError>([&] {
              with_tables(tables);
              embed_tokens(tokens, nullptr, cu_seqlens, 2, tables, out.view());
            }),
            "no error");
  tables = good.views();
  expect_words(refused(tokens, cu_seqlens, 2, tables, MutableTensorView(out.data().data(), {5, 8}, {0, 1})),
               {"out must not have two indices for one element"});
  float* const in_words = const_cast<float*>(good.words.data().data());
  expect_words(refused(tokens, cu_seqlens, 2, tables, MutableTensorView(in_words, {5, 8})),
               {"out must not overlap words"});
}

TEST(EmbeddingErrors, PlacesThatThereAreNoPositionsFor) {
  const Tables<float> good(8);
  Array<float> out({5, 8}, 3);
  const std::int64_t tokens[] = {0, 1, 2, 3, 10}, cu_seqlens[] = {0, 2, 5};
  const std::int64_t above[] = {0, 1, 0, P, 0}, below[] = {0, 1, -1, 0, 0};
  const auto refused = [&](const std::int64_t* places) {
    const auto call = [&] { embed_tokens(tokens, places, cu_seqlens, 2, good.views(), out.view()); };
    const std::string message = message_of<std::invalid_argument>(call);
    for (float element : out.data()) EXPECT_EQ(element, 3) << "written before the error: " << message;
    return message;
  };
  expect_words(refused(above), {"embed_tokens: places", "token 3 is 130", "positions [130, 8]"});
  expect_words(refused(below), {"embed_tokens: places", "token 2 is -1"});
}

TEST(EmbeddingErrors, PoolingRefusesBeforeAnythingIsWritten) {
  Array<float> x({5, 8}, 1), out({2, 8}, 3);
  Array<double> wide({2, 8}, 3);
  const std::int64_t cu_seqlens[] = {0, 2, 5}, late[] = {1, 2, 5};
  const auto refused = [&](const TensorView& rows, const std::int64_t* offsets, const MutableTensorView& target) {
    const std::string message = message_of<std::invalid_argument>([&] { mean_pool(rows, offsets, 2, true, target); });
    for (float element : out.data()) EXPECT_EQ(element, 3) << "written before the error: " << message;
    expect_words(message, {"mean_pool: "});
    return message;
  };
  expect_words(refused(x.view(), late, out.view()), {"cu_seqlens", "begin with 0; got 1"});
  expect_words(refused(x.view(), cu_seqlens, MutableTensorView(out.data().data(), {1, 8})),
               {"out must be [2, 8]", "out [1, 8]"});
  expect_words(refused(TensorView(x.data().data(), {5, 4, 2}), cu_seqlens, out.view()), {"2 axes", "x [5, 4, 2]"});
  expect_words(refused(x.view(), cu_seqlens, wide.view()), {"out must be float64 for x in float64", "float32"});
  expect_words(refused(x.view(), cu_seqlens, MutableTensorView(x.data().data(), {2, 8})), {"out must not overlap x"});
}

}  // namespace
}  // namespace mha

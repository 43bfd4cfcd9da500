// The activations, as a projection applies them to its results.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "row_kernels.hpp"

namespace mha {
namespace {

using testing::kEps;
using testing::kInf;
using testing::kNaN;
using testing::random;
using testing::same_bits;

template <class T>
using ActivationsOf = testing::RowKernelsOf<T>;
using Elements = ::testing::Types<float, double>;
TYPED_TEST_SUITE(ActivationsOf, Elements);

constexpr Activation kActivations[] = {Activation::relu, Activation::gelu,       Activation::gelu_tanh,
                                       Activation::silu, Activation::swiglu_oai, Activation::quick_gelu};

/// One weight panel, in memory with the alignment that PackedLinear gives it.
template <class T>
struct Panel {
  static constexpr Index kWidth = kPanelBytes / static_cast<Index>(sizeof(T));
  struct alignas(kVectorBytes) Line {
    T columns[kWidth];
  };
  std::vector<Line> lines;  // one for each input feature, then the bias

  explicit Panel(Index in_features) : lines(static_cast<std::size_t>(in_features + 1), Line{}) {}

  /// A tile whose results are rows of a panel's width, with their columns next to each other.
  ProjectionTile tile(const T* x, Index rows, T* out) const {
    ProjectionTile tile{};
    tile.rows = rows;
    tile.in_features = static_cast<Index>(lines.size()) - 1;
    tile.x = x;
    tile.x_row = tile.in_features;
    tile.x_step = 1;
    tile.panel = lines.data();
    tile.bias = &lines.back();
    const Index group = kVectorBytes / static_cast<Index>(sizeof(T));
    for (Index g = 0; g < kPanelBytes / kVectorBytes; ++g) {
      tile.out[g] = out + g * group;
      tile.group_columns[g] = group;
    }
    tile.out_row = kWidth;
    tile.out_step = 1;
    return tile;
  }
};

template <class T>
void project(const DTypeKernels& kernels, const ProjectionTile& tile) {
  std::vector<typename Panel<T>::Line> scratch(kernels.projection_scratch(tile.rows) / sizeof(typename Panel<T>::Line));
  kernels.project[0].run(tile, scratch.data());
}

/// A tile gives `expected`, rows of a panel, in every other element, too, and without some of the columns.
template <class T>
void expect_the_same_apart(const DTypeKernels& kernels, ProjectionTile tile, const std::vector<T>& expected) {
  constexpr Index width = Panel<T>::kWidth, group = kVectorBytes / static_cast<Index>(sizeof(T));
  std::vector<T> spread(2 * expected.size(), kNaN<T>), expected_spread = spread;
  for (Index g = 0; g < kPanelBytes / kVectorBytes; ++g) {
    tile.out[g] = spread.data() + 2 * g * group;
    tile.group_columns[g] = g == 1 ? group - 1 : g == 3 ? 0 : group;
    for (Index r = 0; r < tile.rows; ++r)
      for (Index c = 0; c < tile.group_columns[g]; ++c) {
        const auto at = static_cast<std::size_t>(r * width + g * group + c);
        expected_spread[2 * at] = expected[at];
      }
  }
  tile.out_row = 2 * width;
  tile.out_step = 2;
  project<T>(kernels, tile);
  EXPECT_TRUE(same_bits(spread, expected_spread));
}

/// The activation of each number. A projection computes it: the weights are zeros, and the number is the bias.
template <class T>
std::vector<T> activated(const DTypeKernels& kernels, Activation activation, std::vector<T> numbers) {
  const std::size_t count = numbers.size(), width = static_cast<std::size_t>(Panel<T>::kWidth);
  numbers.resize((count + width - 1) / width * width);
  std::vector<T> out(numbers.size(), kNaN<T>);
  const T x = 0;
  Panel<T> panel(1);
  for (std::size_t at = 0; at < numbers.size(); at += width) {
    std::memcpy(panel.lines.back().columns, &numbers[at], kPanelBytes);
    ProjectionTile tile = panel.tile(&x, 1, &out[at]);
    tile.activation = activation;
    project<T>(kernels, tile);
  }
  out.resize(count);
  return out;
}

/// 1 - F(|x|), where x F(x) is the activation: how much of a large negative number is left.
long double tail(Activation activation, long double a) {
  if (activation == Activation::gelu) return 0.5L * std::erfc(a * std::sqrt(0.5L));
  if (activation == Activation::silu) return 1 / (1 + std::exp(a));
  if (activation == Activation::swiglu_oai || activation == Activation::quick_gelu)
    return 1 / (1 + std::exp(1.702L * a));
  return 1 / (1 + std::exp(2 * std::sqrt(2 / std::acos(-1.0L)) * (a + 0.044715L * a * a * a)));
}

long double expected_of(Activation activation, long double x) {
  if (activation == Activation::swiglu_oai && x > 7) x = 7;
  const long double positive = x > 0 ? x : 0, a = std::abs(x);
  return activation == Activation::relu ? positive : positive - a * tail(activation, a);
}

/// The largest error that a result may have, with u = eps / 2 for each rounding. relu rounds nothing. Otherwise the
/// result is rounded once, and the product a (1 - F(a)) is made of, relative to itself:
///   gelu       2 x 4 u and 2 x 5 u for two polynomials without a fused multiply-add, 4 u for the power, the quotient and
///              two products; 2 eps more for what the fit leaves; the C library's erfc, for double, is within 5 eps.
///              The exponent a^2 / 2 is rounded three times: 3 u a^2 / 2, of erfc's argument twice: 2 u (a^2 + 1).
///   gelu_tanh  2 u for the power, u each for sum, quotient and product; the exponent 2 z five times: 5 u 2 z.
///   silu       likewise, but the exponent a twice: 2 u a.
///   swiglu_oai and quick_gelu likewise, but the exponent 1.702 a four times: 4 u 1.702 a.
/// Exponentials too small for a normal number may be 0 (of double from 2^-1080 on): less than two such numbers times a.
template <class T>
long double bound_of(Activation activation, long double x) {
  if (activation == Activation::relu) return 0;
  const long double a = activation == Activation::swiglu_oai ? std::abs(std::min(x, 7.0L)) : std::abs(x), eps = kEps<T>;
  const long double z = std::sqrt(2 / std::acos(-1.0L)) * (a + 0.044715L * a * a * a);
  const bool is_quick = activation == Activation::swiglu_oai || activation == Activation::quick_gelu;
  const long double relative = activation == Activation::gelu   ? 14 + a * a
                               : activation == Activation::silu ? 3 + a
                               : is_quick                       ? 3 + 3.404L * a
                                                                : 3 + 5 * z;
  return (relative * a * tail(activation, a) + std::abs(expected_of(activation, x))) * eps +
         2 * (a + 1) * static_cast<long double>(std::numeric_limits<T>::min());
}

/// Numbers of every exponent of the type and of both signs, and many more where the functions bend.
template <class T>
std::vector<T> numbers_of_all_sizes() {
  std::vector<T> numbers;
  std::mt19937 generator(7);
  std::uniform_real_distribution<double> mantissa(1, 2);
  for (int e = std::numeric_limits<T>::min_exponent - std::numeric_limits<T>::digits;
       e < std::numeric_limits<T>::max_exponent; ++e)
    for (int i = 0; i < (-6 <= e && e <= 5 ? 500 : 4); ++i)
      for (int sign : {1, -1})
        numbers.push_back(std::ldexp(static_cast<T>(i == 0 ? 1 : mantissa(generator)), e) * T(sign));
  return numbers;
}

TYPED_TEST(ActivationsOf, ActivationsAreAccurateAtEverySize) {
  using T = TypeParam;
  const std::vector<T> numbers = numbers_of_all_sizes<T>();
  this->on_every_isa([&](const DTypeKernels& kernels) {
    for (Activation activation : kActivations) {
      const std::vector<T> out = activated(kernels, activation, numbers);
      for (std::size_t i = 0; i < numbers.size(); ++i)
        ASSERT_LE(std::abs(out[i] - expected_of(activation, numbers[i])), bound_of<T>(activation, numbers[i]))
            << "activation " << static_cast<int>(activation) << " of " << numbers[i] << ": " << out[i];
    }
  });
}

TYPED_TEST(ActivationsOf, ActivationsOfWhatIsNotFinite) {
  using T = TypeParam;
  this->on_every_isa([&](const DTypeKernels& kernels) {
    for (Activation activation : kActivations) {
      const bool is_clamped = activation == Activation::swiglu_oai;
      const T largest = is_clamped ? activated<T>(kernels, activation, {T(7)})[0] : kInf<T>;
      EXPECT_TRUE(same_bits(activated<T>(kernels, activation, {kNaN<T>, kInf<T>, -kInf<T>, -kNaN<T>}),
                            {kNaN<T>, largest, T(0), kNaN<T>}));
    }
  });
}

// With input features for one block and for several, and with results next to each other or apart.
TYPED_TEST(ActivationsOf, EveryResultOfAProjectionIsActivatedOnce) {
  using T = TypeParam;
  constexpr Index width = Panel<T>::kWidth;
  this->on_every_isa([&](const DTypeKernels& kernels) {
    for (Index in_features : {3, 200, 1601})
      for (Index rows : {1, 7, 24}) {
        Panel<T> panel(in_features);
        const std::vector<T> x = random<T>(rows * in_features, 1), weight = random<T>((in_features + 1) * width, 2);
        std::memcpy(panel.lines.data(), weight.data(), weight.size() * sizeof(T));
        std::vector<T> plain(static_cast<std::size_t>(rows * width), kNaN<T>);
        project<T>(kernels, panel.tile(x.data(), rows, plain.data()));
        for (Activation activation : kActivations) {
          const std::vector<T> expected = activated(kernels, activation, plain);
          std::vector<T> out(plain.size(), kNaN<T>);
          ProjectionTile tile = panel.tile(x.data(), rows, out.data());
          tile.activation = activation;
          project<T>(kernels, tile);
          EXPECT_TRUE(same_bits(out, expected));
          expect_the_same_apart<T>(kernels, tile, expected);
        }
      }
  });
}

// The products of the results of two panels, one of them activated, with results next to each other or apart.
TYPED_TEST(ActivationsOf, AGateMultipliesTheResultsOfAnotherPanel) {
  using T = TypeParam;
  constexpr Index width = Panel<T>::kWidth;
  this->on_every_isa([&](const DTypeKernels& kernels) {
    for (Index in_features : {3, 200, 1601})
      for (Index rows : {1, 7, 24}) {
        const std::vector<T> x = random<T>(rows * in_features, 1);
        Panel<T> up(in_features), gate(in_features);
        unsigned seed = 2;
        for (Panel<T>* panel : {&up, &gate}) {
          const std::vector<T> weight = random<T>((in_features + 1) * width, seed++);
          std::memcpy(panel->lines.data(), weight.data(), weight.size() * sizeof(T));
        }
        for (Activation activation : {Activation::none, Activation::silu, Activation::swiglu_oai}) {
          std::vector<T> expected(static_cast<std::size_t>(rows * width), kNaN<T>), factors = expected;
          project<T>(kernels, up.tile(x.data(), rows, factors.data()));
          ProjectionTile tile = gate.tile(x.data(), rows, expected.data());
          tile.activation = activation;
          project<T>(kernels, tile);
          if (activation == Activation::swiglu_oai)
            for (T& factor : factors) factor = std::clamp(factor, T(-7), T(7)) + T(1);
          for (std::size_t i = 0; i < expected.size(); ++i) expected[i] *= factors[i];

          std::vector<T> out(expected.size(), kNaN<T>);
          tile = up.tile(x.data(), rows, out.data());
          tile.activation = activation;
          tile.gate_panel = gate.lines.data();
          tile.gate_bias = &gate.lines.back();
          project<T>(kernels, tile);
          EXPECT_TRUE(same_bits(out, expected));
          expect_the_same_apart<T>(kernels, tile, expected);
        }
      }
  });
}

}  // namespace
}  // namespace mha

// The kernel of norms, which also adds the residual.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
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
using NormalizeRowsOf = testing::RowKernelsOf<T>;
using Elements = ::testing::Types<float, double>;
TYPED_TEST_SUITE(NormalizeRowsOf, Elements);

// Numbers of columns around whole vectors of each instruction set, and around the number of partial sums.
constexpr Index kColumns[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 79, 127, 384, 1000};

/// Rows [rows, columns] with elements before and between them that are NaN and must stay NaN.
template <class T>
struct Rows {
  Index columns, row, offset;
  std::vector<T> data;

  Rows(Index count, Index width, Index gap = 0, Index before = 0)
      : columns(width),
        row(width + gap),
        offset(before),
        data(static_cast<std::size_t>(before + count * row), kNaN<T>) {}
  Rows(Index count, Index width, const std::vector<T>& values, Index gap = 0, Index before = 0)
      : Rows(count, width, gap, before) {
    for (Index r = 0; r < count; ++r)
      std::memcpy(at(r), &values[static_cast<std::size_t>(r * width)], static_cast<std::size_t>(width) * sizeof(T));
  }
  T* at(Index r) { return data.data() + offset + r * row; }
  std::vector<T> one(Index r) { return {at(r), at(r) + columns}; }
};

/// The arguments of one call: its arrays, where each of them begins, and how far its rows are apart.
template <class T>
struct Norm {
  Index rows, columns;
  std::vector<T> x, residual, weight, bias;  // empty: none
  double eps = 1e-5;
  Index gap = 0, before = 0;
  NormKind kind = NormKind::layer;

  Norm(Index count, Index width, double mean = 0)
      : rows(count),
        columns(width),
        x(random<T>(count * width, 1, mean)),
        residual(random<T>(count * width, 2)),
        weight(random<T>(width, 3)),
        bias(random<T>(width, 4)) {}

  struct Result {
    Rows<T> sum, out;
  };
  NormalizeTile tile(Rows<T>& x_rows, Rows<T>& residual_rows) const {
    NormalizeTile tile{};
    tile.kind = kind;
    tile.rows = rows;
    tile.columns = columns;
    tile.x = x_rows.at(0);
    tile.x_row = x_rows.row;
    tile.residual = residual.empty() ? nullptr : residual_rows.at(0);
    tile.residual_row = residual_rows.row;
    tile.weight = weight.empty() ? nullptr : weight.data();
    tile.bias = bias.empty() ? nullptr : bias.data();
    tile.eps = eps;
    return tile;
  }
  Result run(const DTypeKernels& kernels) const {
    // Arrays with different distances between their rows.
    Rows<T> x_rows(rows, columns, x, gap, before), residual_rows(rows, columns, 2 * gap, 3 * before);
    if (!residual.empty()) residual_rows = Rows<T>(rows, columns, residual, 2 * gap, 3 * before);
    Result result{Rows<T>(rows, columns, 3 * gap, 2 * before), Rows<T>(rows, columns, 4 * gap, 5 * before)};
    NormalizeTile tile = this->tile(x_rows, residual_rows);
    tile.sum = result.sum.at(0);
    tile.sum_row = result.sum.row;
    tile.out = result.out.at(0);
    tile.out_row = result.out.row;
    kernels.normalize(tile);
    return result;
  }
  T z(Index r, Index c) const {
    const auto at = static_cast<std::size_t>(r * columns + c);
    return residual.empty() ? x[at] : x[at] + residual[at];
  }
};

/// The exact mean and variance of row r, and the mean magnitude of its elements.
struct Moments {
  long double mean = 0, variance = 0, size = 0;

  template <class T>
  Moments(const Norm<T>& norm, Index r) {
    const auto n = static_cast<long double>(norm.columns);
    for (Index c = 0; c < norm.columns; ++c) {
      mean += norm.z(r, c) / n;
      size += std::abs(static_cast<long double>(norm.z(r, c))) / n;
    }
    for (Index c = 0; c < norm.columns; ++c) variance += (norm.z(r, c) - mean) * (norm.z(r, c) - mean) / n;
  }
};

/// Each of z - mean, the correction, the product with 1 / sqrt, that root and the result rounds once, u = eps / 2. A
/// sum of n columns goes through at most n / (4 lanes) + 6 additions, with 2 lanes at least: its error g, in units of
/// what is summed, reaches the correction and half of it the root. The first mean is off by g times the size of z, and
/// what it is off by is a part of what is then rounded.
template <class T>
long double bound_of(const Norm<T>& norm, const Moments& m, Index c, long double exact) {
  const long double u = kEps<T> / 2, g = (static_cast<long double>(norm.columns) / 8 + 6 + 2) * u;
  const auto at = static_cast<std::size_t>(c);
  const long double weight = norm.weight.empty() ? 1 : std::abs(norm.weight[at]);
  const long double bias = norm.bias.empty() ? 0 : norm.bias[at], root = std::sqrt(m.variance + norm.eps);
  const long double spread = std::sqrt(m.variance) + g * m.size;
  return 2 * (weight / root * ((g + 2 * u) * spread) + (g + 6 * u) * std::abs(exact - bias) + u * std::abs(exact));
}

TYPED_TEST(NormalizeRowsOf, NormIsAccurateWhateverTheMean) {
  using T = TypeParam;
  constexpr Index rows = 5;
  this->on_every_isa([&](const DTypeKernels& kernels) {
    for (Index columns : kColumns)
      for (double mean : {0.0, 1e4}) {
        SCOPED_TRACE(std::to_string(columns) + " columns around " + std::to_string(mean));
        const Norm<T> norm(rows, columns, mean);
        typename Norm<T>::Result result = norm.run(kernels);
        for (Index r = 0; r < rows; ++r) {
          const Moments m(norm, r);
          for (Index c = 0; c < columns; ++c) {
            ASSERT_EQ(result.sum.at(r)[c], norm.z(r, c));
            const auto at = static_cast<std::size_t>(c);
            const long double exact =
                (norm.z(r, c) - m.mean) / std::sqrt(m.variance + norm.eps) * norm.weight[at] + norm.bias[at];
            ASSERT_LE(std::abs(result.out.at(r)[c] - exact), bound_of(norm, m, c, exact))
                << "row " << r << " column " << c;
          }
        }
      }
  });
}

/// The unfused computation: one loop for each sum, everything in T.
template <class T>
std::vector<T> unfused(const Norm<T>& norm, Index r) {
  const T n = static_cast<T>(norm.columns);
  T mean = 0, variance = 0;
  for (Index c = 0; c < norm.columns; ++c) mean += norm.z(r, c);
  mean /= n;
  for (Index c = 0; c < norm.columns; ++c) variance += (norm.z(r, c) - mean) * (norm.z(r, c) - mean);
  variance /= n;
  std::vector<T> out;
  for (Index c = 0; c < norm.columns; ++c) {
    const auto at = static_cast<std::size_t>(c);
    out.push_back((norm.z(r, c) - mean) / std::sqrt(variance + static_cast<T>(norm.eps)) * norm.weight[at] +
                  norm.bias[at]);
  }
  return out;
}

TYPED_TEST(NormalizeRowsOf, NormIsNoWorseThanTheUnfusedComputation) {
  using T = TypeParam;
  constexpr Index rows = 200;
  this->on_every_isa([&](const DTypeKernels& kernels) {
    for (Index columns : {64, 384, 1000})
      for (double mean : {0.0, 1.0, 1e4}) {
        const Norm<T> norm(rows, columns, mean);
        typename Norm<T>::Result result = norm.run(kernels);
        long double ours = 0, theirs = 0;
        for (Index r = 0; r < rows; ++r) {
          const Moments m(norm, r);
          const std::vector<T> plain = unfused(norm, r);
          for (Index c = 0; c < columns; ++c) {
            const auto at = static_cast<std::size_t>(c);
            const long double exact =
                (norm.z(r, c) - m.mean) / std::sqrt(m.variance + norm.eps) * norm.weight[at] + norm.bias[at];
            ours += std::abs(result.out.at(r)[c] - exact);
            theirs += std::abs(plain[at] - exact);
          }
        }
        EXPECT_LE(ours, theirs) << columns << " columns around " << mean;
      }
  });
}

TYPED_TEST(NormalizeRowsOf, NormOfAConstantRowIsTheBias) {
  using T = TypeParam;
  this->on_every_isa([&](const DTypeKernels& kernels) {
    for (Index columns : {1, 7, 100, 384, 1000, 4097, 20000})
      for (double value : {0.0, 0.1, -1.0 / 3, 10001.1, 1e-30, 1e15}) {
        Norm<T> norm(1, columns);
        norm.residual.clear();
        norm.x.assign(norm.x.size(), static_cast<T>(value));
        EXPECT_TRUE(same_bits(norm.run(kernels).out.one(0), norm.bias)) << columns << " columns of " << value;
      }
  });
}

TYPED_TEST(NormalizeRowsOf, NormOfARowThatIsNotFiniteIsNaNAndOfItsNeighboursIsNot) {
  using T = TypeParam;
  this->on_every_isa([&](const DTypeKernels& kernels) {
    for (Index columns : {1, 7, 16, 100})
      for (Index column : {Index(0), columns / 2, columns - 1})
        for (T value : {kNaN<T>, kInf<T>, -kInf<T>}) {
          Norm<T> norm(3, columns);
          typename Norm<T>::Result before = norm.run(kernels);
          norm.x[static_cast<std::size_t>(columns + column)] = value;
          typename Norm<T>::Result after = norm.run(kernels);
          for (Index r : {0, 2}) EXPECT_TRUE(same_bits(after.out.one(r), before.out.one(r)));
          EXPECT_TRUE(same_bits(after.out.one(1), std::vector<T>(static_cast<std::size_t>(columns), kNaN<T>)));
        }
  });
}

TYPED_TEST(NormalizeRowsOf, NormOfARowHasTheSameBitsWhereverItLies) {
  using T = TypeParam;
  constexpr Index rows = 6;
  this->on_every_isa([&](const DTypeKernels& kernels) {
    for (Index columns : kColumns) {
      const Norm<T> dense(rows, columns);
      typename Norm<T>::Result expected = dense.run(kernels);
      for (Index gap : {0, 1, 16})
        for (Index before : {1, 2, 7}) {
          Norm<T> apart = dense;
          apart.gap = gap;
          apart.before = before;
          typename Norm<T>::Result result = apart.run(kernels);
          for (auto [actual, wanted] : {std::pair{&result.out, &expected.out}, std::pair{&result.sum, &expected.sum}}) {
            std::vector<T> values = wanted->data;
            EXPECT_TRUE(
                same_bits(actual->data, Rows<T>(rows, columns, values, actual->row - columns, actual->offset).data))
                << columns << " columns, gap " << gap << ", offset " << before;
          }
        }
      for (Index r = 0; r < rows; ++r) {
        Norm<T> alone(1, columns);
        const auto first = r * columns;
        alone.x.assign(dense.x.begin() + first, dense.x.begin() + first + columns);
        alone.residual.assign(dense.residual.begin() + first, dense.residual.begin() + first + columns);
        EXPECT_TRUE(same_bits(alone.run(kernels).out.data, expected.out.one(r))) << "row " << r;
      }
    }
  });
}

TYPED_TEST(NormalizeRowsOf, NormInPlace) {
  using T = TypeParam;
  constexpr Index rows = 3;
  struct Places {
    int sum, out;
  };  // 0: nowhere, 1: x, 2: residual, 3: a place of its own
  this->on_every_isa([&](const DTypeKernels& kernels) {
    for (Index columns : kColumns)
      for (bool adds : {true, false}) {
        Norm<T> norm(rows, columns);
        if (!adds) norm.residual.clear();
        typename Norm<T>::Result expected = norm.run(kernels);
        for (Places places :
             {Places{0, 1}, {0, 2}, {0, 3}, {1, 0}, {1, 2}, {1, 3}, {2, 0}, {2, 1}, {2, 3}, {3, 1}, {3, 0}}) {
          Rows<T> x(rows, columns, norm.x), residual(rows, columns), sum(rows, columns), out(rows, columns);
          if (adds) residual = Rows<T>(rows, columns, norm.residual);
          NormalizeTile tile = norm.tile(x, residual);
          Rows<T>* const of_sum[] = {nullptr, &x, &residual, &sum};
          Rows<T>* const of_out[] = {nullptr, &x, &residual, &out};
          tile.sum_row = tile.out_row = columns;
          if (places.sum != 0) tile.sum = of_sum[places.sum]->at(0);
          if (places.out != 0) tile.out = of_out[places.out]->at(0);
          kernels.normalize(tile);
          EXPECT_TRUE(places.sum == 0 || same_bits(of_sum[places.sum]->data, expected.sum.data));
          EXPECT_TRUE(places.out == 0 || same_bits(of_out[places.out]->data, expected.out.data));
        }
      }
  });
}

TYPED_TEST(NormalizeRowsOf, NormWithoutWeightAndBias) {
  using T = TypeParam;
  this->on_every_isa([&](const DTypeKernels& kernels) {
    for (Index columns : kColumns) {
      Norm<T> with(2, columns), without = with;
      with.weight.assign(with.weight.size(), T(1));
      without.weight.clear();
      EXPECT_TRUE(same_bits(without.run(kernels).out.data, with.run(kernels).out.data));
      with.bias.assign(with.bias.size(), T(0));
      without.bias.clear();
      EXPECT_TRUE(same_bits(without.run(kernels).out.data, with.run(kernels).out.data));
    }
  });
}

constexpr NormKind kRmsKinds[] = {NormKind::rms, NormKind::rms_unit_offset};

/// RMSNorm of row r, column by column, and what each column is multiplied by.
template <class T>
std::vector<long double> exact_rms(const Norm<T>& norm, Index r) {
  long double square = 0;
  for (Index c = 0; c < norm.columns; ++c) {
    const auto z = static_cast<long double>(norm.z(r, c));
    square += z * z / static_cast<long double>(norm.columns);
  }
  const long double root = std::sqrt(square + static_cast<long double>(norm.eps));
  std::vector<long double> out;
  for (Index c = 0; c < norm.columns; ++c) {
    const long double weight = norm.weight.empty() ? 1 : norm.weight[static_cast<std::size_t>(c)];
    out.push_back(norm.z(r, c) / root * (norm.kind == NormKind::rms_unit_offset ? 1 + weight : weight));
  }
  return out;
}

/// The root and its inverse, 1 + weight, and two products round once each, u = eps / 2. A sum of n squares goes through at
/// most n / (4 lanes) + 6 additions, with 2 lanes at least, of positive terms, and half of its error reaches the root.
template <class T>
long double rms_bound(Index columns, long double exact) {
  const long double u = kEps<T> / 2, g = (static_cast<long double>(columns) / 8 + 6 + 2) * u;
  return 2 * (g / 2 + 5 * u) * std::abs(exact);
}

TYPED_TEST(NormalizeRowsOf, RmsNormIsAccurateWhateverTheScale) {
  using T = TypeParam;
  constexpr Index rows = 3;
  constexpr bool is_double = sizeof(T) == sizeof(double);
  // Squares that overflow, or fall below the smallest normal number; and with all numbers normal, so does the inverse of the root.
  const std::vector<double> scales = is_double ? std::vector<double>{1, 1e20, 1e150, 1e307, 1e-150, 1e-160, 1e-300}
                                               : std::vector<double>{1, 1e15, 1e20, 1e38, 1e-15, 1e-18, 1e-22, 1e-36};
  this->on_every_isa([&](const DTypeKernels& kernels) {
    for (Index columns : kColumns)
      for (double scale : scales)
        for (double eps : {0.0, 1e-6, scale})
          for (NormKind kind : kRmsKinds) {
            SCOPED_TRACE(std::to_string(columns) + " columns of " + std::to_string(scale));
            Norm<T> norm(rows, columns);
            norm.kind = kind;
            norm.eps = eps;
            norm.residual.clear();
            norm.bias.clear();
            for (T& x : norm.x) x = std::copysign(static_cast<T>((0.5 + std::abs(std::fmod(x, 1))) * scale), x);
            typename Norm<T>::Result result = norm.run(kernels);
            for (Index r = 0; r < rows; ++r) {
              const std::vector<long double> exact = exact_rms(norm, r);
              for (Index c = 0; c < columns; ++c) {
                ASSERT_EQ(result.sum.at(r)[c], norm.z(r, c));
                const long double wanted = exact[static_cast<std::size_t>(c)];
                const long double bound = rms_bound<T>(columns, wanted) + std::numeric_limits<T>::min();
                ASSERT_LE(std::abs(result.out.at(r)[c] - wanted), bound)
                    << "row " << r << " column " << c << " eps " << eps;
              }
            }
          }
  });
}

TYPED_TEST(NormalizeRowsOf, RmsNormHasTheSameBitsWhereverARowLiesAndInPlace) {
  using T = TypeParam;
  constexpr Index rows = 3;
  this->on_every_isa([&](const DTypeKernels& kernels) {
    for (Index columns : kColumns)
      for (double scale : {1.0, 1e30}) {  // as it is, and rows that are scaled where `out` lies
        Norm<T> norm(rows, columns);
        norm.kind = NormKind::rms_unit_offset;
        for (std::vector<T>* values : {&norm.x, &norm.residual})
          for (T& x : *values) x *= static_cast<T>(scale);
        typename Norm<T>::Result expected = norm.run(kernels);
        Norm<T> apart = norm;
        apart.gap = 5;
        apart.before = 3;
        typename Norm<T>::Result result = apart.run(kernels);
        for (Index r = 0; r < rows; ++r) {
          EXPECT_TRUE(same_bits(result.out.one(r), expected.out.one(r)));
          EXPECT_TRUE(same_bits(result.sum.one(r), expected.sum.one(r)));
        }
        for (bool writes_sum : {false, true})
          for (bool in_residual : {false, true}) {
            Rows<T> x(rows, columns, norm.x), residual(rows, columns, norm.residual);
            NormalizeTile tile = norm.tile(x, residual);
            tile.sum_row = tile.out_row = columns;
            tile.out = (in_residual ? residual : x).at(0);
            if (writes_sum) tile.sum = (in_residual ? x : residual).at(0);
            kernels.normalize(tile);
            EXPECT_TRUE(same_bits((in_residual ? residual : x).data, expected.out.data));
            EXPECT_TRUE(!writes_sum || same_bits((in_residual ? x : residual).data, expected.sum.data));
          }
      }
  });
}

TYPED_TEST(NormalizeRowsOf, RmsNormOfARowThatIsNotFinite) {
  using T = TypeParam;
  this->on_every_isa([&](const DTypeKernels& kernels) {
    for (Index columns : {1, 7, 16, 100})
      for (Index column : {Index(0), columns / 2, columns - 1})
        for (T value : {kNaN<T>, kInf<T>, -kInf<T>}) {
          Norm<T> norm(3, columns);
          norm.kind = NormKind::rms;
          norm.bias.clear();
          typename Norm<T>::Result before = norm.run(kernels);
          norm.x[static_cast<std::size_t>(columns + column)] = value;
          typename Norm<T>::Result after = norm.run(kernels);
          for (Index r : {0, 2}) EXPECT_TRUE(same_bits(after.out.one(r), before.out.one(r)));
          for (Index c = 0; c < columns; ++c) {
            const T out = after.out.at(1)[c];
            EXPECT_TRUE(c == column || std::isnan(value) ? std::isnan(out) : out == 0) << out << " at column " << c;
          }
        }
  });
}

}  // namespace
}  // namespace mha

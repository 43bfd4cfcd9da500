// Gradients of norms of rows (normalize_rows.hpp). With the normal row n = (z - mean) r, r = 1 / sqrt(variance + eps),
// and g = dout * weight
//
//   LayerNorm:  dx = r (g - mean(g) - n mean(g n))
//   RMSNorm:    dx = r (g - n mean(g n))
//   dweight = sum of dout n over rows, dbias = sum of dout
//
// Memory traffic: x and dout are read from memory once, and dx is written once. Further passes over a row read it from
// level 1, where the sums over rows lie, too.
//
// Numerics: mean and r are computed as in the norm itself. Sums over rows are added row by row: the caller decides how
// many rows a sum has.
#pragma once

#include <math.h>

#include "kernels/rows/row_vectors.hpp"

namespace mha::MHA_ISA {
namespace {

template <class S>
class NormGradient {
  using T = Compute<S>;
  using P = Packet<T>;

 public:
  explicit NormGradient(const NormGradientTile& tile)
      : tile_(tile), vectors_(tile.columns), share_(1 / double(tile.columns)) {}

  void run() const {
    find_factors();
    Index r = 0;
    for (; r + kRows <= tile_.rows; r += kRows) differentiate<kRows>(r);
    for (; r < tile_.rows; ++r) differentiate<1>(r);
  }

 private:
  /// Rows at a time: the sums of one are added up while vectors of the next are read.
  static constexpr int kRows = 4;

  /// With z = scale x, the normal row is n = (z - mean) r + shift, and dx = (g + offset + n product) slope.
  struct Row {
    const S *x, *dout;
    S* dx;
    T scale, mean, r, shift, slope, offset, product;
  };

  /// Writes the factors of the features, the same for all rows of the tile: the weight, or 1 + weight.
  void find_factors() const {
    T* const factors = static_cast<T*>(tile_.factors);
    const S* const weight = static_cast<const S*>(tile_.weight);
    const P offset = pset1<P>(T(weight && tile_.kind != NormKind::rms_unit_offset ? 0 : 1));
    vectors_.for_each_vector([&](Index column, int, auto lanes) MHA_INLINE_LAMBDA {
      pstore(factors + column, weight ? padd(offset, vectors_.load(weight + column, lanes)) : offset);
    });
  }

  /// Of `kCount` rows, from `first` on.
  template <int kCount>
  __attribute__((noinline)) void differentiate(Index first) const {
    Row rows[kCount];
    for (int k = 0; k < kCount; ++k) {
      rows[k].x = static_cast<const S*>(tile_.x) + (first + k) * tile_.x_row;
      rows[k].dout = static_cast<const S*>(tile_.dout) + (first + k) * tile_.dout_row;
      rows[k].dx = tile_.dx ? static_cast<S*>(tile_.dx) + (first + k) * tile_.dx_row : nullptr;
      rows[k].mean = tile_.kind == NormKind::layer ? mean_of(rows[k].x) : T(0);
    }
    bool is_scaled = false;
    for (int k = 0; k < kCount; ++k) is_scaled |= measure(rows[k]);
    if (is_scaled)
      write<kCount, true>(rows);
    else
      write<kCount, false>(rows);
  }

  MHA_INLINE T mean_of(const S* x) const {
    const RowVectors<S> vectors = vectors_;
    RowSum<T> sum;
    vectors.for_each_vector([&](Index column, int part, auto lanes) MHA_INLINE_LAMBDA {
      sum.parts[part] = padd(sum.parts[part], vectors.load(x + column, lanes));
    });
    return T(double(sum.total()) * share_);
  }

  /// Means of a row of z = scale x.
  struct Means {
    double d, squares, g, products;  // of d = z - mean, d^2, g and g d
  };
  template <bool kIsScaled>
  MHA_INLINE Means means_of(const Row& row, T scale) const {
    const RowVectors<S> vectors = vectors_;
    const T* const factors = static_cast<const T*>(tile_.factors);
    const P mean = pset1<P>(row.mean), by = pset1<P>(scale);
    const S *const x = row.x, *const dout = row.dout;
    RowSum<T> ds, squares, gs, products;
    vectors.for_each_vector([&](Index column, int part, auto lanes) MHA_INLINE_LAMBDA {
      P z = vectors.load(x + column, lanes);
      if (kIsScaled) z = pmul(z, by);
      const P d = vectors.without_padding(psub(z, mean), lanes);
      const P g = pmul(vectors.load(dout + column, lanes), pload<P>(factors + column));
      ds.parts[part] = padd(ds.parts[part], d);
      squares.parts[part] = pmadd(d, d, squares.parts[part]);
      gs.parts[part] = padd(gs.parts[part], g);
      products.parts[part] = pmadd(g, d, products.parts[part]);
    });
    return {double(ds.total()) * share_, double(squares.total()) * share_, double(gs.total()) * share_,
            double(products.total()) * share_};
  }

  /// Sets all that follows from the mean. Returns whether the row is scaled, as rows of RMSNorm in RowNormalizer.
  MHA_INLINE bool measure(Row& row) const {
    Means means = means_of<false>(row, T(1));
    double eps = tile_.eps, scale = 1, left = 0, spread = means.squares;
    if (tile_.kind == NormKind::layer) {
      left = means.d;
      spread -= left * left;
      if (spread < 0) spread = 0;  // rounding alone can make it negative; NaN stays NaN
    } else {
      const bool is_large = __builtin_isinf(spread), is_small = spread + eps < SquareLimits<T>::least;
      if (is_large || is_small) {
        scale = is_large ? SquareLimits<T>::down : SquareLimits<T>::up;
        means = scaled_means(row, T(scale));
        eps = eps * scale * scale;
        spread = means.squares;
      }
      means.g = 0;
    }
    const double root = 1 / ::sqrt(spread + eps), slope = root * scale;
    row.scale = T(scale);
    row.r = T(root);
    row.shift = T(-left * root);
    row.slope = T(slope);
    row.offset = T(-means.g);
    row.product = T(-(means.products - left * means.g) * root);
    return scale != 1;
  }

  /// Rare, and so apart from the rest.
  __attribute__((noinline, cold)) Means scaled_means(const Row& row, T scale) const {
    return means_of<true>(row, scale);
  }

  template <int kCount, bool kIsScaled>
  MHA_INLINE void write(const Row (&rows)[kCount]) const {
    const RowVectors<S> vectors = vectors_;
    const T* const factors = static_cast<const T*>(tile_.factors);
    T *const dweight = static_cast<T*>(tile_.dweight), *const dbias = static_cast<T*>(tile_.dbias);
    const bool has_dx = tile_.dx;
    vectors.for_each_vector([&](Index column, int, auto lanes) MHA_INLINE_LAMBDA {
      const P factor = pload<P>(factors + column);
      P of_weight = dweight ? pload<P>(dweight + column) : factor, of_bias = dbias ? pload<P>(dbias + column) : factor;
      MHA_UNROLL
      for (int k = 0; k < kCount; ++k) {
        const Row& row = rows[k];
        P z = vectors.load(row.x + column, lanes);
        if (kIsScaled) z = pmul(z, pset1<P>(row.scale));
        const P d = vectors.load(row.dout + column, lanes);
        const P normal = pmadd(psub(z, pset1<P>(row.mean)), pset1<P>(row.r), pset1<P>(row.shift));
        if (has_dx) {
          const P g = pmadd(d, factor, pset1<P>(row.offset));
          vectors.store(row.dx + column, pmul(pmadd(normal, pset1<P>(row.product), g), pset1<P>(row.slope)), lanes);
        }
        of_weight = pmadd(d, normal, of_weight);
        of_bias = padd(d, of_bias);
      }
      if (dweight) pstore(dweight + column, of_weight);
      if (dbias) pstore(dbias + column, of_bias);
    });
  }

  const NormGradientTile& tile_;
  const RowVectors<S> vectors_;
  const double share_;  // of a column in a mean
};

template <class S>
void norm_gradient(const NormGradientTile& tile) {
  NormGradient<S>(tile).run();
}

/// Adds the sums of spans in order, in f64, and rounds them.
template <class S>
void add_spans(const RowSums& spans) {
  using T = Compute<S>;
  constexpr Index kColumns = 64;
  for (Index first = 0; first < spans.columns; first += kColumns) {
    const Index count = spans.columns - first < kColumns ? spans.columns - first : kColumns;
    double sums[kColumns] = {};
    for (Index span = 0; span < spans.count; ++span) {
      const T* const row = static_cast<const T*>(spans.sums) + span * spans.row + first;
      for (Index c = 0; c < count; ++c) sums[c] += double(row[c]);
    }
    for (Index c = 0; c < count; ++c) store_element(static_cast<S*>(spans.out) + first + c, T(sums[c]));
  }
}

}  // namespace
}  // namespace mha::MHA_ISA

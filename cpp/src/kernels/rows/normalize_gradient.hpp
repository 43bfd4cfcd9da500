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
  explicit NormGradient(const NormGradientTile& tile) : tile_(tile), vectors_(tile.columns) {}

  void run() const {
    find_factors();
    Index r = 0;
    for (; r + kRows <= tile_.rows; r += kRows) differentiate<kRows>(r);
    for (; r < tile_.rows; ++r) differentiate<1>(r);
  }

 private:
  /// Rows at a time: the sums of one are added up while vectors of the next are read.
  static constexpr int kRows = 4;

  struct Row {
    const S *x, *dout;
    S* dx;
    T mean, correction, r;                  // the normal row is (scale x - mean - correction) r
    T scale, mean_g, mean_product, r_of_x;  // dx = (g - mean_g - n mean_product) r_of_x
  };

  /// What the norm multiplies by, for all rows of the tile.
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
    for (int k = 0; k < kCount; ++k) measure(rows[k]);
    write<kCount>(rows);
  }

  MHA_INLINE T mean_of(const S* x) const {
    RowSum<T> sum;
    vectors_.for_each_vector([&](Index column, int part, auto lanes) MHA_INLINE_LAMBDA {
      sum.parts[part] = padd(sum.parts[part], vectors_.load(x + column, lanes));
    });
    return T(double(sum.total()) / double(tile_.columns));
  }

  /// Sets all that follows from the mean.
  MHA_INLINE void measure(Row& row) const {
    const bool is_centred = tile_.kind == NormKind::layer;
    const double n = double(tile_.columns);
    const T* const factors = static_cast<const T*>(tile_.factors);
    const P mean = pset1<P>(row.mean);
    double eps = tile_.eps, left = 0, spread = 0, of_g = 0, of_products = 0, scale = 1;
    for (bool is_scaled = false;; is_scaled = true) {  // rows of RMSNorm are scaled as in RowNormalizer
      RowSum<T> sum, squares, gs, products;
      const P by = pset1<P>(T(scale));
      vectors_.for_each_vector([&](Index column, int part, auto lanes) MHA_INLINE_LAMBDA {
        const P z = pmul(vectors_.load(row.x + column, lanes), by);
        const P d = vectors_.without_padding(psub(z, mean), lanes);
        const P g = pmul(vectors_.load(row.dout + column, lanes), pload<P>(factors + column));
        sum.parts[part] = padd(sum.parts[part], d);
        squares.parts[part] = pmadd(d, d, squares.parts[part]);
        gs.parts[part] = padd(gs.parts[part], g);
        products.parts[part] = pmadd(g, d, products.parts[part]);
      });
      spread = double(squares.total()) / n;
      of_g = double(gs.total()) / n;
      of_products = double(products.total()) / n;
      if (is_centred) {
        left = double(sum.total()) / n;
        spread -= left * left;
        if (spread < 0) spread = 0;  // rounding alone can make it negative; NaN stays NaN
        of_products -= left * of_g;
        break;
      }
      const bool is_large = __builtin_isinf(spread), is_small = spread + eps < SquareLimits<T>::least;
      if (is_scaled || !(is_large || is_small)) {
        of_g = 0;
        break;
      }
      scale = is_large ? SquareLimits<T>::down : SquareLimits<T>::up;
      eps = eps * scale * scale;
    }
    const double root = 1 / ::sqrt(spread + eps);
    row.correction = T(left);
    row.r = T(root);
    row.scale = T(scale);
    row.mean_g = T(of_g);
    row.mean_product = T(of_products * root);
    row.r_of_x = T(root * scale);
  }

  template <int kCount>
  MHA_INLINE void write(const Row (&rows)[kCount]) const {
    const T* const factors = static_cast<const T*>(tile_.factors);
    T *const dweight = static_cast<T*>(tile_.dweight), *const dbias = static_cast<T*>(tile_.dbias);
    const bool has_dx = tile_.dx, has_dweight = dweight, has_dbias = dbias;
    vectors_.for_each_vector([&](Index column, int, auto lanes) MHA_INLINE_LAMBDA {
      const P factor = pload<P>(factors + column);
      P of_weight = has_dweight ? pload<P>(dweight + column) : factor,
        of_bias = has_dbias ? pload<P>(dbias + column) : factor;
      MHA_UNROLL
      for (int k = 0; k < kCount; ++k) {
        const Row& row = rows[k];
        const P z = pmul(vectors_.load(row.x + column, lanes), pset1<P>(row.scale));
        const P d = vectors_.load(row.dout + column, lanes);
        const P normal = pmul(psub(psub(z, pset1<P>(row.mean)), pset1<P>(row.correction)), pset1<P>(row.r));
        if (has_dx) {
          const P g = psub(pmul(d, factor), pset1<P>(row.mean_g));
          vectors_.store(row.dx + column, pmul(psub(g, pmul(normal, pset1<P>(row.mean_product))), pset1<P>(row.r_of_x)),
                         lanes);
        }
        of_weight = pmadd(d, normal, of_weight);
        of_bias = padd(d, of_bias);
      }
      if (has_dweight) pstore(dweight + column, of_weight);
      if (has_dbias) pstore(dbias + column, of_bias);
    });
  }

  const NormGradientTile& tile_;
  const RowVectors<S> vectors_;
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

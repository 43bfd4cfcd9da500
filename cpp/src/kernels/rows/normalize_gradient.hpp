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
    for (Index r = 0; r < tile_.rows; ++r) {
      const S* const x = static_cast<const S*>(tile_.x) + r * tile_.x_row;
      const S* const dout = static_cast<const S*>(tile_.dout) + r * tile_.dout_row;
      S* const dx = tile_.dx ? static_cast<S*>(tile_.dx) + r * tile_.dx_row : nullptr;
      if (!tile_.weight)
        differentiate(x, dout, dx, [](Index, auto) MHA_INLINE_LAMBDA { return pset1<P>(T(1)); });
      else if (tile_.kind == NormKind::rms_unit_offset)
        differentiate(x, dout, dx, [this](Index column, auto lanes) MHA_INLINE_LAMBDA {
          return padd(pset1<P>(T(1)), weight(column, lanes));
        });
      else
        differentiate(x, dout, dx,
                      [this](Index column, auto lanes) MHA_INLINE_LAMBDA { return weight(column, lanes); });
    }
  }

 private:
  template <class Lanes>
  MHA_INLINE P weight(Index column, Lanes lanes) const {
    return vectors_.load(static_cast<const S*>(tile_.weight) + column, lanes);
  }

  /// Of one row. `factor(column, lanes)` is what the norm multiplies by.
  template <class Factor>
  MHA_INLINE void differentiate(const S* x, const S* dout, S* dx, Factor factor) const {
    const bool is_centred = tile_.kind == NormKind::layer;
    const double n = double(tile_.columns);
    P mean = pset1<P>(T(0));
    if (is_centred) {
      RowSum<T> sum;
      vectors_.for_each_vector([&](Index column, int part, auto lanes) MHA_INLINE_LAMBDA {
        sum.parts[part] = padd(sum.parts[part], vectors_.load(x + column, lanes));
      });
      mean = pset1<P>(T(double(sum.total()) / n));
    }
    double eps = tile_.eps, left = 0, spread = 0, of_g = 0, of_products = 0;
    T scale = 1;  // of the row of RMSNorm, as in RowNormalizer
    for (bool is_scaled = false;; is_scaled = true) {
      RowSum<T> sum, squares, gs, products;
      vectors_.for_each_vector([&](Index column, int part, auto lanes) MHA_INLINE_LAMBDA {
        const P z = pmul(vectors_.load(x + column, lanes), pset1<P>(scale));
        const P d = vectors_.without_padding(psub(z, mean), lanes);
        const P g = pmul(vectors_.load(dout + column, lanes), factor(column, lanes));
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
      const double power = is_large ? SquareLimits<T>::down : SquareLimits<T>::up;
      scale = T(power);
      eps = eps * power * power;
    }
    const double root = 1 / ::sqrt(spread + eps);
    const P correction = pset1<P>(T(left)), r = pset1<P>(T(root)), mean_g = pset1<P>(T(of_g));
    const P mean_product = pset1<P>(T(of_products * root)), r_of_x = pset1<P>(T(root * double(scale)));
    T *const dweight = static_cast<T*>(tile_.dweight), *const dbias = static_cast<T*>(tile_.dbias);
    vectors_.for_each_vector([&](Index column, int, auto lanes) MHA_INLINE_LAMBDA {
      const P z = pmul(vectors_.load(x + column, lanes), pset1<P>(scale)), d = vectors_.load(dout + column, lanes);
      const P normal = pmul(psub(psub(z, mean), correction), r);
      if (dx) {
        const P g = psub(pmul(d, factor(column, lanes)), mean_g);
        vectors_.store(dx + column, pmul(psub(g, pmul(normal, mean_product)), r_of_x), lanes);
      }
      if (dweight) pstore(dweight + column, pmadd(d, normal, pload<P>(dweight + column)));
      if (dbias) pstore(dbias + column, padd(d, pload<P>(dbias + column)));
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

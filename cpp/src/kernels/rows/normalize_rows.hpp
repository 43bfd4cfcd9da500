// Norms of rows, and the residual addition before them. With z = x + residual
//
//   LayerNorm:  out = (z - mean) / sqrt(variance + eps) * weight + bias
//   RMSNorm:    out = z / sqrt(mean(z^2) + eps) * weight, or (1 + weight)
//
// RMSNorm is the same arithmetic with 0 for the mean.
//
// Memory traffic: a row is read from memory and written once. Its second and third pass read it from level 1.
//
// Numerics: sums over a row have an order that depends on the number of columns alone (RowSum). The mean is corrected
// by the mean of the differences after subtracting it (Chan, Golub and LeVeque, "Algorithms for Computing the Sample
// Variance", 1983, the corrected two-pass algorithm). Where the squares of RMSNorm overflow or vanish, the row is
// scaled by a power of two first, since RMSNorm of s z with s^2 eps equals RMSNorm of z with eps.
#pragma once

#include <math.h>

#include "kernels/rows/row_vectors.hpp"

namespace mha::MHA_ISA {
namespace {

template <class S>
class RowNormalizer {
  using T = Compute<S>;
  using P = Packet<T>;
  static constexpr Index L = kLanes<T>;

 public:
  explicit RowNormalizer(const NormalizeTile& tile) : tile_(tile), vectors_(tile.columns) {}

  void run() const {
    for (Index r = 0; r < tile_.rows; ++r) {
      const auto row = [r](auto* first, Index step) { return first ? first + r * step : nullptr; };
      const S* const x = row(static_cast<const S*>(tile_.x), tile_.x_row);
      const S* const residual = row(static_cast<const S*>(tile_.residual), tile_.residual_row);
      S* const sum = row(static_cast<S*>(tile_.sum), tile_.sum_row);
      S* const out = row(static_cast<S*>(tile_.out), tile_.out_row);
      // After an addition z is read again: from `sum` if it is written there, else from `out`, where it waits.
      S* const kept = sum ? sum : residual ? out : nullptr;
      const T total = add(x, residual, kept);
      if (out) normalize(kept ? kept : x, total, out);
    }
  }

 private:
  /// z = x + residual, written to `kept` if that is not null. Returns the sum of z.
  MHA_INLINE T add(const S* x, const S* residual, S* kept) const {
    RowSum<T> sum;
    vectors_.for_each_vector([&](Index column, int part, auto lanes) MHA_INLINE_LAMBDA {
      P z = vectors_.load(x + column, lanes);
      if (residual) z = padd(z, vectors_.load(residual + column, lanes));
      if (kept) vectors_.store(kept + column, z, lanes);
      sum.parts[part] = padd(sum.parts[part], z);
    });
    return sum.total();
  }

  /// The mean is rounded. The mean of d = z - mean corrects it, and the variance with it.
  MHA_INLINE void normalize(const S* z, T total, S* out) const {
    const bool is_centred = tile_.kind == NormKind::layer;
    const double n = double(tile_.columns);
    const P mean = pset1<P>(is_centred ? T(double(total) / n) : T(0));
    double eps = tile_.eps, left = 0, spread = 0;
    for (bool is_scaled = false;; is_scaled = true) {
      RowSum<T> sum, squares;
      vectors_.for_each_vector([&](Index column, int part, auto lanes) MHA_INLINE_LAMBDA {
        const P d = vectors_.without_padding(psub(vectors_.load(z + column, lanes), mean), lanes);
        sum.parts[part] = padd(sum.parts[part], d);
        squares.parts[part] = pmadd(d, d, squares.parts[part]);
      });
      spread = double(squares.total()) / n;
      if (is_centred) {
        left = double(sum.total()) / n;
        spread -= left * left;
        if (spread < 0) spread = 0;  // rounding alone can make it negative; NaN stays NaN
        break;
      }
      const bool is_large = __builtin_isinf(spread), is_small = spread + eps < SquareLimits<T>::least;
      if (is_scaled || !(is_large || is_small)) break;
      const double scale = is_large ? SquareLimits<T>::down : SquareLimits<T>::up;
      multiply(z, T(scale), out);
      z = out;
      eps = eps * scale * scale;
    }
    const P correction = pset1<P>(T(left)), factor = pset1<P>(T(1 / ::sqrt(spread + eps)));
    const S *const weight = static_cast<const S*>(tile_.weight), *const bias = static_cast<const S*>(tile_.bias);
    const bool has_plain_weight = weight && tile_.kind != NormKind::rms_unit_offset;
    vectors_.for_each_vector([&](Index column, int, auto lanes) MHA_INLINE_LAMBDA {
      const P d = psub(psub(vectors_.load(z + column, lanes), mean), correction);
      P w = pset1<P>(T(1));
      if (has_plain_weight)
        w = vectors_.load(weight + column, lanes);
      else if (weight)
        w = padd(w, vectors_.load(weight + column, lanes));
      const P b = bias ? vectors_.load(bias + column, lanes) : pset1<P>(T(0));
      vectors_.store(out + column, pmadd(pmul(d, factor), w, b), lanes);
    });
  }

  /// Rare, and so apart from the rest. `out` may be z.
  __attribute__((noinline, cold)) void multiply(const S* z, T scale, S* out) const {
    for (Index column = 0; column < tile_.columns; ++column) {
      S lanes[L] = {z[column]};
      store_packet(lanes, pmul(load_packet(lanes), pset1<P>(scale)));
      out[column] = lanes[0];
    }
  }

  const NormalizeTile& tile_;
  const RowVectors<S> vectors_;
};

template <class S>
void normalize_rows(const NormalizeTile& tile) {
  RowNormalizer<S>(tile).run();
}

}  // namespace
}  // namespace mha::MHA_ISA

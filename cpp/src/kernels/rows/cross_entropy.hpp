// Cross-entropy of rows of logits z with a target t, and its gradient, in place.
//
//   lse = m + log(sum_j exp(z_j - m)), m = max z
//   loss = (1 - s) (lse - z_t) + s (lse - mean z)         s: label smoothing
//   dz_j = (exp(z_j - lse) - (1 - s) [j = t] - s / V) scale
//
// Memory traffic: a row is read for its maximum, read and written for the exponentials, and read and written for the
// gradient. It lies in a cache near the core, where the projection has left it.
//
// Numerics: sums have the order of RowSum and are finished in f64, the logarithm too.
#pragma once

#include <math.h>

#include "kernels/rows/row_vectors.hpp"
#include "kernels/vectors/exp2.hpp"

namespace mha::MHA_ISA {
namespace {

template <class T>
class CrossEntropyRow {
  using P = Packet<T>;
  static constexpr double kLog2E = 1.44269504088896340736;

 public:
  explicit CrossEntropyRow(const CrossEntropyTile& tile) : tile_(tile), vectors_(tile.columns) {}

  void run() const {
    for (Index r = 0; r < tile_.rows; ++r)
      compute(static_cast<T*>(tile_.logits) + r * tile_.logits_row, Index(tile_.targets[r]), r);
  }

 private:
  void compute(T* z, Index target, Index r) const {
    const double smoothing = tile_.label_smoothing, n = double(tile_.columns), of_target = double(z[target]);
    const P lowest = pset1<P>(-kInfinity<T>);
    P most[RowSum<T>::kParts + 1];
    MHA_UNROLL
    for (P& one : most) one = lowest;
    RowSum<T> sum;
    vectors_.for_each_vector([&](Index column, int part, auto lanes) MHA_INLINE_LAMBDA {
      const P x = vectors_.load(z + column, lanes);
      most[part] = pmax(most[part], vectors_.padded_with(x, lowest, lanes));
      if (smoothing != 0) sum.parts[part] = padd(sum.parts[part], x);
    });
    MHA_UNROLL
    for (int part = 1; part <= RowSum<T>::kParts; ++part) most[0] = pmax(most[0], most[part]);
    const T maximum = predux_max(most[0]);
    const P m = pset1<P>(maximum), log2e = pset1<P>(T(kLog2E));
    RowSum<T> weights;
    vectors_.for_each_vector([&](Index column, int part, auto lanes) MHA_INLINE_LAMBDA {
      const P weight = exp2_of_nonpositive(pmul(psub(vectors_.load(z + column, lanes), m), log2e));
      if (tile_.has_gradient) vectors_.store(z + column, weight, lanes);
      weights.parts[part] = padd(weights.parts[part], vectors_.without_padding(weight, lanes));
    });
    const double total = double(weights.total()), lse = double(maximum) + ::log(total);
    double loss = (1 - smoothing) * (lse - of_target);
    if (smoothing != 0) loss += smoothing * (lse - double(sum.total()) / n);
    tile_.losses[r] = loss;
    if (!tile_.has_gradient) return;
    const P by = pset1<P>(T(tile_.scale / total)), uniform = pset1<P>(T(smoothing / n * tile_.scale));
    vectors_.for_each_vector([&](Index column, int, auto lanes) MHA_INLINE_LAMBDA {
      vectors_.store(z + column, psub(pmul(vectors_.load(z + column, lanes), by), uniform), lanes);
    });
    z[target] = T(double(z[target]) - (1 - smoothing) * tile_.scale);
  }

  const CrossEntropyTile& tile_;
  const RowVectors<T> vectors_;
};

template <class T>
void cross_entropy_rows(const CrossEntropyTile& tile) {
  CrossEntropyRow<T>(tile).run();
}

}  // namespace
}  // namespace mha::MHA_ISA

// Layer norm of rows, and the addition before it, in one trip through memory: what a row's second and third pass read
// is in level 1.
#pragma once

#include <math.h>

#include "eigen.hpp"
#include "kernel_table.hpp"

namespace mha::MHA_ISA {

/// A row's columns, a vector at a time: whole ones where they lie, the last few through a buffer filled up with zeros,
/// so that nothing outside the row is read or written.
template <class T>
class RowNormalizer {
  using P = Packet<T>;
  static constexpr Index L = kLanes<T>;
  static constexpr int kChains = 4;  // enough for the latency of an addition at two loads a cycle

 public:
  explicit RowNormalizer(const NormalizeTile& tile)
      : tile_(tile),
        whole_(tile.columns / L * L),
        rest_(int(tile.columns - whole_)),
        in_rest_(pcmp_lt(plset<P>(T(0)), pset1<P>(T(rest_)))) {}

  void run() const {
    for (Index r = 0; r < tile_.rows; ++r) {
      const T* const x = static_cast<const T*>(tile_.x) + r * tile_.x_row;
      const T* const residual =
          tile_.residual ? static_cast<const T*>(tile_.residual) + r * tile_.residual_row : nullptr;
      T* const sum = tile_.sum ? static_cast<T*>(tile_.sum) + r * tile_.sum_row : nullptr;
      T* const out = tile_.out ? static_cast<T*>(tile_.out) + r * tile_.out_row : nullptr;
      // With an addition, z is kept where it is wanted, else where the result will be.
      T* const kept = sum ? sum : residual ? out : nullptr;
      const T total = add(x, residual, kept);
      if (out) normalize(kept ? kept : x, total, out);
    }
  }

 private:
  MHA_INLINE P load(const T* at, Index column) const {
    if (column < whole_) return ploadu<P>(at + column);
    alignas(kVectorBytes) T lanes[L] = {};
    for (int i = 0; i < rest_; ++i) lanes[i] = at[column + i];
    return pload<P>(lanes);
  }
  MHA_INLINE void store(T* at, Index column, const P& value) const {
    if (column < whole_) return pstoreu(at + column, value);
    alignas(kVectorBytes) T lanes[L];
    pstore(lanes, value);
    for (int i = 0; i < rest_; ++i) at[column + i] = lanes[i];
  }

  /// visit(chain, column) for every vector of the row: vector v in chain v mod kChains.
  template <class Visit>
  MHA_INLINE void for_each_vector(Visit visit) const {
    Index column = 0;
    for (; column + kChains * L <= whole_; column += kChains * L) {
      MHA_UNROLL
      for (int chain = 0; chain < kChains; ++chain) visit(chain, column + chain * L);
    }
    MHA_UNROLL
    for (int chain = 0; chain < kChains; ++chain)
      if (column + chain * L < tile_.columns) visit(chain, column + chain * L);
  }

  static T sum_of(const P (&chains)[kChains]) {
    return predux(padd(padd(chains[0], chains[1]), padd(chains[2], chains[3])));
  }

  /// z = x + residual, to `kept` if there is such a place; returns the sum of z.
  MHA_INLINE T add(const T* x, const T* residual, T* kept) const {
    P sums[kChains];
    for (P& sum : sums) sum = pset1<P>(T(0));
    for_each_vector([&](int chain, Index column) MHA_INLINE_LAMBDA {
      P z = load(x, column);
      if (residual) z = padd(z, load(residual, column));
      if (kept) store(kept, column, z);
      sums[chain] = padd(sums[chain], z);
    });
    return sum_of(sums);
  }

  /// The mean is rounded; the mean of what is left, d = z - mean, corrects it, and the variance with it (Chan, Golub and
  /// LeVeque, "Algorithms for Computing the Sample Variance", 1983, the corrected two-pass algorithm).
  MHA_INLINE void normalize(const T* z, T total, T* out) const {
    const double n = double(tile_.columns);
    const P mean = pset1<P>(T(double(total) / n));
    P sums[kChains], squares[kChains];
    for (P& sum : sums) sum = pset1<P>(T(0));
    for (P& square : squares) square = pset1<P>(T(0));
    for_each_vector([&](int chain, Index column) MHA_INLINE_LAMBDA {
      P d = psub(load(z, column), mean);
      if (column >= whole_) d = pand(d, in_rest_);
      sums[chain] = padd(sums[chain], d);
      squares[chain] = pmadd(d, d, squares[chain]);
    });
    const double left = double(sum_of(sums)) / n;
    const double variance = double(sum_of(squares)) / n - left * left;
    const double spread = variance < 0 ? 0 : variance;  // rounding alone can make it negative; NaN stays NaN
    const P correction = pset1<P>(T(left)), factor = pset1<P>(T(1 / ::sqrt(spread + tile_.eps)));
    const T *const weight = static_cast<const T*>(tile_.weight), *const bias = static_cast<const T*>(tile_.bias);
    for_each_vector([&](int, Index column) MHA_INLINE_LAMBDA {
      const P d = psub(psub(load(z, column), mean), correction);
      const P w = weight ? load(weight, column) : pset1<P>(T(1)), b = bias ? load(bias, column) : pset1<P>(T(0));
      store(out, column, pmadd(pmul(d, factor), w, b));
    });
  }

  const NormalizeTile& tile_;
  Index whole_;
  int rest_;
  P in_rest_;  // all bits in the lanes of the last few columns
};

template <class T>
void normalize_rows(const NormalizeTile& tile) {
  RowNormalizer<T>(tile).run();
}

}  // namespace mha::MHA_ISA

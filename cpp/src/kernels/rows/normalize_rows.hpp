// Layer norm of rows, and the addition before it, in one trip through memory: what a row's second and third pass read
// is in level 1.
#pragma once

#include <math.h>

#include "kernels/vectors/elements.hpp"

namespace mha::MHA_ISA {
namespace {

/// A sum over the columns of a row, in an order that they alone fix: whole vector v is added in chain v mod kChains,
/// what is left over in a chain of its own.
template <class T>
struct RowSum {
  static constexpr int kChains = 4;  // an addition every cycle in spite of its latency
  Packet<T> chains[kChains + 1];

  RowSum() {
    MHA_UNROLL
    for (int chain = 0; chain <= kChains; ++chain) chains[chain] = pset1<Packet<T>>(T(0));
  }
  MHA_INLINE T total() const {
    return predux(padd(padd(padd(chains[0], chains[1]), padd(chains[2], chains[3])), chains[kChains]));
  }
};

template <class S>
class RowNormalizer {
  using T = Compute<S>;
  using P = Packet<T>;
  static constexpr Index L = kLanes<T>;
  static constexpr int kChains = RowSum<T>::kChains;

 public:
  explicit RowNormalizer(const NormalizeTile& tile)
      : tile_(tile),
        whole_(tile.columns / L * L),
        rest_(tile.columns - whole_),
        in_rest_(pcmp_lt(plset<P>(T(0)), pset1<P>(T(rest_)))) {}

  void run() const {
    for (Index r = 0; r < tile_.rows; ++r) {
      const auto row = [r](auto* first, Index step) { return first ? first + r * step : nullptr; };
      const S* const x = row(static_cast<const S*>(tile_.x), tile_.x_row);
      const S* const residual = row(static_cast<const S*>(tile_.residual), tile_.residual_row);
      S* const sum = row(static_cast<S*>(tile_.sum), tile_.sum_row);
      S* const out = row(static_cast<S*>(tile_.out), tile_.out_row);
      // With an addition, z is kept where it is wanted, else where the result will be.
      S* const kept = sum ? sum : residual ? out : nullptr;
      const T total = add(x, residual, kept);
      if (out) normalize(kept ? kept : x, total, out);
    }
  }

 private:
  // The last few columns, fewer than a vector, go through a buffer: nothing outside the row is read or written. The
  // lanes behind them hold 0.
  struct Whole {};
  struct Rest {};
  MHA_INLINE P load(const S* at, Whole) const { return load_packet(at); }
  MHA_INLINE P load(const S* at, Rest) const {
    alignas(kVectorBytes) S lanes[L] = {};
    for (Index i = 0; i < rest_; ++i) lanes[i] = at[i];
    return load_packet(lanes);
  }
  MHA_INLINE void store(S* at, const P& value, Whole) const { store_packet(at, value); }
  MHA_INLINE void store(S* at, const P& value, Rest) const {
    alignas(kVectorBytes) S lanes[L];
    store_packet(lanes, value);
    for (Index i = 0; i < rest_; ++i) at[i] = lanes[i];
  }
  MHA_INLINE P without_padding(const P& value, Whole) const { return value; }
  MHA_INLINE P without_padding(const P& value, Rest) const { return pand(value, in_rest_); }

  /// visit(column, chain, Whole or Rest) for every vector of a row.
  template <class Visit>
  MHA_INLINE void for_each_vector(Visit visit) const {
    Index column = 0;
    for (; column + kChains * L <= whole_; column += kChains * L) {
      MHA_UNROLL
      for (int chain = 0; chain < kChains; ++chain) visit(column + chain * L, chain, Whole());
    }
    MHA_UNROLL
    for (int chain = 0; chain < kChains - 1; ++chain)
      if (column + (chain + 1) * L <= whole_) visit(column + chain * L, chain, Whole());
    if (rest_ > 0) visit(whole_, kChains, Rest());
  }

  /// z = x + residual, to `kept` if there is such a place; returns the sum of z.
  MHA_INLINE T add(const S* x, const S* residual, S* kept) const {
    RowSum<T> sum;
    for_each_vector([&](Index column, int chain, auto part) MHA_INLINE_LAMBDA {
      P z = load(x + column, part);
      if (residual) z = padd(z, load(residual + column, part));
      if (kept) store(kept + column, z, part);
      sum.chains[chain] = padd(sum.chains[chain], z);
    });
    return sum.total();
  }

  /// The mean is rounded; the mean of what is left, d = z - mean, corrects it, and the variance with it (Chan, Golub and
  /// LeVeque, "Algorithms for Computing the Sample Variance", 1983, the corrected two-pass algorithm).
  MHA_INLINE void normalize(const S* z, T total, S* out) const {
    const double n = double(tile_.columns);
    const P mean = pset1<P>(T(double(total) / n));
    RowSum<T> sum, squares;
    for_each_vector([&](Index column, int chain, auto part) MHA_INLINE_LAMBDA {
      const P d = without_padding(psub(load(z + column, part), mean), part);
      sum.chains[chain] = padd(sum.chains[chain], d);
      squares.chains[chain] = pmadd(d, d, squares.chains[chain]);
    });
    const double left = double(sum.total()) / n;
    const double variance = double(squares.total()) / n - left * left;
    const double spread = variance < 0 ? 0 : variance;  // rounding alone can make it negative; NaN stays NaN
    const P correction = pset1<P>(T(left)), factor = pset1<P>(T(1 / ::sqrt(spread + tile_.eps)));
    const S *const weight = static_cast<const S*>(tile_.weight), *const bias = static_cast<const S*>(tile_.bias);
    for_each_vector([&](Index column, int, auto part) MHA_INLINE_LAMBDA {
      const P d = psub(psub(load(z + column, part), mean), correction);
      const P w = weight ? load(weight + column, part) : pset1<P>(T(1));
      const P b = bias ? load(bias + column, part) : pset1<P>(T(0));
      store(out + column, pmadd(pmul(d, factor), w, b), part);
    });
  }

  const NormalizeTile& tile_;
  Index whole_, rest_;  // columns in whole vectors, columns left over
  P in_rest_;           // all bits in the lanes of the latter
};

template <class S>
void normalize_rows(const NormalizeTile& tile) {
  RowNormalizer<S>(tile).run();
}

}  // namespace
}  // namespace mha::MHA_ISA

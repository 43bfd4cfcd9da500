// Sums of the softmax in the form that all kernels keep: for each row its largest score m, and the sum of 2^((s - m)
// scale) over the scores s. Here are the order in which they are added and how two of them are merged.
#pragma once

#include <math.h>

#include "kernels/attention/modify_scores.hpp"
#include "kernels/products/kinds.hpp"
#include "kernels/vectors/exp2.hpp"

namespace mha::MHA_ISA {
namespace {

/// The weight of a score, 2^t for t <= 0. Where weights become pairs of bf16 a coarser polynomial is exact enough.
template <class S>
MHA_INLINE Packet<Compute<S>> weight_of(const Packet<Compute<S>>& t) {
  if constexpr (OperandsOf<S>::kJoins)
    return coarse_exp2_of_nonpositive(t);
  else
    return exp2_of_nonpositive(t);
}

/// The weights of a block are added in so many partial sums, key k of the block to partial sum k mod kPartialSums;
/// these are then added in pairs, i and i + 8, i + 4, i + 2, i + 1. So the total is the same whether queries lie in the
/// lanes or keys do, and no addition waits long for the one before.
constexpr Index kPartialSums = 16;

/// The total of partial sums I, I + Step, ... of kCount: `part(i)` gives one.
template <int I, int Step, int kCount = kPartialSums, class Part>
MHA_INLINE auto add_partial_sums(Part part) {
  if constexpr (Step == kCount)
    return part(Index(I));
  else
    return padd(add_partial_sums<I, 2 * Step, kCount>(part), add_partial_sums<I + Step, 2 * Step, kCount>(part));
}

/// Merges two sets of sums of the same rows, each relative to a maximum of its own, into sums relative to the larger
/// one.
template <class T>
struct MergeSums {
  using P = Packet<T>;
  P older, recent;

  MHA_INLINE MergeSums(const P& older_factor, const P& recent_factor) : older(older_factor), recent(recent_factor) {}
  MHA_INLINE MergeSums(const P& older_maximum, const P& recent_maximum, const P& maximum, const P& exponent_scale)
      : older(exp2_of_nonpositive(pmul(psub(older_maximum, maximum), exponent_scale))),
        recent(exp2_of_nonpositive(pmul(psub(recent_maximum, maximum), exponent_scale))) {}

  MHA_INLINE P operator()(const P& older_sum, const P& recent_sum) const {
    return pmadd(older_sum, older, pmul(recent_sum, recent));
  }
};

/// The largest score and the sum of a row, its sink included, in double precision. Sums relative to the maximum of the
/// keys alone become relative to `highest` if they are multiplied by `kept`. Halved weights are relative to a higher one.
struct Total {
  double highest, sum, kept;

  template <class T>
  Total(const AttentionTile& tile, const ScoreScale<T>& scale, int r, T maximum, T row_sum, T halvings)
      : highest(double(maximum) * scale.of_maximum + double(halvings) * 0.6931471805599453),  // log(2)
        sum(double(row_sum)),
        kept(1) {
    if (!tile.has_sinks || tile.sink[r] == -__builtin_inf()) return;
    const double sink = tile.sink[r];
    if (sum == 0) {
      *this = Total(sink, 1, 0);
      return;
    }
    const double top = highest > sink ? highest : sink;
    kept = ::exp(highest - top);
    sum = sum * kept + ::exp(sink - top);
    highest = top;
  }
  Total(double highest_score, double total_sum, double kept_share)
      : highest(highest_score), sum(total_sum), kept(kept_share) {}

  /// From sums of weighted values to averages; 0 for a row that saw nothing.
  double normalizer() const { return sum == 0 ? 0 : kept / sum; }
  double log_sum_exp() const { return sum == 0 ? -__builtin_inf() : highest + ::log(sum); }
};

}  // namespace
}  // namespace mha::MHA_ISA

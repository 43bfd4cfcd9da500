// Sums of the softmax, as every kernel keeps them: each row's largest score and its sum of exponentials relative to
// that.
#pragma once

#include <math.h>

#include "kernels/attention/modify_scores.hpp"
#include "kernels/products/kinds.hpp"
#include "kernels/vectors/exp2.hpp"

namespace mha::MHA_ISA {
namespace {

/// 2^t for t <= 0, the weight of a score, as exact as the operands that it becomes one of.
template <class S>
MHA_INLINE Packet<Compute<S>> weight_of(const Packet<Compute<S>>& t) {
  if constexpr (OperandsOf<S>::kJoins)
    return coarse_exp2_of_nonpositive(t);
  else
    return exp2_of_nonpositive(t);
}

/// The weights of a block are added in so many partial sums, key k of the block to partial sum k mod kPartialSums; these
/// are then added in pairs, i and i + 8, i + 4, i + 2, i + 1. So the total is the same whether queries lie in the lanes or
/// keys do, and no addition waits long for the one before.
constexpr Index kPartialSums = 16;

/// The total of partial sums I, I + Step, ... of kCount: `part(i)` gives one.
template <int I, int Step, int kCount = kPartialSums, class Part>
MHA_INLINE auto add_partial_sums(Part part) {
  if constexpr (Step == kCount)
    return part(Index(I));
  else
    return padd(add_partial_sums<I, 2 * Step, kCount>(part), add_partial_sums<I + Step, 2 * Step, kCount>(part));
}

/// Two sets of sums of the same rows, each relative to a maximum of its own, become one relative to the larger.
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

/// The sums of row r with its sink, relative to the larger of the two scores; `kept` brings what is relative to
/// `maximum` there.
struct Total {
  double highest, sum, kept;

  template <class T>
  Total(const AttentionTile& tile, const ScoreScale<T>& scale, int r, T maximum, T row_sum)
      : highest(double(maximum) * scale.of_maximum), sum(double(row_sum)), kept(1) {
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

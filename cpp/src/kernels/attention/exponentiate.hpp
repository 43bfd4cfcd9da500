// Scores of a block become weights relative to the largest score so far, and the sum of these: 2^((score - highest)
// scale) for one vector of queries.
//
// Numerics: the weights of a block are added in kPartialSums partial sums, key k of the block to partial sum k mod
// kPartialSums, in the order that softmax_sums.hpp fixes for all kernels.
#pragma once

#include "kernels/attention/softmax_sums.hpp"

namespace mha::MHA_ISA {
namespace {

/// Scores of the keys [first, last) of a block, [key][kWidth], become weights where they are. Returns their sum, of
/// each lane. Four partial sums at a time: as many polynomials side by side as the latency of a multiply-add needs, and
/// their coefficients fit sixteen registers.
template <class S, class T = Compute<S>>
Packet<T> weights_in_place(T* scores, Index first, Index last, const Packet<T>& highest, const Packet<T>& scale) {
  using P = Packet<T>;
  constexpr Index W = kWidth<T>, kTogether = 4, kApart = kPartialSums / kTogether;
  return add_partial_sums<0, 1, kApart>([&](Index part) MHA_INLINE_LAMBDA {
    P sums[kTogether];
    MHA_UNROLL
    for (P& sum : sums) sum = pset1<P>(T(0));
    const auto add_weight = [&](Index key, P& sum) MHA_INLINE_LAMBDA {
      const P weight = weight_of<S>(pmul(psub(pload<P>(scores + key * W), highest), scale));
      pstore(scores + key * W, weight);
      sum = padd(sum, weight);
    };
    for (Index key = first - first % kPartialSums + part; key < last; key += kPartialSums)
      if (key >= first && key + kPartialSums - kApart < last) {
        MHA_UNROLL
        for (Index i = 0; i < kTogether; ++i) add_weight(key + i * kApart, sums[i]);
      } else {
        for (Index i = 0; i < kTogether; ++i)
          if (key + i * kApart >= first && key + i * kApart < last) add_weight(key + i * kApart, sums[i]);
      }
    return add_partial_sums<0, 1, kTogether>([&](Index i) MHA_INLINE_LAMBDA { return sums[i]; });
  });
}

/// The same where operands are of two keys: weights are rounded and go to `weights`, [operand][kWidth]; the sum is
/// taken before rounding. All partial sums at once, so that the two weights of an operand meet in registers. Calls
/// beside(piece, pieces) after each kPartialSums keys.
template <class S, class Beside, class T = Compute<S>>
MHA_INLINE Packet<T> weights_to_operands(T* scores, typename OperandsOf<S>::Operand* weights, Index first, Index last,
                                         const Packet<T>& highest, const Packet<T>& scale, Beside beside) {
  using P = Packet<T>;
  constexpr Index W = kWidth<T>;
  if (first >= last) return pset1<P>(T(0));  // both may lie far outside the block
  constexpr Index kKeys = OperandsOf<S>::kGroup > kPartialSums ? OperandsOf<S>::kGroup : kPartialSums;
  const Index begin = first - first % kKeys, end = last + (kKeys - last % kKeys) % kKeys;
  const auto leave_out = [&](Index from, Index to) {
    for (Index key = from; key < to; ++key) pstore(scores + key * W, pset1<P>(-kInfinity<T>));
  };
  leave_out(begin, first);
  leave_out(last, end);
  P sums[kPartialSums];
  MHA_UNROLL
  for (P& sum : sums) sum = pset1<P>(T(0));
  for (Index key = begin; key < end; key += kPartialSums) {
    const T* const from = scores + key * W;
    auto* const to = weights + key / 2 * W;
    MHA_UNROLL
    for (Index i = 0; i < kPartialSums; i += 2) {
      const P one = weight_of<S>(pmul(psub(pload<P>(from + i * W), highest), scale));
      const P two = weight_of<S>(pmul(psub(pload<P>(from + (i + 1) * W), highest), scale));
      ProductsOf<S>::store(to + i / 2 * W, pair_up(one, two));
      sums[i] = padd(sums[i], one);
      sums[i + 1] = padd(sums[i + 1], two);
    }
    beside((key - begin) / kPartialSums, (end - begin) / kPartialSums);
  }
  return add_partial_sums<0, 1>([&](Index i) MHA_INLINE_LAMBDA { return sums[i]; });
}

}  // namespace
}  // namespace mha::MHA_ISA

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

/// The same where operands are of two keys: weights are rounded and go to `weights`, [operand][kWidth]. The
/// sum has the weights before rounding. Calls beside(piece, pieces) after each piece of the work.
///
/// Four keys at a time, two operands, by the stages of exp2.hpp. The stages of the next four keys, up to the polynomial,
/// come in between: a weight is a chain of some 45 cycles, and the processor does not look far enough ahead to find
/// other work on its own (docs/decisions/0011).
template <class S, class Beside, class T = Compute<S>>
MHA_INLINE Packet<T> weights_to_operands(T* scores, typename OperandsOf<S>::Operand* weights, Index first, Index last,
                                         const Packet<T>& highest, const Packet<T>& scale, Beside beside) {
  using P = Packet<T>;
  constexpr Index W = kWidth<T>, kHalf = kPartialSums / 2;
  if (first >= last) return pset1<P>(T(0));  // both may lie far outside the block
  constexpr Index kKeys = OperandsOf<S>::kGroup > kPartialSums ? OperandsOf<S>::kGroup : kPartialSums;
  const Index begin = first - first % kKeys, end = last + (kKeys - last % kKeys) % kKeys;
  const auto leave_out = [&](Index from, Index to) {
    for (Index key = from; key < to; ++key) pstore(scores + key * W, pset1<P>(-kInfinity<T>));
  };
  leave_out(begin, first);
  leave_out(last, end);

  // The first key of each pass, in the order in which add_partial_sums() adds them. Keys key, key + 1, key + 8 and
  // key + 9 are computed together.
  constexpr Index kPasses[] = {0, 4, 2, 6, 6};
  const auto score = [&](Index key, int i) MHA_INLINE_LAMBDA {
    return psub(pload<P>(scores + (key + i / 2 * kHalf + i % 2) * W), highest);
  };
  Vectors<4> exponent = for_each_vector<4>([&](int i) MHA_INLINE_LAMBDA { return pmul(score(begin, i), scale); });
  Vectors<4> whole = whole_parts(exponent), fraction = differences(exponent, whole);
  P even[2], odd[2];  // sums of even and odd keys
  MHA_UNROLL
  for (int pass = 0; pass < 4; ++pass) {
    P sums[4];
    MHA_UNROLL
    for (P& sum : sums) sum = pset1<P>(T(0));
    for (Index group = begin; group < end; group += kPartialSums) {
      const Index key = group + kPasses[pass];
      const Index next = group + kPartialSums < end ? key + kPartialSums : begin + kPasses[pass + 1];
      Vectors<4> power = coarse_exp2_begin(fraction);
      Vectors<4> next_exponent = for_each_vector<4>([&](int i) MHA_INLINE_LAMBDA { return score(next, i); });
      power = coarse_exp2_step<2>(power, fraction);
      next_exponent = for_each_vector<4>([&](int i) MHA_INLINE_LAMBDA { return pmul(next_exponent.x[i], scale); });
      power = coarse_exp2_step<3>(power, fraction);
      const Vectors<4> next_whole = whole_parts(next_exponent);
      power = coarse_exp2_step<4>(power, fraction);
      fraction = differences(next_exponent, next_whole);
      const Vectors<4> weight = for_each_vector<4>(
          [&](int i) MHA_INLINE_LAMBDA { return scale_by_power(power.x[i], whole.x[i], exponent.x[i]); });
      exponent = next_exponent;
      whole = next_whole;
      MHA_UNROLL
      for (int i = 0; i < 4; ++i) sums[i] = padd(sums[i], weight.x[i]);
      MHA_UNROLL
      for (int i = 0; i < 4; i += 2)
        ProductsOf<S>::store(weights + (key + i / 2 * kHalf) / 2 * W, pair_up(weight.x[i], weight.x[i + 1]));
    }
    const P even_sum = padd(sums[0], sums[2]), odd_sum = padd(sums[1], sums[3]);
    even[pass / 2] = pass % 2 == 0 ? even_sum : padd(even[pass / 2], even_sum);
    odd[pass / 2] = pass % 2 == 0 ? odd_sum : padd(odd[pass / 2], odd_sum);
    beside(pass, 4);
  }
  return padd(padd(even[0], even[1]), padd(odd[0], odd[1]));
}

}  // namespace
}  // namespace mha::MHA_ISA

// What becomes of products before the softmax: scale, softcap, ALiBi, bias, masks. A new modification of scores is a line here.
#pragma once

#include <math.h>

#include "eigen.hpp"

namespace mha::MHA_ISA {

/// tanh, 3 units of eps, in f32 by Eigen's rational function, which is not made for NaN. Few use softcap in f64: the C library.
MHA_INLINE Packet<float> tanh_of(const Packet<float>& x) { return pselect(pcmp_eq(x, x), ptanh(x), x); }
MHA_INLINE Packet<double> tanh_of(const Packet<double>& x) {
  alignas(kVectorBytes) double lanes[kLanes<double>];
  pstore(lanes, x);
  for (double& lane : lanes) lane = ::tanh(lane);
  return pload<Packet<double>>(lanes);
}

/// How the scores of a block change. Pointers are to one value for each lane; null: not wanted.
template <class T>
struct ScoreModification {
  T scale;
  T softcap;              // 0: none
  const T* slope;         // of ALiBi
  const T* position;      // of the query among the keys, counted from the block's begin; with slope
  const T* bias;          // [keys of the block][kWidth]; minus infinity masks
  const T *first, *last;  // bounds of the visible keys, counted from the block's begin
};

/// Keys [begin, end) of the block, vectors [first_vector, first_vector + vectors): scores [keys of the block][kWidth] change in
/// place and raise block_max. Selection, not arithmetic, masks, so that a NaN behind a mask goes nowhere. The products are still
/// in level 1: a pass of its own costs 2 % of what the products took, and keeps the strips free of all this.
template <class T>
void modify_scores(const ScoreModification<T>& m, Index begin, Index end, int first_vector, int vectors, T* scores,
                   T* block_max) {
  using P = Packet<T>;
  constexpr Index L = kLanes<T>, W = kWidth<T>;
  const P minus_infinity = pset1<P>(-kInfinity<T>), scale = pset1<P>(m.scale);
  const P cap = pset1<P>(m.softcap), inverse_cap = pset1<P>(m.softcap == T(0) ? T(0) : T(1) / m.softcap);
  for (Index lane = first_vector * L; lane < (first_vector + vectors) * L; lane += L) {
    const P first = pload<P>(m.first + lane), last = pload<P>(m.last + lane);
    const P slope = m.slope ? pload<P>(m.slope + lane) : scale;
    const P position = m.slope ? pload<P>(m.position + lane) : scale;
    P highest = pload<P>(block_max + lane);
    for (Index i = begin; i < end; ++i) {
      const P key = pset1<P>(T(i));
      P visible = pand(pcmp_le(first, key), pcmp_lt(key, last));
      P s = pmul(pload<P>(scores + i * W + lane), scale);
      if (m.softcap != T(0)) s = pmul(cap, tanh_of(pmul(s, inverse_cap)));
      if (m.slope) s = psub(s, pmul(slope, pabs(psub(position, key))));
      if (m.bias) {
        const P bias = pload<P>(m.bias + i * W + lane);
        visible = pandnot(visible, pcmp_eq(bias, minus_infinity));
        s = padd(s, bias);
      }
      s = pselect(visible, s, minus_infinity);
      pstore(scores + i * W + lane, s);
      highest = pmax(highest, s);
    }
    pstore(block_max + lane, highest);
  }
}

}  // namespace mha::MHA_ISA

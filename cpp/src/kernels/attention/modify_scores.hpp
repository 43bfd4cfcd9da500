// From products to scores, before the softmax: scale, softcap, ALiBi, position bias, bias and masks, in this order. A
// new modification of scores is a line here (docs/adding.md).
#pragma once

#include <math.h>

#include "kernels/kernel_table.hpp"
#include "kernels/vectors/eigen.hpp"

namespace mha::MHA_ISA {
namespace {

/// How scores turn into weights: a weight is 2^((score - maximum) * exponent_scale).
template <class T>
struct ScoreScale {
  // A positive scale is applied in the exponent, where it costs nothing, unless something is done to the scaled score:
  // a cap, ALiBi, a bias of positions or of a mask. A scale that is not positive cannot wait either, since it turns the
  // maximum around, and one that T rounds to 0 would make NaN of a masked score. In these cases every score is scaled
  // and modified first.
  explicit ScoreScale(const AttentionTile& tile)
      : comes_first((tile.attn_mask[0] && !tile.attn_mask_is_boolean) || tile.softcap != 0 || tile.has_alibi ||
                    tile.position_bias[0] || !(T(tile.scale) > 0)),
        of_maximum(comes_first ? 1.0 : tile.scale),
        exponent_scale(T(of_maximum * 1.4426950408889634)) {}  // log2(e)

  bool comes_first;
  double of_maximum;  // times the maximum, or any score, as the tile keeps it: the scaled score
  T exponent_scale;
};

/// tanh with an error of 3 eps. In f32 by Eigen's rational function, which does not handle NaN. In f64, where few use
/// softcap, by the C library.
MHA_INLINE Packet<float> tanh_of(const Packet<float>& x) { return pselect(pcmp_eq(x, x), ptanh(x), x); }
MHA_INLINE Packet<double> tanh_of(const Packet<double>& x) {
  alignas(kVectorBytes) double lanes[kLanes<double>];
  pstore(lanes, x);
  for (double& lane : lanes) lane = ::tanh(lane);
  return pload<Packet<double>>(lanes);
}

/// Turns a vector of products into a vector of scores. Lanes may be queries or keys.
template <class T>
struct ModifyScores {
  using P = Packet<T>;

  ModifyScores(const AttentionTile& tile, const ScoreScale<T>& score_scale)
      : has_cap(tile.softcap != 0),
        has_alibi(tile.has_alibi),
        has_position_bias(tile.position_bias[0] != nullptr),
        scale(pset1<P>(score_scale.comes_first ? T(tile.scale) : T(1))),
        cap(pset1<P>(T(tile.softcap))),
        inverse_cap(pset1<P>(has_cap ? T(1) / T(tile.softcap) : T(0))),
        minus_infinity(pset1<P>(-kInfinity<T>)) {}

  /// Where the query sees `key`: all bits set. The key and the bounds [first, last) of the keys that it sees are
  /// counted from the begin of the block, which keeps them exact. `bias` masks where it is minus infinity; null: none.
  MHA_INLINE P visible(const P& key, const P& first, const P& last, const T* bias) const {
    const P inside = pand(pcmp_le(first, key), pcmp_lt(key, last));
    return bias ? pandnot(inside, pcmp_eq(pload<P>(bias), minus_infinity)) : inside;
  }

  /// `key` and the `position` of the query are counted from the begin of the block. `bias` is added; null: none. Masks
  /// select, they do not add: a masked NaN is replaced.
  MHA_INLINE P operator()(P s, const P& key, const P& visible, const P& slope, const P& position,
                          const P& position_bias, const T* bias) const {
    s = pmul(s, scale);
    if (has_cap) s = pmul(cap, tanh_of(pmul(s, inverse_cap)));
    if (has_alibi) s = psub(s, pmul(slope, pabs(psub(position, key))));
    if (has_position_bias) s = padd(s, position_bias);
    if (bias) s = padd(s, pload<P>(bias));
    return pselect(visible, s, minus_infinity);
  }

  /// Nothing is done to scores but to scale them, and to add a bias.
  bool is_of_bias_alone() const { return !has_cap && !has_alibi && !has_position_bias; }

  bool has_cap, has_alibi, has_position_bias;
  P scale, cap, inverse_cap, minus_infinity;
};

}  // namespace
}  // namespace mha::MHA_ISA

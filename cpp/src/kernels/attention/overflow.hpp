// Averages of values near the largest number of their type. Weighted values are divided by the sum of the weights at
// the end only, so before that their sum may overflow where the average does not. Then the tile is computed a second
// time, with weights that are halved so often that their sum is 1/2, which replaces results that were not finite.
#pragma once

#include <math.h>

#include "kernels/attention/softmax_sums.hpp"

namespace mha::MHA_ISA {
namespace {

/// The start of each row: its maximum, and how often its weights are halved.
template <class T>
struct RowStart {
  alignas(kVectorBytes) T maximum[kWidth<T>] = {};
  alignas(kVectorBytes) T halvings[kWidth<T>] = {};
  bool halves = false;

  /// The first time: the lowest maximum, and weights as they are.
  constexpr RowStart() {
    for (T& lowest : maximum) lowest = kLowest<T>;
  }

  /// The second time, after rows that ended with these. With the last maximum from the start, no part of the keys has
  /// larger weights than all of them. A sum is 1 or more; one that is 0 or NaN has no weights to halve.
  RowStart(const T* last_maximum, const T* sum, int rows) : RowStart() {
    for (int r = 0; r < rows; ++r) {
      maximum[r] = last_maximum[r];
      halvings[r] = T(sum[r] > T(1) ? ::log2(double(sum[r])) + 1 : 1);
    }
    halves = true;
  }
};

template <class T>
constexpr RowStart<T> kFirstTime{};

/// Turns `count` vectors of scores, `step` elements apart, into exponents of halved weights, relative to 0. This is no
/// part of the functions that make weights of scores, which would take longer.
template <class T, class P = Packet<T>>
void halve_weights(T* scores, Index count, Index step, const P& halvings, P& highest, P& scale) {
  for (Index i = 0; i < count; ++i, scores += step)
    pstore(scores, psub(pmul(psub(pload<P>(scores), highest), scale), halvings));
  highest = pset1<P>(T(0));
  scale = pset1<P>(T(1));
}

/// Whether `count` vectors, `step` elements apart, are finite: x * 0 is 0 for every finite x and NaN for every other.
/// Four sums side by side, since a multiply-add waits for the one before. Not inlined: sixteen kernels call it.
template <class T>
__attribute__((noinline)) bool are_finite(const T* x, Index count, Index step) {
  using P = Packet<T>;
  const P zero = pset1<P>(T(0));
  P sums[4] = {zero, zero, zero, zero};
  Index i = 0;
  for (; i + 4 <= count; i += 4) {
    MHA_UNROLL
    for (Index k = 0; k < 4; ++k) sums[k] = pmadd(pload<P>(x + (i + k) * step), zero, sums[k]);
  }
  for (; i < count; ++i) sums[0] = pmadd(pload<P>(x + i * step), zero, sums[0]);
  return predux(add_partial_sums<0, 1, 4>([&](Index k) MHA_INLINE_LAMBDA { return sums[k]; })) == T(0);
}

/// Replaces results of `tile` that are not finite by the results of `again`, unless these are NaN: an infinite value
/// makes NaN where a weight becomes 0 once it is halved.
template <class Element>
void replace_non_finite(const AttentionTile& tile, const AttentionTile& again) {
  for (int r = 0; r < tile.rows; ++r)
    for (Index d = 0; d < tile.value_dim; ++d) {
      Element* const result = static_cast<Element*>(tile.out[r]) + d * tile.out_step;
      const Element* const other = static_cast<const Element*>(again.out[r]) + d * again.out_step;
      const auto before = load_element(result), after = load_element(other);
      if (before - before != 0 && after == after) *result = *other;
    }
}

}  // namespace
}  // namespace mha::MHA_ISA

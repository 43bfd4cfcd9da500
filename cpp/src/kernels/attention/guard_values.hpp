// Values of masked keys must not reach the result. The weight of a masked key is 0, but 0 times NaN or infinity is NaN.
// So where a mask cuts a block, its values are tested first. Only if one of them is not finite are masked keys left out
// by selection, which is slow and rare: few callers leave masked memory uninitialised.
#pragma once

#include "kernels/attention/key_value_source.hpp"

namespace mha::MHA_ISA {
namespace {

/// Whether an element of `count` rows is not finite: x * 0 is 0 for every finite x and NaN for every other. Eight sums
/// side by side, since a multiply-add waits for the one before: with one sum it is a tenth of the time of a tile.
template <class S>
bool has_non_finite(const Rows<S>& rows, Index count, Index columns) {
  using T = Compute<S>;
  using P = Packet<T>;
  constexpr Index L = kLanes<T>;
  const P zero = pset1<P>(T(0));
  T rest = T(0);
  P sums[8];
  MHA_UNROLL
  for (P& sum : sums) sum = zero;
  for (Index i = 0; i < count; i += 2) {
    const S* const row = rows.data + i * rows.row;
    const S* const other = i + 1 < count ? row + rows.row : row;
    Index d = 0;
    if (rows.step == 1) {
      for (; d + 4 * L <= columns; d += 4 * L) {
        MHA_UNROLL
        for (Index k = 0; k < 4; ++k) {
          sums[k] = pmadd(load_packet(row + d + k * L), zero, sums[k]);
          sums[4 + k] = pmadd(load_packet(other + d + k * L), zero, sums[4 + k]);
        }
      }
      for (; d + L <= columns; d += L) {
        sums[0] = pmadd(load_packet(row + d), zero, sums[0]);
        sums[4] = pmadd(load_packet(other + d), zero, sums[4]);
      }
    }
    for (; d < columns; ++d)
      rest += load_element(row + d * rows.step) * T(0) + load_element(other + d * rows.step) * T(0);
  }
  MHA_UNROLL
  for (Index k = 0; k < 4; ++k) sums[k] = padd(sums[k], sums[4 + k]);
  rest += predux(padd(padd(sums[0], sums[1]), padd(sums[2], sums[3])));
  return rest != rest;
}

/// Whether a value of the keys [begin, end) of a block is not finite.
template <class S>
bool has_non_finite_value(const KeyValueRows<S>& source, Index value_dim, Index begin, Index end) {
  if (!source.are_int8()) return has_non_finite(source.values(begin), end - begin, value_dim);
  // Of integers up to 127; so a row of finite values may be taken for one that is not.
  const float* const scale = source.stored_values(begin).scale;
  float rest = 0;
  for (Index i = 0; i < end - begin; ++i) rest += scale[i] * 127.0f * 0.0f;
  return rest != rest;
}

}  // namespace
}  // namespace mha::MHA_ISA

// A masked weight is 0, but 0 times NaN is NaN. Where masks cut a block, its values are looked at first; only with such
// values about, masked positions are left out by selection, which is slow, and rare: the values behind a mask are
// seldom uninitialised.
#pragma once

#include "kernels/kernel_table.hpp"
#include "kernels/vectors/elements.hpp"

namespace mha::MHA_ISA {
namespace {

/// Whether a value of the keys [begin, end) is not finite: x * 0 is 0 for every finite x and NaN for every other.
template <class S>
bool has_non_finite_value(const AttentionTile& tile, Index begin, Index end) {
  using T = Compute<S>;
  using P = Packet<T>;
  constexpr Index L = kLanes<T>;
  P sum = pset1<P>(T(0));
  T rest = T(0);
  for (Index key = begin; key < end; ++key) {
    const S* value = static_cast<const S*>(tile.value) + key * tile.value_row;
    Index d = 0;
    if (tile.value_step == 1)
      for (; d + L <= tile.value_dim; d += L) sum = pmadd(load_packet(value + d), pset1<P>(T(0)), sum);
    for (; d < tile.value_dim; ++d) rest += load_element(value + d * tile.value_step) * T(0);
  }
  rest += predux(sum);
  return rest != rest;
}

}  // namespace
}  // namespace mha::MHA_ISA

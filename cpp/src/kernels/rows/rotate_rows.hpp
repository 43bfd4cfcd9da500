// Rotary positions of rows: each pair of features (a, b) becomes (a cos - b sin, a sin + b cos), in place.
//
// By minus the angle, (b, a) is the pair: (b cos - a sin, b sin + a cos) are the new b and a.
//
// Two products and their sum, without a fused multiply-add: the bits are the same in vectors and after the last whole
// one, and on every instruction set. Rows come from level 1, where the previous step has left them.
#pragma once

#include "kernels/vectors/elements.hpp"

namespace mha::MHA_ISA {
namespace {

template <class T>
void rotate_rows(const RotateTile& tile) {
  using P = Packet<T>;
  const Index step = tile.are_neighbours ? 2 : 1, distance = tile.are_neighbours ? 1 : tile.pairs;
  const Index partner = tile.is_backwards ? -distance : distance;
  const Index whole = tile.are_neighbours ? 0 : tile.pairs / kLanes<T> * kLanes<T>;
  for (Index r = 0; r < tile.rows; ++r) {
    T* const x = static_cast<T*>(tile.x) + r * tile.x_row + (tile.is_backwards ? distance : 0);
    const T* const cos = static_cast<const T*>(tile.cos) + r * tile.table_row;
    const T* const sin = static_cast<const T*>(tile.sin) + r * tile.table_row;
    for (Index i = 0; i < whole; i += kLanes<T>) {
      const P a = ploadu<P>(x + i), b = ploadu<P>(x + partner + i), c = ploadu<P>(cos + i), s = ploadu<P>(sin + i);
      pstoreu(x + i, psub(pmul(a, c), pmul(b, s)));
      pstoreu(x + partner + i, padd(pmul(a, s), pmul(b, c)));
    }
    for (Index i = whole; i < tile.pairs; ++i) {
      T* const at = x + i * step;
      const T a = at[0], b = at[partner];
      at[0] = a * cos[i] - b * sin[i];
      at[partner] = a * sin[i] + b * cos[i];
    }
  }
}

}  // namespace
}  // namespace mha::MHA_ISA

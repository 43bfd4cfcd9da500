// Q^T of a tile: operands of the queries, [operand along the head dimension][query], once for each tile.
#pragma once

#include "kernels/products/kinds.hpp"
#include "kernels/products/strips.hpp"
#include "kernels/vectors/transpose.hpp"

namespace mha::MHA_ISA {
namespace {

/// The rows of a tile, of `columns` elements of type Element, `step` apart, which become operands as `Load` has it:
/// `packed` [operands of a row][kWidth].
template <class S, class Load, class Element>
void pack_rows(const void* const* rows, int count, Index columns, Index step, typename Load::Operand* packed) {
  constexpr Index L = kLanes<Compute<S>>, W = kWidth<Compute<S>>;
  if (count == 1) {  // all lanes hold it: one store for each operand, not one for each lane of it
    const Element* const row = static_cast<const Element*>(rows[0]);
    for (Index u = 0, d = 0; u < Load::count(columns); ++u, d += Load::kElements) {
      const typename Load::Operand operand = Load::load_one(row + d * step, step, columns - d);
      Load::Products::store(packed + u * W, Load::Products::broadcast(&operand));
    }
    return;
  }
  for (Index lane = 0; lane < count; lane += L) {
    const Element* lanes[L];  // lanes without a row of their own repeat the last one; nothing of theirs is stored
    for (Index r = 0; r < L; ++r) lanes[r] = static_cast<const Element*>(rows[lane + r < count ? lane + r : count - 1]);
    load_transposed<Load>(lanes, 0, columns, step, packed + lane, W);
  }
}

/// `queries` [operands of head_dim][kWidth].
template <class S>
void pack_queries(const AttentionTile& tile, typename OperandsOf<S>::Operand* queries) {
  using T = Compute<S>;
  // All requests at once: a transpose alone has no more than kLanes of them on the way.
  const Index size = tile.is_wide ? sizeof(T) : sizeof(S);
  for (int r = 0; r < tile.rows && tile.query_step == 1; ++r)
    Upcoming{tile.query[r], 0, 1, tile.head_dim * size}.prefetch(0, 1);
  if (tile.is_wide)
    pack_rows<S, OperandsOfNumbers<S>, T>(tile.query, tile.rows, tile.head_dim, tile.query_step, queries);
  else
    pack_rows<S, OperandsOf<S>, S>(tile.query, tile.rows, tile.head_dim, tile.query_step, queries);
}

}  // namespace
}  // namespace mha::MHA_ISA

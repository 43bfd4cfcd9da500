// Q^T of a tile: operands of the queries, [operand along the head dimension][query], once for each tile.
#pragma once

#include "kernels/products/kinds.hpp"
#include "kernels/products/strips.hpp"
#include "kernels/vectors/transpose.hpp"

namespace mha::MHA_ISA {
namespace {

/// Queries of type Element, which become operands as `Load` has it.
template <class S, class Load, class Element>
void pack_queries_as(const AttentionTile& tile, int vectors, typename Load::Operand* queries) {
  constexpr Index L = kLanes<Compute<S>>, W = kWidth<Compute<S>>;
  if (tile.rows == 1) {  // all lanes hold it: one store for each operand, not one for each lane of it
    const Element* const query = static_cast<const Element*>(tile.query[0]);
    const Index step = tile.query_step;
    for (Index u = 0, d = 0; u < Load::count(tile.head_dim); ++u, d += Load::kElements) {
      const typename Load::Operand operand = Load::load_one(query + d * step, step, tile.head_dim - d);
      Load::Products::store(queries + u * W, Load::Products::broadcast(&operand));
    }
    return;
  }
  for (int j = 0; j < vectors; ++j) {
    const Element* rows[L];  // lanes without a row of their own repeat the last one; nothing of theirs is stored
    for (Index r = 0; r < L; ++r) {
      const Index row = j * L + r < tile.rows ? j * L + r : tile.rows - 1;
      rows[r] = static_cast<const Element*>(tile.query[row]);
    }
    load_transposed<Load>(rows, 0, tile.head_dim, tile.query_step, queries + j * L, W);
  }
}

/// `queries` [operands of head_dim][kWidth].
template <class S>
void pack_queries(const AttentionTile& tile, int vectors, typename OperandsOf<S>::Operand* queries) {
  using T = Compute<S>;
  // All requests at once: a transpose alone has no more than kLanes of them on the way.
  const Index size = tile.is_wide ? sizeof(T) : sizeof(S);
  for (int r = 0; r < tile.rows && tile.query_step == 1; ++r)
    Upcoming{tile.query[r], 0, 1, tile.head_dim * size}.prefetch(0, 1);
  if (tile.is_wide)
    pack_queries_as<S, OperandsOfNumbers<S>, T>(tile, vectors, queries);
  else
    pack_queries_as<S, OperandsOf<S>, S>(tile, vectors, queries);
}

}  // namespace
}  // namespace mha::MHA_ISA

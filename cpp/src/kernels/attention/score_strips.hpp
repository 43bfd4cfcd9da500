// S^T = K Q^T of a segment of a block: strips of keys against vectors of queries, and the largest product of each
// query.
#pragma once

#include "kernels/products/kinds.hpp"
#include "kernels/products/strips.hpp"

namespace mha::MHA_ISA {
namespace {

template <class Products>
struct ScoreArguments {
  using Operand = typename Products::Operand;
  using T = typename Products::Sum;
  Index depth;         // operands of the head dimension
  const Operand* key;  // first key of the segment
  Index key_row, key_step;
  const Operand* queries;  // Q^T; this and what follows at the first vector of queries of the segment
  T* scores;
  T* block_max;  // largest product so far, in each lane
};

/// M keys, from key `row` of the segment on, against N vectors of queries.
template <class Products, int M, int N>
struct ScoreKeys {
  static void run(const ScoreArguments<Products>& g, Index row) {
    using T = typename Products::Sum;
    using P = Packet<T>;
    constexpr Index L = kLanes<T>, W = kWidth<T>;
    T* scores = g.scores + row * W;
    P highest[N];
    Products::Tile::template multiply_long<M, N>(g.depth, g.key + row * g.key_row, g.key_row, g.key_step, g.queries, W,
                                                 [&](int i, int j, const P& s) MHA_INLINE_LAMBDA {
                                                   highest[j] =
                                                       pmax(i == 0 ? pload<P>(g.block_max + j * L) : highest[j], s);
                                                   pstore(scores + i * W + j * L, s);
                                                   if (i == M - 1) pstore(g.block_max + j * L, highest[j]);
                                                 });
  }
};

}  // namespace
}  // namespace mha::MHA_ISA

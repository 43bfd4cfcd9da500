// Strips of S^T = K Q^T: some keys against some vectors of queries.
#pragma once

#include "kernels/products/microkernel.hpp"
#include "kernels/products/strips.hpp"

namespace mha::MHA_ISA {
namespace {

template <class Unit>
struct ScoreArguments {
  Index depth;      // units of the head dimension
  const Unit* key;  // first key of the segment
  Index key_row, key_step;
  const Unit* queries;  // Q^T, at the segment's first vector; likewise below
  Sum<Unit>* scores;
  Sum<Unit>* block_max;  // each lane's largest product so far
};

/// M keys against N vectors of queries.
template <class Unit, int M, int N>
struct ScoreKeys {
  static void run(const ScoreArguments<Unit>& g, Index row) {
    using T = Sum<Unit>;
    using P = Packet<T>;
    constexpr Index L = kLanes<T>, W = kWidth<T>;
    T* scores = g.scores + row * W;
    P highest[N];
    multiply_long_tile<Unit, M, N>(g.depth, g.key + row * g.key_row, g.key_row, g.key_step, g.queries, W,
                                   [&](int i, int j, const P& s) MHA_INLINE_LAMBDA {
                                     highest[j] = pmax(i == 0 ? pload<P>(g.block_max + j * L) : highest[j], s);
                                     pstore(scores + i * W + j * L, s);
                                     if (i == M - 1) pstore(g.block_max + j * L, highest[j]);
                                   });
  }
};

}  // namespace
}  // namespace mha::MHA_ISA

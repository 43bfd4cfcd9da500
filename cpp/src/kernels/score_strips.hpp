// Strips of S^T = K Q^T: some keys against some vectors of queries, with or without masks.
#pragma once

#include "microkernel.hpp"

namespace mha::MHA_ISA {

template <class T>
struct ScoreArguments {
  Index depth;
  const T* key;  // first key of the segment
  Index key_row, key_step;
  const T* queries;  // Q^T, at the segment's first vector; likewise below
  T* scores;
  T* block_max;
  // For masked segments only.
  T score_scale;
  const T* bias;          // null: none
  const T *first, *last;  // each lane's bounds, counted from the block's begin
  Index offset;           // of the segment's first key in the block
};

/// M keys against N vectors of queries, all visible.
template <class T, int M, int N>
struct PlainScores {
  static void run(const ScoreArguments<T>& g, Index row) {
    using P = Packet<T>;
    constexpr Index L = kLanes<T>, W = kWidth<T>;
    T* scores = g.scores + row * W;
    P highest[N];
    multiply_long_tile<T, M, N>(g.depth, g.key + row * g.key_row, g.key_row, g.key_step, g.queries, W,
                                [&](int i, int j, const P& s) MHA_INLINE_LAMBDA {
                                  highest[j] = pmax(i == 0 ? pload<P>(g.block_max + j * L) : highest[j], s);
                                  pstore(scores + i * W + j * L, s);
                                  if (i == M - 1) pstore(g.block_max + j * L, highest[j]);
                                });
  }
};

/// The same where masks cut: score = scale * s + bias where visible, minus infinity where not. Selection, not arithmetic,
/// decides, so that a NaN behind a mask goes nowhere.
template <class T, int M, int N>
struct MaskedScores {
  static void run(const ScoreArguments<T>& g, Index row) {
    using P = Packet<T>;
    constexpr Index L = kLanes<T>, W = kWidth<T>;
    T* scores = g.scores + row * W;
    const T* bias = g.bias ? g.bias + row * W : nullptr;
    const P minus_infinity = pset1<P>(-kInfinity<T>);
    multiply_long_tile<T, M, N>(g.depth, g.key + row * g.key_row, g.key_row, g.key_step, g.queries, W,
                                [&](int i, int j, const P& product) MHA_INLINE_LAMBDA {
                                  const P key = pset1<P>(T(g.offset + row + i));
                                  P visible = pand(pcmp_le(pload<P>(g.first + j * L), key),
                                                   pcmp_lt(key, pload<P>(g.last + j * L)));
                                  P s = pmul(product, pset1<P>(g.score_scale));
                                  if (bias) {
                                    const P b = pload<P>(bias + i * W + j * L);
                                    visible = pandnot(visible, pcmp_eq(b, minus_infinity));
                                    s = pmadd(product, pset1<P>(g.score_scale), b);
                                  }
                                  s = pselect(visible, s, minus_infinity);
                                  pstore(scores + i * W + j * L, s);
                                  pstore(g.block_max + j * L, pmax(pload<P>(g.block_max + j * L), s));
                                });
  }
};

}  // namespace mha::MHA_ISA

// The register-tile microkernel: every multiply-add of the library happens here.
#pragma once

#include "kernels/vectors/operands.hpp"

namespace mha::MHA_ISA {
namespace {

/// C[M x N vectors] = start + sum over k < depth of A[i, k] B[k, :], k counting operands (operands.hpp), as all steps do.
///
/// A is read by broadcast from wherever it lies (a_row, a_step: operands between rows and along k), so keys, values and
/// activations need no packing. B is a panel: row k starts at b + k * b_row, aligned to vectors. `start(i, j)` gives
/// the initial accumulator, `finish(i, j, c)` takes the result: what surrounds the product (masks, running maxima,
/// rescaling, stores) is fused there while the tile is in registers.
///
/// Each k costs N vector loads and M broadcasts for M * N multiply-adds: 10 loads for 24 at 6 x 4. Two multiply-adds a
/// cycle with a latency of four need eight independent accumulators, the tile has 24 (Goto and van de Geijn, "Anatomy
/// of High-Performance Matrix Multiplication", 2008, section 4). The order of the sum over k depends on depth alone, so
/// a result does not depend on which tile shape computed it.
///
/// With kAhead, rows of B are asked for so many rows before they are read, among the multiply-adds. Left to itself the
/// processor looks a dozen rows ahead, as far as its reorder buffer goes at 34 operations a row: too few loads in flight
/// to cover the way from level 3 or from memory.
template <class Operand, int M, int N, int kAhead = 0, class Start, class Finish>
MHA_INLINE void multiply_tile(Index depth, const Operand* a, Index a_row, Index a_step, const Operand* b, Index b_row,
                              Start start, Finish finish) {
  using T = Sum<Operand>;
  Packet<T> c[M][N];
  MHA_UNROLL
  for (int i = 0; i < M; ++i) {
    MHA_UNROLL
    for (int j = 0; j < N; ++j) c[i][j] = start(i, j);
  }
  for (Index k = 0; k < depth; ++k) {
    Packet<T> bk[N];
    MHA_UNROLL
    for (int j = 0; j < N; ++j) bk[j] = load_operands(b + j * kLanes<T>);
    if constexpr (kAhead > 0) {
      MHA_UNROLL
      for (int j = 0; j < N; j += kVectorBytes / int(sizeof(bk[0])))
        __builtin_prefetch(b + kAhead * b_row + j * kLanes<T>);
    }
    MHA_UNROLL
    for (int i = 0; i < M; ++i) {
      const Packet<T> aik = broadcast_operand(a + i * a_row);
      MHA_UNROLL
      for (int j = 0; j < N; ++j) c[i][j] = multiply_add(a, aik, bk[j], c[i][j]);
    }
    a += a_step;
    b += b_row;
  }
  MHA_UNROLL
  for (int i = 0; i < M; ++i) {
    MHA_UNROLL
    for (int j = 0; j < N; ++j) finish(i, j, c[i][j]);
  }
}

/// Most multiply-adds in one chain of a long sum. Longer sums are added up chain by chain, which brings the rounding
/// error of n terms from about sqrt(n / 2) units down to sqrt(kChain / 2 + n / (2 kChain)): at n = 512 from 16 to 8,
/// where a matrix product of NumPy, with chains of some 300, has 12. It costs 1.5 %; chains of 64 would cost 3 %.
constexpr Index kChain = 128;

/// multiply_tile from a start of 0, for sums of any length.
template <class Operand, int M, int N, int kAhead = 0, class Finish>
MHA_INLINE void multiply_long_tile(Index depth, const Operand* a, Index a_row, Index a_step, const Operand* b,
                                   Index b_row, Finish finish) {
  using T = Sum<Operand>;
  const auto zero = [](int, int) MHA_INLINE_LAMBDA { return pset1<Packet<T>>(T(0)); };
  if (depth <= kChain) return multiply_tile<Operand, M, N, kAhead>(depth, a, a_row, a_step, b, b_row, zero, finish);
  constexpr Index L = kLanes<T>;
  alignas(kVectorBytes) T sums[L * M * N] = {};
  // Chains meet in memory, the last one too: a loop of its own for that would be a third of the code.
  for (; depth > 0; depth -= kChain, a += kChain * a_step, b += kChain * b_row)
    multiply_tile<Operand, M, N, kAhead>(depth < kChain ? depth : kChain, a, a_row, a_step, b, b_row, zero,
                                         [&](int i, int j, const Packet<T>& c) MHA_INLINE_LAMBDA {
                                           T* const sum = sums + (i * N + j) * L;
                                           pstore(sum, padd(pload<Packet<T>>(sum), c));
                                         });
  MHA_UNROLL
  for (int i = 0; i < M; ++i) {
    MHA_UNROLL
    for (int j = 0; j < N; ++j) finish(i, j, pload<Packet<T>>(sums + (i * N + j) * L));
  }
}

}  // namespace
}  // namespace mha::MHA_ISA

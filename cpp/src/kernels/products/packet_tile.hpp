// The register tile that products of packets share: C[M x N vectors] = start + A B, all of C in registers.
//
// A is read by broadcast from wherever it lies, so keys, values and activations need no packing. B is a panel whose
// rows are loaded as whole vectors, one operand for each column. Each row of B costs N vector loads and M broadcasts
// for M * N multiply-adds: 10 loads for 24 multiply-adds at 6 x 4.
//
// Two multiply-adds a cycle with a latency of four cycles need eight independent accumulators. The tile has 24 of them
// where there are 32 registers, 12 where there are 16 (Goto and van de Geijn, "Anatomy of High-Performance Matrix
// Multiplication", 2008, section 4).
//
// Numerics: an element of C is summed in the order of k, in an order that depends on the number of terms alone. So a
// result does not depend on the shape of the tile that computed it.
#pragma once

#include "kernels/kernel_table.hpp"
#include "kernels/vectors/eigen.hpp"

namespace mha::MHA_ISA {
namespace {

/// `Products` is a kind of product: see kinds.hpp.
template <class Products>
struct PacketTile {
  using Operand = typename Products::Operand;
  using PanelOperand = typename Products::PanelOperand;
  using Vector = typename Products::Vector;
  using Sums = typename Products::Sums;
  using T = typename Products::Sum;
  static constexpr Index L = Index(sizeof(Sums) / sizeof(T));  // not kLanes<T>: Eigen has narrower packets of integers

  /// Most rows of a tile that is n vectors wide: 24 accumulators at full width (12 with 16 registers). Eight rows are
  /// enough for the latency of a multiply-add at any narrower one. A wider tile has one row.
  static constexpr int rows(int n) { return n > kVectors ? 1 : n == kVectors ? 6 : kMostRows; }
  static constexpr int kMostRows = 8;

  /// C = start + sum over k < depth of A[i, k] B[k, :], where k counts operands.
  ///
  /// a_row, a_step: operands between rows of A, and between neighbours along k. Row k of B starts at b + k * b_row,
  /// aligned to vectors. `start(i, j)` gives the first value of vector j of row i, `finish(i, j, c)` takes its sum:
  /// the steps around the product (masks, running maxima, rescaling, stores) happen there, while the tile is in
  /// registers.
  ///
  /// With kAhead, rows of B are prefetched so many rows before they are read, among the multiply-adds. Left to itself
  /// the processor looks a dozen rows ahead, as far as its reorder buffer reaches at 34 operations a row: too few loads
  /// in flight to cover the latency of level 3 or of memory.
  template <int M, int N, int kAhead = 0, class Start, class Finish>
  MHA_INLINE static void multiply(Index depth, const Operand* a, Index a_row, Index a_step, const PanelOperand* b,
                                  Index b_row, Start start, Finish finish) {
    Sums c[M][N];
    MHA_UNROLL
    for (int i = 0; i < M; ++i) {
      MHA_UNROLL
      for (int j = 0; j < N; ++j) c[i][j] = start(i, j);
    }
    for (Index k = 0; k < depth; ++k) {
      Vector bk[N];
      MHA_UNROLL
      for (int j = 0; j < N; ++j) bk[j] = Products::load(b + j * L);
      if constexpr (kAhead > 0) {
        MHA_UNROLL
        for (int j = 0; j < N; j += kVectorBytes / int(sizeof(Sums))) __builtin_prefetch(b + kAhead * b_row + j * L);
      }
      MHA_UNROLL
      for (int i = 0; i < M; ++i) {
        const Vector aik = Products::broadcast(a + i * a_row);
        MHA_UNROLL
        for (int j = 0; j < N; ++j) c[i][j] = Products::multiply_add(aik, bk[j], c[i][j]);
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

  /// multiply() from a start of 0, for sums of any length: partial sums of Products::kPartialSumTerms terms, added up
  /// in order.
  template <int M, int N, int kAhead = 0, class Finish>
  MHA_INLINE static void multiply_long(Index depth, const Operand* a, Index a_row, Index a_step, const PanelOperand* b,
                                       Index b_row, Finish finish) {
    using P = Packet<T>;
    constexpr Index kTerms = Products::kPartialSumTerms;
    const auto zero = [](int, int) MHA_INLINE_LAMBDA { return pset1<P>(T(0)); };
    if (depth <= kTerms) return multiply<M, N, kAhead>(depth, a, a_row, a_step, b, b_row, zero, finish);
    alignas(kVectorBytes) T sums[L * M * N] = {};
    // Partial sums meet in memory, the last one too: a loop of its own for that would be a third of the code.
    for (; depth > 0; depth -= kTerms, a += kTerms * a_step, b += kTerms * b_row)
      multiply<M, N, kAhead>(depth < kTerms ? depth : kTerms, a, a_row, a_step, b, b_row, zero,
                             [&](int i, int j, const P& c) MHA_INLINE_LAMBDA {
                               T* const sum = sums + (i * N + j) * L;
                               pstore(sum, padd(pload<P>(sum), c));
                             });
    MHA_UNROLL
    for (int i = 0; i < M; ++i) {
      MHA_UNROLL
      for (int j = 0; j < N; ++j) finish(i, j, pload<P>(sums + (i * N + j) * L));
    }
  }
};

}  // namespace
}  // namespace mha::MHA_ISA

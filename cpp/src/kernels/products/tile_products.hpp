// Products of pairs of bf16 in the arithmetic of tiles (tiles.hpp): a sum is cut into parts of 16 pairs; in each part one
// chain of multiply-adds takes the first elements of the pairs, another one the second elements; then the chains are added
// to each other, and that to the sum. Here are vectors that do so, for decode and for what is too small for tiles;
// tile_blocks.hpp multiplies by tiles. Which of them computes a sum shows in no bit.
//
// Widened to f32 a bf16 takes twice the registers, and there are two chains for each sum. So a register tile has fewer
// rows than others.
#pragma once

#include "kernels/products/pair_operands.hpp"
#include "kernels/products/tiles.hpp"
#include "kernels/vectors/transpose.hpp"

#ifdef MHA_TILES

namespace mha::MHA_ISA {
namespace {

template <class Products>
struct ChainTile;

struct TileProducts : PairVectors {
  struct Sums {
    Packet<float> first, second;
  };
  using Tile = ChainTile<TileProducts>;
  using State = TileState;

  static constexpr Index kPartialSumTerms = kTileColumns;

  MHA_INLINE static Sums multiply_add(const Packet<float>& a, const Packet<float>& b, const Sums& sums) {
    return {pmadd(first_of(a), first_of(b), sums.first), pmadd(second_of(a), second_of(b), sums.second)};
  }
  MHA_INLINE static Sums zero() { return {pset1<Packet<float>>(0.0f), pset1<Packet<float>>(0.0f)}; }
  MHA_INLINE static Packet<float> total(const Sums& sums) { return padd(sums.first, sums.second); }

 private:
  MHA_INLINE static Packet<float> first_of(const Packet<float>& pairs) { return Packet<float>(Bits(pairs) << 16); }
  MHA_INLINE static Packet<float> second_of(const Packet<float>& pairs) {
    return Packet<float>(Bits(pairs) & 0xffff0000u);
  }
};

/// The register tile of chains: as PacketTile.
template <class Products>
struct ChainTile {
  using Operand = typename Products::Operand;
  using Sums = typename Products::Sums;
  using P = Packet<float>;
  static constexpr Index L = kLanes<float>;

  /// With 32 registers 2 x 4 sums are 16 chains, beside 8 halves of B and 2 of A.
  static constexpr int rows(int n) { return n > kVectors ? 1 : n > kVectors / 2 ? 2 : n == 1 ? kMostRows : 4; }
  static constexpr int kMostRows = kVectors == 4 ? 8 : 4;

  template <int M, int N, int kAhead = 0, class Start, class Finish>
  MHA_INLINE static void multiply(Index depth, const Operand* a, Index a_row, Index a_step, const Operand* b,
                                  Index b_row, Start start, Finish finish) {
    alignas(kVectorBytes) float totals[L * M * N];
    MHA_UNROLL
    for (int i = 0; i < M; ++i) {
      MHA_UNROLL
      for (int j = 0; j < N; ++j) pstore(totals + (i * N + j) * L, start(i, j));
    }
    for (Index left = depth; left > 0; left -= Products::kPartialSumTerms) {
      Sums c[M][N];
      MHA_UNROLL
      for (int i = 0; i < M * N; ++i) c[i / N][i % N] = Products::zero();
      for (Index k = left < Products::kPartialSumTerms ? left : Products::kPartialSumTerms; k > 0; --k) {
        P bk[N];
        MHA_UNROLL
        for (int j = 0; j < N; ++j) bk[j] = Products::load(b + j * L);
        if constexpr (kAhead > 0) {
          MHA_UNROLL
          for (int j = 0; j < N; j += kVectorBytes / int(sizeof(P))) __builtin_prefetch(b + kAhead * b_row + j * L);
        }
        MHA_UNROLL
        for (int i = 0; i < M; ++i) {
          const P aik = Products::broadcast(a + i * a_row);
          MHA_UNROLL
          for (int j = 0; j < N; ++j) c[i][j] = Products::multiply_add(aik, bk[j], c[i][j]);
        }
        a += a_step;
        b += b_row;
      }
      MHA_UNROLL
      for (int i = 0; i < M * N; ++i) {
        Sums& chains = c[i / N][i % N];
        if (left < Products::kPartialSumTerms) {  // zeros follow, in tiles, and make +0 of -0
          chains.first = padd(chains.first, pset1<P>(0.0f));
          chains.second = padd(chains.second, pset1<P>(0.0f));
        }
        pstore(totals + i * L, padd(pload<P>(totals + i * L), Products::total(chains)));
      }
    }
    MHA_UNROLL
    for (int i = 0; i < M; ++i) {
      MHA_UNROLL
      for (int j = 0; j < N; ++j) finish(i, j, pload<P>(totals + (i * N + j) * L));
    }
  }

  template <int M, int N, int kAhead = 0, class Finish>
  MHA_INLINE static void multiply_long(Index depth, const Operand* a, Index a_row, Index a_step, const Operand* b,
                                       Index b_row, Finish finish) {
    multiply<M, N, kAhead>(
        depth, a, a_row, a_step, b, b_row, [](int, int) MHA_INLINE_LAMBDA { return pset1<P>(0.0f); }, finish);
  }
};

/// Elements of bf16 as pairs, 16 of which are multiplied together.
constexpr Index kTileElements = kTileColumns * TileProducts::kElements;

struct TileOperands : PairOperands<TileProducts, kTileElements> {
  /// Values of up to kMost keys, evenly spaced, as the first factor of tiles: `to` [columns][kMost keys], the pairs of the
  /// keys of a column side by side. Zeros fill `columns` up to `filled` columns, and keys to whole groups.
  template <Index kMost>
  static void transpose_values(const Rows<BFloat16>& values, Index keys, Index columns, Index filled, Pair* to) {
    constexpr Index L = kLanes<float>, kRow = kMost / kElements;
    const auto row_of = [&](Index key) { return key < keys ? values.data + key * values.row : nullptr; };
    for (Index pair = 0; pair < count(keys); pair += L) {
      Index c = 0;
      if (values.step == 1)
        for (; c + L <= columns; c += L) {
          PacketBlock<Packet<float>, L> block;
          MHA_UNROLL
          for (Index i = 0; i < L; ++i) {
            const BFloat16 *const one = row_of(2 * (pair + i)), *const two = row_of(2 * (pair + i) + 1);
            const Bits first = load_words(one ? one + c : kZeros<BFloat16, L>);
            block.packet[i] = Packet<float>(first | load_words(two ? two + c : kZeros<BFloat16, L>) << 16);
          }
          transpose(block);
          MHA_UNROLL
          for (Index i = 0; i < L; ++i) TileProducts::store(to + (c + i) * kRow + pair, block.packet[i]);
        }
      for (; c < filled; ++c)
        for (Index i = 0; i < L; ++i) {
          const BFloat16 *const one = row_of(2 * (pair + i)), *const two = row_of(2 * (pair + i) + 1);
          const Index at = c * values.step;
          to[c * kRow + pair + i] = {one && c < columns ? one[at] : BFloat16{0},
                                     two && c < columns ? two[at] : BFloat16{0}};
        }
    }
  }
};
using RoundedTileOperands = RoundedPairOperands<TileProducts, kTileElements>;

}  // namespace
}  // namespace mha::MHA_ISA

#endif

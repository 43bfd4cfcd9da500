// Products of pairs of bf16 in the arithmetic of tiles (tiles.hpp): a sum is cut into parts of 16 pairs; in each part
// one chain of multiply-adds takes the first elements of the pairs, another one the second elements; then the chains
// are added to each other, and the result to the sum. This file does so by vectors, for decode and for products that
// are too small for tiles; tile_blocks.hpp multiplies by tiles. Both give the same bits.
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

  /// With 32 registers 2 x 4 sums are 16 chains, next to 8 halves of B and 2 of A.
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

// to[c * to_row + r / 2] = the pair of rows r and r + 1 in column c, of kTileElements rows and kTransposedColumns
// columns.
#ifdef EIGEN_VECTORIZE_AVX512
// Quarters of vectors come from memory where they belong, by insertions that port 0 does, too. Columns are then
// gathered within quarters: 24 shuffles for 256 values, where pairs that are made first take 32, and 16 loads that
// widen.
constexpr Index kTransposedColumns = 8;
MHA_INLINE void transpose_pairs(const BFloat16* const* rows, Index column, Pair* to, Index to_row) {
  const auto quarter = [&](Index row) MHA_INLINE_LAMBDA {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + column));
  };
  __m512i r[8];  // in quarter l row 8 l + i
  MHA_UNROLL
  for (Index i = 0; i < 8; ++i) {
    r[i] = _mm512_inserti32x4(_mm512_castsi128_si512(quarter(i)), quarter(8 + i), 1);
    r[i] = _mm512_inserti32x4(_mm512_inserti32x4(r[i], quarter(16 + i), 2), quarter(24 + i), 3);
  }
  const auto store_two = [&](Index c, const __m512i& first, const __m512i& second) MHA_INLINE_LAMBDA {
    _mm512_store_si512(to + c * to_row, _mm512_unpacklo_epi64(first, second));
    _mm512_store_si512(to + (c + 1) * to_row, _mm512_unpackhi_epi64(first, second));
  };
  MHA_UNROLL
  for (Index c = 0; c < 8; c += 4) {
    __m512i pairs[4];  // of rows 2 i and 2 i + 1 of each eight, in columns c to c + 3
    MHA_UNROLL
    for (Index i = 0; i < 4; ++i)
      pairs[i] = c == 0 ? _mm512_unpacklo_epi16(r[2 * i], r[2 * i + 1]) : _mm512_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
    store_two(c, _mm512_unpacklo_epi32(pairs[0], pairs[1]), _mm512_unpacklo_epi32(pairs[2], pairs[3]));
    store_two(c + 2, _mm512_unpackhi_epi32(pairs[0], pairs[1]), _mm512_unpackhi_epi32(pairs[2], pairs[3]));
  }
}
#else
constexpr Index kTransposedColumns = kLanes<float>;
MHA_INLINE void transpose_pairs(const BFloat16* const* rows, Index column, Pair* to, Index to_row) {
  constexpr Index L = kLanes<float>;
  for (Index pair = 0; pair < kTileColumns; pair += L) {
    PacketBlock<Packet<float>, L> block;
    MHA_UNROLL
    for (Index i = 0; i < L; ++i)
      block.packet[i] = Packet<float>(load_words(rows[2 * (pair + i)] + column) |
                                      load_words(rows[2 * (pair + i) + 1] + column) << 16);
    transpose(block);
    MHA_UNROLL
    for (Index c = 0; c < L; ++c) TileProducts::store(to + c * to_row + pair, block.packet[c]);
  }
}
#endif

struct TileOperands : PairOperands<TileProducts, kTileElements> {
  /// Values of up to kMost keys, evenly spaced, as the first factor of tiles: `to` [columns][kMost keys], the pairs of
  /// the keys of a column side by side. Zeros fill `columns` up to `filled` columns, and keys to whole groups.
  template <Index kMost, class Beside>
  MHA_INLINE static void transpose_values(const Rows<BFloat16>& values, Index keys, Index columns, Index filled,
                                          Pair* to, Beside beside) {
    constexpr Index kRow = kMost / kElements, kGroupPairs = kTileColumns;
    static_assert(kGroupPairs * kElements == kGroup);
    const Index groups = (keys + kGroup - 1) / kGroup;
    const Index blocks = values.step == 1 ? columns / kTransposedColumns : 0;
    for (Index group = 0; group < groups; ++group) {
      const Index first = group * kGroup, present = keys - first < kGroup ? keys - first : kGroup;
      const BFloat16* rows[kGroup];
      for (Index i = 0; i < kGroup; ++i) rows[i] = values.data + (first + (i < present ? i : 0)) * values.row;
      Pair* const pairs = to + group * kGroupPairs;
      for (Index block = 0; block < blocks; ++block) {
        const Index c = block * kTransposedColumns;
        transpose_pairs(rows, c, pairs + c * kRow, kRow);
        beside(group * blocks + block, groups * blocks);
      }
      if (present < kGroup) keep_keys(present, blocks * kTransposedColumns, pairs, kRow);
      for (Index c = blocks * kTransposedColumns; c < filled; ++c) {  // the rest, and zeros
        auto* const column = reinterpret_cast<BFloat16*>(pairs + c * kRow);
        for (Index i = 0; i < kGroup; ++i)
          column[i] = i < present && c < columns ? rows[i][c * values.step] : BFloat16{0};
      }
    }
  }

 private:
  /// Zeros follow the first `present` keys of a group in each of its columns, whatever stood there.
  MHA_INLINE static void keep_keys(Index present, Index columns, Pair* pairs, Index row) {
    using P = Packet<float>;
    constexpr Index L = kLanes<float>;
    alignas(kVectorBytes) std::uint16_t bits[kGroup];
    for (Index i = 0; i < kGroup; ++i) bits[i] = i < present ? 0xffff : 0;
    for (Index c = 0; c < columns; ++c)
      for (Index pair = 0; pair < kTileColumns; pair += L) {
        Pair* const at = pairs + c * row + pair;
        TileProducts::store(at, P(Bits(TileProducts::load(at)) & load_vector<Bits>(bits + 2 * pair)));
      }
  }
};
using RoundedTileOperands = RoundedPairOperands<TileProducts, kTileElements>;

}  // namespace
}  // namespace mha::MHA_ISA

#endif

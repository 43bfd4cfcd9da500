// S^T = K Q^T of a segment of a block: strips of keys against vectors of queries, and the largest product of each
// query.
#pragma once

#include "kernels/products/kinds.hpp"
#include "kernels/products/strips.hpp"
#include "kernels/products/tile_blocks.hpp"

namespace mha::MHA_ISA {
namespace {

template <class Products>
struct ScoreArguments {
  using Operand = typename Products::Operand;
  using T = typename Products::Sum;
  Index depth;         // operands of the head dimension
  const Operand* key;  // first key of the segment
  Index key_row, key_step;
  const Operand* queries;  // Q^T; this and the next fields: at the first vector of queries of the segment
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

#ifdef MHA_TILES

/// Whether `lanes` queries from `lane` on are whole columns of tiles.
constexpr bool fill_tiles(Index lane, Index lanes) { return lane % kTileColumns == 0 && lanes % kTileColumns == 0; }

/// Keys as they lie are the first factor, Q^T is the second one: one or two columns of tiles from lane `lane` on, of
/// which `lanes` are left.
inline TileBlock score_block(const ScoreArguments<TileProducts>& g, Index keys, Index lane, Index lanes) {
  constexpr Index kRow = kWidth<float> * Index(sizeof(float));
  return {g.key,
          g.key_row * Index(sizeof(Pair)),
          keys,
          g.queries + lane,
          kRow,
          g.scores + lane,
          kRow,
          g.depth / kTileColumns,
          lanes > kTileColumns,
          false};
}

/// The largest product so far, of each lane.
MHA_INLINE void raise_block_maximum(const ScoreArguments<TileProducts>& g, Index keys, Index lanes) {
  using P = Packet<float>;
  constexpr Index L = kLanes<float>, W = kWidth<float>;
  for (Index lane = 0; lane < lanes; lane += L) {
    P highest[4];
    MHA_UNROLL
    for (P& one : highest) one = pload<P>(g.block_max + lane);
    const float* scores = g.scores + lane;
    Index key = 0;
    for (; key + 4 <= keys; key += 4) {
      MHA_UNROLL
      for (Index i = 0; i < 4; ++i) highest[i] = pmax(highest[i], pload<P>(scores + (key + i) * W));
    }
    for (; key < keys; ++key) highest[0] = pmax(highest[0], pload<P>(scores + key * W));
    pstore(g.block_max + lane, pmax(pmax(highest[0], highest[1]), pmax(highest[2], highest[3])));
  }
}

/// Keys against queries that fill tiles. The last keys may be multiplied twice, with the same bits; fewer than 16 take
/// tiles of fewer rows.
__attribute__((noinline)) inline void score_keys_by_tiles(const ScoreArguments<TileProducts>& g, Index lanes,
                                                          Index keys, const Upcoming& upcoming) {
  const FewTileRows height(keys);
  for (Index lane = 0; lane < lanes; lane += kBlockColumns)
    multiply_tiles<PairInstruction>(score_block(g, keys, lane, lanes - lane), lane == 0 ? upcoming : Upcoming{});
  raise_block_maximum(g, keys, lanes);
}

#endif

/// All keys of a segment against `vectors` vectors of queries, the first of which is lane `lane` of its tile.
template <class Products>
void score_segment(int vectors, Index keys, [[maybe_unused]] Index lane, const ScoreArguments<Products>& g,
                   const Upcoming& upcoming) {
#ifdef MHA_TILES
  if constexpr (kHasTiles<Products>) {
    const Index lanes = Index{vectors} * kLanes<float>;
    if (kVectorsFillTiles || fill_tiles(lane, lanes)) return score_keys_by_tiles(g, lanes, keys, upcoming);
  }
#endif
  if constexpr (!kHasTiles<Products> || !kVectorsFillTiles) {
    static constexpr StripTable<ScoreKeys, Products, ScoreArguments<Products>> score_keys;
    score_keys(vectors, keys, g, upcoming);
  }
}

}  // namespace
}  // namespace mha::MHA_ISA

// Projections of rows and weights that are operands of several elements: bf16 by VDPBF16PS, BFDOT or tiles. Sums and
// the bias are f32.
// Rows are read as they lie where they can be (kinds.hpp); a row of a panel holds two features of each column already.
#pragma once

#include "kernels/projection/project_tile.hpp"
#include "kernels/projection/project_tiles.hpp"
#include "kernels/projection/rows_ahead.hpp"
#include "kernels/projection/weight_strips.hpp"

namespace mha::MHA_ISA {
namespace {

template <class Products, int M, int N, int kAhead>
struct PairsStrip {
  static void run(const WeightStrip& g, Index row) {
    using P = Packet<float>;
    constexpr Index L = kLanes<float>, kElements = Products::kElements;
    const ProjectionTile& tile = *g.tile;
    const float* const bias = g.row_of_columns(tile.bias, 0);
    Products::Tile::template multiply_long<M, N, kAhead>(
        (tile.in_features + kElements - 1) / kElements,
        static_cast<const typename Products::Operand*>(tile.x) + row * tile.x_row, tile.x_row, 1,
        reinterpret_cast<const typename Products::PanelOperand*>(g.panel()), kPanelWidth<float>,
        [&](int i, int j, const P& sum)
            MHA_INLINE_LAMBDA { pstoreu(g.out[j] + (row + i) * g.out_row, padd(pload<P>(bias + j * L), sum)); });
  }
};

template <class Products, int M, int N>
using PairsRows = PairsStrip<Products, M, N, 0>;
template <class Products, int M, int N>
using PairsFirstRows = PairsStrip<Products, M, N, narrow_rows_ahead(M)>;

#ifdef MHA_TILES
/// For TileStrips.
struct PairTiles {
  using Instruction = PairInstruction;
  static constexpr Index kOperandBytes = sizeof(Pair);

  static Index words(Index in_features) { return (in_features + 1) / 2; }
  MHA_INLINE static void finish(const WeightStrip& g, Index row, const float* sums) {
    using P = Packet<float>;
    constexpr Index L = kLanes<float>;
    const float* const bias = g.row_of_columns(g.tile->bias, 0);
    for (Index j = 0; j < kVectors; ++j)
      pstoreu(g.out[j] + row * g.out_row, padd(pload<P>(bias + j * L), pload<P>(sums + j * L)));
  }
};
#endif

template <class Products>
void project_pairs(const ProjectionTile& tile, void* scratch) {
#ifdef MHA_TILES
  project_by_tiles<PairTiles, Products, PairsRows, PairsFirstRows>(tile, scratch);
#else
  static constexpr WeightStripTable<PairsRows, Products, kRowVectors> strips;
  static constexpr WeightStripTable<PairsFirstRows, Products, kVectors> first;
  project_narrow(tile, scratch, strips, first);
#endif
}

}  // namespace
}  // namespace mha::MHA_ISA

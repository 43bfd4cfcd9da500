// Projections of bf16 rows with bf16 weights by VDPBF16PS: pairs of features times pairs of weights, the sums and the
// bias in f32. Rows are read as they lie where they can be (operands.hpp); a panel row holds two features already.
#pragma once

#include "kernels/projection/project_tile.hpp"
#include "kernels/projection/weight_strips.hpp"

namespace mha::MHA_ISA {
namespace {

#ifdef __AVX512BF16__
template <int M, int N, int kAhead>
struct PairsStrip {
  static void run(const WeightStrip& g, Index row) {
    using P = Packet<float>;
    constexpr Index L = kLanes<float>;
    const ProjectionTile& tile = *g.tile;
    const float* const bias = g.row_of_columns(tile.bias, 0);
    multiply_long_tile<Pair, M, N, kAhead>(
        OperandsOf<BFloat16>::count(tile.in_features), static_cast<const Pair*>(tile.x) + row * tile.x_row, tile.x_row,
        1, reinterpret_cast<const Pair*>(g.panel()), kPanelWidth<float>,
        [&](int i, int j, const P& sum)
            MHA_INLINE_LAMBDA { pstoreu(g.out[j] + (row + i) * g.out_row, padd(pload<P>(bias + j * L), sum)); });
    if (tile.activation != Activation::none) activate<float>(tile.activation, g.out, N, row, M, g.out_row);
  }
};

template <class, int M, int N>
using PairsRows = PairsStrip<M, N, 0>;
template <class, int M, int N>
using PairsFirstRows = PairsStrip<M, N, panel_rows_ahead(M)>;

inline void project_pairs(const ProjectionTile& tile, void* scratch) {
  static constexpr WeightStripTable<PairsRows> strips;
  static constexpr WeightStripTable<PairsFirstRows> first;
  project_narrow(tile, scratch, strips, first);
}
#endif

}  // namespace
}  // namespace mha::MHA_ISA

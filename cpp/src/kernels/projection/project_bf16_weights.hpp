// Projections of f32 rows with weights in bfloat16: half the bytes to read, which limit the speed of few rows.
//
// A bfloat16 is the upper half of an f32, so a shift or a mask converts it to f32, on processors without instructions
// for the format. The rest is as in project_tile.hpp, in the same order: the result has the same bits as with f32
// weights that were rounded to bfloat16.
#pragma once

#include "kernels/products/widened_products.hpp"
#include "kernels/projection/project_tile.hpp"
#include "kernels/projection/rows_ahead.hpp"
#include "kernels/projection/weight_strips.hpp"

namespace mha::MHA_ISA {
namespace {

template <int M, int N, int kAhead>
struct Bf16WeightsStrip {
  static void run(const WeightStrip& g, Index row) {
    using P = Packet<float>;
    constexpr Index L = kLanes<float>;
    const ProjectionTile& tile = *g.tile;
    const float* const bias = g.row_of_columns(tile.bias, 0);
    const auto out = [&](int i, int j) MHA_INLINE_LAMBDA { return g.out[j] + (row + i) * g.out_row; };
    constexpr Index kTerms = WidenedProducts::kPartialSumTerms;
    // The blocks of project_tile() and the partial sums of multiply_long(), rounded at the same places. The sum of the
    // blocks so far waits where the result goes.
    for (Index block = 0; block < tile.in_features; block += kDepth) {
      const Index depth = tile.in_features - block < kDepth ? tile.in_features - block : kDepth;
      alignas(kVectorBytes) float sums[L * M * N];
      for (Index k = 0; k < depth; k += kTerms) {
        const bool is_last = k + kTerms >= depth, is_only = depth <= kTerms;
        WidenedTile::multiply<M, N, kAhead>(
            is_last ? depth - k : kTerms,
            static_cast<const float*>(tile.x) + row * tile.x_row + (block + k) * tile.x_step, tile.x_row, tile.x_step,
            g.panel() + (block + k) / 2 * kPanelBytes, [&](int i, int j, P c) MHA_INLINE_LAMBDA {
              float* const sum = sums + (i * N + j) * L;
              if (!is_only) c = padd(k == 0 ? pset1<P>(0.0f) : pload<P>(sum), c);
              if (is_last)
                pstoreu(out(i, j), padd(block == 0 ? pload<P>(bias + j * L) : ploadu<P>(out(i, j)), c));
              else
                pstore(sum, c);
            });
      }
    }
  }
};

template <class, int M, int N>
using Bf16WeightsRows = Bf16WeightsStrip<M, N, 0>;
template <class, int M, int N>
using Bf16WeightsFirstRows = Bf16WeightsStrip<M, N, narrow_rows_ahead(M)>;

inline void project_bf16_weights(const ProjectionTile& tile, void* scratch) {
  static constexpr WeightStripTable<Bf16WeightsRows, WidenedProducts, kRowVectors> strips;
  static constexpr WeightStripTable<Bf16WeightsFirstRows, WidenedProducts, kVectors> first;
  project_narrow(tile, scratch, strips, first);
}

}  // namespace
}  // namespace mha::MHA_ISA

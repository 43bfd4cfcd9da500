// Projections of quantized rows (quantize_rows.hpp) with int8 weights: exact sums of integers, scaled once.
//
//   out = activation(sum * (x_scale * weight_scale) + bias)
//
// Numerics: sums are exact, and each operation on f32 is rounded by itself, so all instruction sets give the same bits.
#pragma once

#include "kernels/products/byte_products.hpp"
#include "kernels/projection/project_tile.hpp"
#include "kernels/projection/weight_strips.hpp"

namespace mha::MHA_ISA {
namespace {

template <int M, int N, int kAhead>
struct Int8WeightsStrip {
  static void run(const WeightStrip& g, Index row) {
    using P = Packet<float>;
    constexpr Index L = kLanes<float>;
    const ProjectionTile& tile = *g.tile;
    const float *const bias = g.row_of_columns(tile.bias, 0), *const scales = g.row_of_columns(tile.bias, 1);
    const float* const weight_sums = g.row_of_columns(tile.bias, 2);
    const auto start = [&](int i, int j) MHA_INLINE_LAMBDA {
      return ByteProducts::kHasOffset ? load_vector<Ints>(weight_sums + j * L) * -tile.x_scales[row + i].offset
                                      : Ints{};
    };
    const auto finish = [&](int i, int j, const Ints& sums) MHA_INLINE_LAMBDA {
      const P scale = pmul(pset1<P>(tile.x_scales[row + i].scale), pload<P>(scales + j * L));
      const P scaled = pmul(P(__builtin_convertvector(sums, Floats)), scale);
      pstoreu(g.out[j] + (row + i) * g.out_row, padd(scaled, pload<P>(bias + j * L)));
    };
    ByteProducts::Tile::multiply<M, N, kAhead>(
        (tile.in_features + 3) / 4, static_cast<const unsigned char*>(tile.x) + row * tile.x_row, tile.x_row,
        Index{4} * ByteProducts::kFeatureBytes, reinterpret_cast<const std::int32_t*>(g.panel()), kPanelWidth<float>,
        start, finish);
    if (tile.activation != Activation::none) activate<float>(tile.activation, g.out, N, row, M, g.out_row);
  }
};

template <class, int M, int N>
using Int8WeightsRows = Int8WeightsStrip<M, N, 0>;
template <class, int M, int N>
using Int8WeightsFirstRows = Int8WeightsStrip<M, N, panel_rows_ahead(M)>;

inline void project_int8_weights(const ProjectionTile& tile, void* scratch) {
  static constexpr WeightStripTable<Int8WeightsRows, ByteProducts> strips;
  static constexpr WeightStripTable<Int8WeightsFirstRows, ByteProducts> first;
  project_narrow(tile, scratch, strips, first);
}

}  // namespace
}  // namespace mha::MHA_ISA

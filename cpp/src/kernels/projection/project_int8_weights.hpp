// Projections of quantized rows with int8 weights: exact sums of integers, scaled once.
//
//   out = activation(sum * (x_scale * weight_scale) + bias)
//
// Every operation is rounded by itself, so that all instruction sets agree in every bit.
#pragma once

#include "kernels/projection/int8_products.hpp"
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
    const unsigned char* x = static_cast<const unsigned char*>(tile.x) + row * tile.x_row;
    const std::byte* b = g.panel();

    Ints c[M][N];
    MHA_UNROLL
    for (int i = 0; i < M; ++i) {
      MHA_UNROLL
      for (int j = 0; j < N; ++j)
        c[i][j] = kHasOffset ? load_vector<Ints>(weight_sums + j * L) * -tile.x_scales[row + i].offset : Ints{};
    }
    for (Index k = 0; k < tile.in_features; k += 4) {
      WeightBytes bk[N];
      MHA_UNROLL
      for (int j = 0; j < N; ++j) bk[j] = weights_at(b + j * Index(sizeof(P)));
      if constexpr (kAhead > 0) {
        MHA_UNROLL
        for (int j = 0; j < N * int(sizeof(P)); j += kVectorBytes)
          __builtin_prefetch(b + Index{kAhead} * kPanelBytes + j);
      }
      MHA_UNROLL
      for (int i = 0; i < M; ++i) {
        const Features xik = features_at(x + i * tile.x_row);
        MHA_UNROLL
        for (int j = 0; j < N; ++j) c[i][j] = dot(c[i][j], xik, bk[j]);
      }
      x += Index{4} * kFeatureBytes;
      b += kPanelBytes;
    }
    MHA_UNROLL
    for (int i = 0; i < M; ++i) {
      const P x_scale = pset1<P>(tile.x_scales[row + i].scale);
      MHA_UNROLL
      for (int j = 0; j < N; ++j) {
        const P sum = P(__builtin_convertvector(c[i][j], Floats));
        const P scaled = pmul(sum, pmul(x_scale, pload<P>(scales + j * L)));
        pstoreu(g.out[j] + (row + i) * g.out_row, padd(scaled, pload<P>(bias + j * L)));
      }
    }
    if (tile.activation != Activation::none) activate<float>(tile.activation, g.out, N, row, M, g.out_row);
  }
};

template <class, int M, int N>
using Int8WeightsRows = Int8WeightsStrip<M, N, 0>;
template <class, int M, int N>
using Int8WeightsFirstRows = Int8WeightsStrip<M, N, panel_rows_ahead(M)>;

inline void project_int8_weights(const ProjectionTile& tile, void* scratch) {
  static constexpr WeightStripTable<Int8WeightsRows> strips;
  static constexpr WeightStripTable<Int8WeightsFirstRows> first;
  project_narrow(tile, scratch, strips, first);
}

}  // namespace
}  // namespace mha::MHA_ISA

// Projections of quantized rows (quantize_rows.hpp) with int8 weights: exact sums of integers, scaled once.
//
//   out = activation(sum * (x_scale * weight_scale) + bias)
//
// Numerics: sums are exact, and each operation on f32 is rounded by itself, so all instruction sets give the same bits.
#pragma once

#include "kernels/products/byte_products.hpp"
#include "kernels/projection/project_tile.hpp"
#include "kernels/projection/quantize_rows.hpp"
#include "kernels/projection/weight_strips.hpp"

namespace mha::MHA_ISA {
namespace {

/// Where the sums of bytes begin: minus the row's offset times the sums of the weights, and what the bytes of outliers
/// lack times their weights. It is put where the results go later.
template <int N>
__attribute__((noinline)) void begin_sums(const WeightStrip& g, Index first, Index rows) {
  constexpr Index L = kLanes<float>;
  const ProjectionTile& tile = *g.tile;
  const float* const weight_sums = g.row_of_columns(tile.bias, 2);
  for (Index r = first; r < first + rows; ++r) {
    const QuantizedRow& row = tile.x_scales[r];
    const auto* const x = static_cast<const unsigned char*>(tile.x) + r * tile.x_row;
    const auto* const listed = reinterpret_cast<const Excess*>(x + quantized_features_bytes(tile.in_features));
    Ints sums[N] = {};
    const auto add = [&](const Excess* from, std::int32_t count) MHA_INLINE_LAMBDA {
      for (const Excess* excess = from; excess < from + count; ++excess) {
        const auto* const panel = reinterpret_cast<const std::int32_t*>(g.row_of_columns(tile.panel, excess->word));
        const auto bytes = ByteProducts::broadcast(reinterpret_cast<const unsigned char*>(&excess->bytes));
        MHA_UNROLL
        for (int j = 0; j < N; ++j)
          sums[j] = ByteProducts::multiply_add(bytes, ByteProducts::load(panel + j * L), sums[j]);
      }
    };
    add(listed, row.below);
    MHA_UNROLL
    for (int j = 0; j < N; ++j) sums[j] = -sums[j];
    add(listed + most_outliers(tile.in_features) - row.above, row.above);
    MHA_UNROLL
    for (int j = 0; j < N; ++j) {
      const Ints begin = load_vector<Ints>(weight_sums + j * L) * -row.offset + sums[j] * 256;
      __builtin_memcpy(g.out[j] + r * g.out_row, &begin, sizeof begin);
    }
  }
}

template <int M, int N, int kAhead>
struct Int8WeightsStrip {
  static void run(const WeightStrip& g, Index row) {
    using P = Packet<float>;
    constexpr Index L = kLanes<float>;
    const ProjectionTile& tile = *g.tile;
    const float *const bias = g.row_of_columns(tile.bias, 0), *const scales = g.row_of_columns(tile.bias, 1);
    if constexpr (ByteProducts::kHasOffset) begin_sums<N>(g, row, M);
    const auto start = [&](int i, int j) MHA_INLINE_LAMBDA {
      return ByteProducts::kHasOffset ? load_vector<Ints>(g.out[j] + (row + i) * g.out_row) : Ints{};
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
  }
};

template <class, int M, int N>
using Int8WeightsRows = Int8WeightsStrip<M, N, 0>;
template <class, int M, int N>
using Int8WeightsFirstRows = Int8WeightsStrip<M, N, panel_rows_ahead(M)>;

inline void project_int8_weights(const ProjectionTile& tile, void* scratch) {
  static constexpr WeightStripTable<Int8WeightsRows, ByteProducts, kRowVectors> strips;
  static constexpr WeightStripTable<Int8WeightsFirstRows, ByteProducts, kVectors> first;
  project_narrow(tile, scratch, strips, first);
}

}  // namespace
}  // namespace mha::MHA_ISA

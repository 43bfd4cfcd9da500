// Projections of quantized rows (quantize_rows.hpp) with int8 weights: exact sums of integers, scaled once.
//
//   out = activation(sum * (x_scale * weight_scale) + bias)
//
// Numerics: sums are exact, and each operation on f32 is rounded by itself, so all instruction sets give the same bits.
#pragma once

#include "kernels/products/byte_products.hpp"
#include "kernels/projection/project_tile.hpp"
#include "kernels/projection/project_tiles.hpp"
#include "kernels/projection/quantize_rows.hpp"
#include "kernels/projection/weight_strips.hpp"

namespace mha::MHA_ISA {
namespace {

/// What sums of the bytes of row r lack: minus the row's offset times the sums of the weights, and what the bytes of
/// outliers leave out times their weights. `to(j)` is where vector j is put.
template <int N, class To>
MHA_INLINE void sum_beside_bytes(const WeightStrip& g, Index r, To to) {
  constexpr Index L = kLanes<float>;
  const ProjectionTile& tile = *g.tile;
  const float* const weight_sums = g.row_of_columns(tile.bias, 2);
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
    const Ints beside = load_vector<Ints>(weight_sums + j * L) * -row.offset + sums[j] * 256;
    __builtin_memcpy(to(j), &beside, sizeof beside);
  }
}

/// The result of sums of a vector of columns of row `row`.
MHA_INLINE Packet<float> scale_sums(const WeightStrip& g, Index row, Index column, const Ints& sums) {
  using P = Packet<float>;
  const ProjectionTile& tile = *g.tile;
  const P scale = pmul(pset1<P>(tile.x_scales[row].scale), pload<P>(g.row_of_columns(tile.bias, 1) + column));
  const P scaled = pmul(P(__builtin_convertvector(sums, Floats)), scale);
  return padd(scaled, pload<P>(g.row_of_columns(tile.bias, 0) + column));
}

/// Results of rows whose sums of bytes lie where they go. Outliers read a few rows of the panel, which the sums of bytes
/// have brought near: before them each would be waited for.
template <int N>
__attribute__((noinline)) void finish_sums(const WeightStrip& g, Index first, Index rows) {
  constexpr Index L = kLanes<float>;
  for (Index r = first; r < first + rows; ++r) {
    Ints beside[N];
    sum_beside_bytes<N>(g, r, [&](int j) MHA_INLINE_LAMBDA { return beside + j; });
    MHA_UNROLL
    for (int j = 0; j < N; ++j) {
      float* const out = g.out[j] + r * g.out_row;
      pstoreu(out, scale_sums(g, r, j * L, load_vector<Ints>(out) + beside[j]));
    }
  }
}

template <int M, int N, int kAhead>
struct Int8WeightsStrip {
  static void run(const WeightStrip& g, Index row) {
    constexpr Index L = kLanes<float>;
    const ProjectionTile& tile = *g.tile;
    const auto start = [](int, int) MHA_INLINE_LAMBDA { return Ints{}; };
    const auto finish = [&](int i, int j, const Ints& sums) MHA_INLINE_LAMBDA {
      float* const out = g.out[j] + (row + i) * g.out_row;
      if constexpr (ByteProducts::kHasOffset)
        __builtin_memcpy(out, &sums, sizeof sums);
      else
        pstoreu(out, scale_sums(g, row + i, j * L, sums));
    };
    ByteProducts::Tile::multiply<M, N, kAhead>(
        (tile.in_features + 3) / 4, static_cast<const unsigned char*>(tile.x) + row * tile.x_row, tile.x_row,
        Index{4} * ByteProducts::kFeatureBytes, reinterpret_cast<const std::int32_t*>(g.panel()), kPanelWidth<float>,
        start, finish);
    if constexpr (ByteProducts::kHasOffset) finish_sums<N>(g, row, M);
  }
};

template <class, int M, int N>
using Int8WeightsRows = Int8WeightsStrip<M, N, 0>;
template <class, int M, int N>
using Int8WeightsFirstRows = Int8WeightsStrip<M, N, panel_rows_ahead(M)>;

#ifdef MHA_TILES
/// For TileStrips.
struct Int8Tiles {
  using Instruction = ByteInstruction;
  static constexpr Index kOperandBytes = ByteProducts::kFeatureBytes;
  static constexpr bool kBegins = true;

  static Index words(Index in_features) { return (in_features + 3) / 4; }
  static void begin(const WeightStrip& g, Index row, float* sums) {
    sum_beside_bytes<kVectors>(g, row, [&](int j) MHA_INLINE_LAMBDA { return sums + Index{j} * kLanes<float>; });
  }
  MHA_INLINE static void finish(const WeightStrip& g, int n, Index row, const float* sums) {
    for (Index j = 0; j < n; ++j) {
      const Index column = j * kLanes<float>;
      pstoreu(g.out[j] + row * g.out_row, scale_sums(g, row, column, load_vector<Ints>(sums + column)));
    }
  }
};
#endif

inline void project_int8_weights(const ProjectionTile& tile, void* scratch) {
#ifdef MHA_TILES
  project_by_tiles<Int8Tiles, ByteProducts, Int8WeightsRows, Int8WeightsFirstRows>(tile, scratch);
#else
  static constexpr WeightStripTable<Int8WeightsRows, ByteProducts, kRowVectors> strips;
  static constexpr WeightStripTable<Int8WeightsFirstRows, ByteProducts, kVectors> first;
  project_narrow(tile, scratch, strips, first);
#endif
}

}  // namespace
}  // namespace mha::MHA_ISA

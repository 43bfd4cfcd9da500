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
#include "kernels/projection/rows_ahead.hpp"
#include "kernels/projection/weight_strips.hpp"

namespace mha::MHA_ISA {
namespace {

/// Words of a panel of int8 weights, of a vector of columns.
struct Int8PanelWords {
  MHA_INLINE static ByteProducts::Vector load(const WeightStrip& g, Index word, Index column) {
    return ByteProducts::load(reinterpret_cast<const std::int32_t*>(g.row_of_columns(g.tile->panel, word)) + column);
  }
};

/// The corrections of the sums of bytes of row r: minus the row's offset times the sums of the weights, and the excess
/// of outliers times their weights.
template <int N, class Words>
MHA_INLINE void sum_beside_bytes(const WeightStrip& g, Index r, Ints (&beside)[N]) {
  constexpr Index L = kLanes<float>;
  const ProjectionTile& tile = *g.tile;
  const float* const weight_sums = g.row_of_columns(tile.bias, 2);
  const QuantizedRow& row = tile.x_scales[r];
  const auto* const x = static_cast<const unsigned char*>(tile.x) + r * tile.x_row;
  const auto* const listed = reinterpret_cast<const Excess*>(x + quantized_features_bytes(tile.in_features));
  Ints sums[N] = {};
  const auto add = [&](const Excess* from, std::int32_t count) MHA_INLINE_LAMBDA {
    for (const Excess* excess = from; excess < from + count; ++excess) {
      const auto bytes = ByteProducts::broadcast(reinterpret_cast<const unsigned char*>(&excess->bytes));
      MHA_UNROLL
      for (int j = 0; j < N; ++j)
        sums[j] = ByteProducts::multiply_add(bytes, Words::load(g, excess->word, j * L), sums[j]);
    }
  };
  add(listed, row.below);
  MHA_UNROLL
  for (int j = 0; j < N; ++j) sums[j] = -sums[j];
  add(listed + most_outliers(tile.in_features) - row.above, row.above);
  MHA_UNROLL
  for (int j = 0; j < N; ++j) beside[j] = load_vector<Ints>(weight_sums + j * L) * -row.offset + sums[j] * 256;
}

/// The result of sums of a vector of columns of row `row`.
MHA_INLINE Packet<float> scale_sums(const WeightStrip& g, Index row, Index column, const Ints& sums) {
  using P = Packet<float>;
  const ProjectionTile& tile = *g.tile;
  const P scale = pmul(pset1<P>(tile.x_scales[row].scale), pload<P>(g.row_of_columns(tile.bias, 1) + column));
  const P scaled = pmul(P(__builtin_convertvector(sums, Floats)), scale);
  return padd(scaled, pload<P>(g.row_of_columns(tile.bias, 0) + column));
}

/// Results of row r, of whose vectors of columns the sums of bytes lie at sums(j). Outliers read a few rows of the
/// panel, which the sums of bytes have brought near: before them each would be waited for.
template <int N, class Words, class SumsAt>
MHA_INLINE void finish_row(const WeightStrip& g, Index r, SumsAt sums) {
  constexpr Index L = kLanes<float>;
  Ints beside[N];
  sum_beside_bytes<N, Words>(g, r, beside);
  MHA_UNROLL
  for (int j = 0; j < N; ++j)
    pstoreu(g.out[j] + r * g.out_row, scale_sums(g, r, j * L, load_vector<Ints>(sums(j)) + beside[j]));
}

/// The same of rows whose sums of bytes lie where their results go.
template <int N, class Words>
__attribute__((noinline)) void finish_rows_in_place(const WeightStrip& g, Index first, Index rows) {
  for (Index r = first; r < first + rows; ++r)
    finish_row<N, Words>(g, r, [&](int j) MHA_INLINE_LAMBDA { return g.out[j] + r * g.out_row; });
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
    if constexpr (ByteProducts::kHasOffset) finish_rows_in_place<N, Int8PanelWords>(g, row, M);
  }
};

template <class, int M, int N>
using Int8WeightsRows = Int8WeightsStrip<M, N, 0>;
template <class, int M, int N>
using Int8WeightsFirstRows = Int8WeightsStrip<M, N, narrow_rows_ahead(M)>;

#ifdef MHA_TILES
/// For TileStrips.
struct Int8Tiles {
  using Instruction = ByteInstruction;
  static constexpr Index kOperandBytes = ByteProducts::kFeatureBytes;

  static Index words(Index in_features) { return (in_features + 3) / 4; }
  static void finish(const WeightStrip& g, Index row, const float* sums) {
    finish_row<kVectors, Int8PanelWords>(g, row,
                                         [&](int j) MHA_INLINE_LAMBDA { return sums + Index{j} * kLanes<float>; });
  }
};
#endif

inline void project_int8_weights(const ProjectionTile& tile, void* scratch) {
  prefetch_bias(tile, 3);
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

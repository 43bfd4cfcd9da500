// Projections by tiles: rows as they lie are the first factor, 16 rows of a panel by 16 columns the second one. So nothing
// is packed, and panels are those of all instruction sets.
//
// Up to 32 rows are multiplied by 32 columns at a time. Their sums stay in level 1 until all columns of the strip are
// done, and then become results. Fewer than 16 rows take tiles of fewer rows. Where more rows do not fill the last
// tile, it begins earlier, and the rows that it shares with the tile before are computed twice, with the same bits.
#pragma once

#include "kernels/products/tile_blocks.hpp"
#include "kernels/projection/weight_strips.hpp"

#ifdef MHA_TILES

namespace mha::MHA_ISA {
namespace {

/// Tiles for two rows and more. `Kind` says of a kind of products
///
///   Instruction        which multiplies
///   kOperandBytes      bytes of what x_row counts
///   words              rows of a panel
///   finish             from the sums of a row to its results
///
/// A single row is left to vectors. That is assumed to be right, from measurements of the parts on Sapphire Rapids: a tile
/// of weights comes from level 2 in 39 cycles, whatever is done with it; vectors take 32 for a row, 48 for two.
template <class Kind>
struct TileStrips {
  static constexpr Index kColumns = Index{kVectors} * kLanes<float>;  // of a strip

  template <class After>
  static void run(Index rows, const WeightStrip& g, After after) {
    const TileState state;
    const Index words = Kind::words(g.tile->in_features), rest = words % kTileRows;
    alignas(kVectorBytes) std::byte last[kTileRows * kPanelBytes];  // of the panel, filled up with zeros
    if (rest > 0) {
      __builtin_memset(last, 0, sizeof last);
      for (Index word = 0; word < rest; ++word)
        __builtin_memcpy(last + word * kPanelBytes, g.panel() + (words - rest + word) * kPanelBytes,
                         std::size_t(kColumns * 4));
    }
    for_each_tile_rows(rows, [&](const TileRows& tiles) {
      multiply_rows(g, tiles, words / kTileRows, rest > 0 ? last : nullptr);
      after(tiles.begin(), tiles.count());
    });
  }

 private:
  static __attribute__((noinline)) void multiply_rows(const WeightStrip& g, const TileRows& tiles, Index steps,
                                                      const std::byte* last) {
    alignas(kVectorBytes) float sums[2][kTileRows * kColumns];
    const auto* const x = static_cast<const std::byte*>(g.tile->x);
    const Index x_row = g.tile->x_row * Kind::kOperandBytes;
    for (Index column = 0; column < kColumns; column += 2 * kTileColumns) {
      const bool are_two = column + kTileColumns < kColumns;
      TileBlock block{{x + tiles.first[0] * x_row, x + tiles.first[1] * x_row},
                      x_row,
                      g.panel() + column * 4,
                      kPanelBytes,
                      {sums[0] + column, sums[1] + column},
                      kColumns * 4,
                      steps,
                      false};
      if (steps > 0 || !last) multiply_tiles<typename Kind::Instruction>(block, tiles.are_two, are_two);
      if (!last) continue;
      block.adds = steps > 0;
      block.a[0] = static_cast<const std::byte*>(block.a[0]) + steps * kTileBytes;
      block.a[1] = static_cast<const std::byte*>(block.a[1]) + steps * kTileBytes;
      block.b = last + column * 4;
      block.steps = 1;
      multiply_tiles<typename Kind::Instruction>(block, tiles.are_two, are_two);
    }
    for (int i = 0; i <= int(tiles.are_two); ++i)
      for (Index r = 0; r < tiles.height; ++r) Kind::finish(g, tiles.first[i] + r, sums[i] + r * kColumns);
  }
};

/// project_narrow() by tiles; a single row by strips of vectors, which have tables for all other instruction sets.
template <class Kind, class Products, template <class, int, int> class Rows, template <class, int, int> class FirstRows>
void project_by_tiles(const ProjectionTile& tile, void* scratch) {
  project_narrow(tile, scratch, [&](int vectors, const WeightStrip& strip, auto after) {
    if (tile.rows != 1) return TileStrips<Kind>::run(tile.rows, strip, after);
    (vectors > kVectors ? &Rows<Products, 1, kRowVectors>::run : &FirstRows<Products, 1, kVectors>::run)(strip, 0);
    after(Index{0}, Index{1});
  });
}

}  // namespace
}  // namespace mha::MHA_ISA

#endif

// Projections by tiles: rows as they lie are the first factor, 16 rows of a panel by 16 columns the second one. So
// nothing is packed, and all instruction sets share the panels.
//
// Up to 32 rows are multiplied by 32 columns at a time. Their sums stay in level 1 until all columns of the strip are
// done, and become results while the next rows are multiplied. Fewer than 16 rows take tiles of fewer rows. Where more
// rows do not fill the last tile, it begins earlier, and the rows that it shares with the tile before are computed
// twice, with the same bits.
#pragma once

#include "kernels/products/tile_blocks.hpp"
#include "kernels/projection/weight_strips.hpp"

#ifdef MHA_TILES

namespace mha::MHA_ISA {
namespace {

/// Tiles for two rows and more. `Kind` says of a kind of products
///
///   Instruction        which multiplies
///   kOperandBytes      bytes of the unit of x_row
///   words              rows of a panel
///   finish             from the sums of a row to its results
///
/// A single row is left to vectors. That is assumed to be right, from measurements of the parts on Sapphire Rapids: a
/// tile of weights comes from level 2 in 39 cycles, whatever is done with it; vectors take 32 for a row, 48 for two.
template <class Kind>
struct TileStrips {
  static constexpr Index kColumns = Index{kVectors} * kLanes<float>;  // of a strip

  template <class After>
  static void run(Index rows, const WeightStrip& g, After after) {
    const TileState state(rows);
    const Weights weights(g);
    alignas(kVectorBytes) float sums[2][kBlockRows * kColumns];
    Block before{0, 0, sums[1]};
    const auto finish_rows = [&](Index from, Index to, auto beside) MHA_INLINE_LAMBDA {
      for (Index r = from; r < to; ++r) {
        Kind::finish(g, before.first + r, before.sums + r * kColumns);
        beside(r - from, to - from);
      }
    };
    for (Index done = 0; done < rows;) {
      const TileRows tiles(done, rows);
      const Block block{tiles.begin(), tiles.end() - tiles.begin(), before.sums == sums[0] ? sums[1] : sums[0]};
      for (Index column = 0; column < kColumns; column += kBlockColumns) {
        TileSteps<Instruction> steps(weights.product(g, block, column));
        finish_rows(before.rows * column / kColumns, before.rows * (column + kBlockColumns) / kColumns,
                    [&](Index piece, Index pieces) MHA_INLINE_LAMBDA { steps.beside(piece, pieces); });
        steps.finish();
        if (weights.have_rest) multiply_tiles<Instruction>(weights.product_of_rest(g, block, column));
      }
      if (before.rows > 0) after(before.first, before.rows);
      before = block;
      done = tiles.end();
    }
    finish_rows(0, before.rows, kNothingBeside);
    after(before.first, before.rows);
  }

 private:
  using Instruction = typename Kind::Instruction;

  /// Rows that are multiplied at a time, and their sums.
  struct Block {
    Index first, rows;
    float* sums;
  };

  /// The strip of the panel: whole steps of 16 rows as they lie, and the rest of them, or of none at all, filled up
  /// with zeros.
  struct Weights {
    Index steps;
    bool have_rest;
    alignas(kVectorBytes) std::byte rest[kTileRows * kPanelBytes];

    explicit Weights(const WeightStrip& g)
        : steps(Kind::words(g.tile->in_features) / kTileRows),
          have_rest(steps == 0 || Kind::words(g.tile->in_features) % kTileRows > 0) {
      if (!have_rest) return;
      __builtin_memset(rest, 0, sizeof rest);
      for (Index word = steps * kTileRows; word < Kind::words(g.tile->in_features); ++word)
        __builtin_memcpy(rest + word % kTileRows * kPanelBytes, g.panel() + word * kPanelBytes,
                         std::size_t(kColumns * 4));
    }

    TileBlock product(const WeightStrip& g, const Block& block, Index column) const {
      const Index x_row = g.tile->x_row * Kind::kOperandBytes;
      return {static_cast<const std::byte*>(g.tile->x) + block.first * x_row,
              x_row,
              block.rows,
              g.panel() + column * 4,
              kPanelBytes,
              block.sums + column,
              kColumns * 4,
              steps,
              column + kTileColumns < kColumns,
              false};
    }
    TileBlock product_of_rest(const WeightStrip& g, const Block& block, Index column) const {
      TileBlock last = product(g, block, column);
      last.a = static_cast<const std::byte*>(last.a) + steps * kTileBytes;
      last.b = rest + column * 4;
      last.steps = 1;
      last.adds = steps > 0;
      return last;
    }
  };
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

// Products by tiles: blocks of up to 32 rows and 32 columns of sums, which are four of the eight tile registers.
//
// Four loads serve four products of 16 cycles. Tiles of factors are zeroed after their last use: that gives the registers
// behind them back, and where a neighbour on the core is awake, as on rented machines it mostly is, a product takes 42
// cycles in place of 75. Where it is asleep nothing changes (Sapphire Rapids: docs/decisions/0021).
#pragma once

#include "kernels/products/byte_products.hpp"
#include "kernels/products/strips.hpp"
#include "kernels/products/tile_products.hpp"

#ifdef MHA_TILES

namespace mha::MHA_ISA {
namespace {

/// Where the factors and the sums of a block lie. Bytes lie between rows.
struct TileBlock {
  const void* a[2];  // the first factor of each 16 rows, at any address
  Index a_row;
  const void* b;  // 16 rows of 16 or 32 operands of four bytes for each step, all one after another
  Index b_row;
  void* sums[2];  // of each 16 rows: 16 or 32 numbers in a row
  Index sums_row;
  Index steps;  // of 64 bytes of the rows of A
  bool adds;    // to what is at `sums`, else to 0
};

struct PairInstruction {
  template <int kC, int kA, int kB>
  MHA_INLINE static void multiply() {
    Tiles::multiply_bf16<kC, kA, kB>();
  }
};
struct ByteInstruction {
  template <int kC, int kA, int kB>
  MHA_INLINE static void multiply() {
    Tiles::multiply_bytes<kC, kA, kB>();
  }
};

/// Tiles 0 to 3 hold the sums, row of tiles by row of tiles; 4 and 5 the rows of A, 6 and 7 the columns of B.
template <class Instruction, bool kTwoRows, bool kTwoColumns>
void multiply_tiles(const TileBlock& block) {
  const auto second = [](const void* first) MHA_INLINE_LAMBDA { return static_cast<const char*>(first) + kTileBytes; };
  if (block.adds) {
    Tiles::load<0>(block.sums[0], block.sums_row);
    if constexpr (kTwoColumns) Tiles::load<1>(second(block.sums[0]), block.sums_row);
    if constexpr (kTwoRows) Tiles::load<2>(block.sums[1], block.sums_row);
    if constexpr (kTwoRows && kTwoColumns) Tiles::load<3>(second(block.sums[1]), block.sums_row);
  } else {
    Tiles::zero<0>();
    if constexpr (kTwoColumns) Tiles::zero<1>();
    if constexpr (kTwoRows) Tiles::zero<2>();
    if constexpr (kTwoRows && kTwoColumns) Tiles::zero<3>();
  }
  for (Index step = 0; step < block.steps; ++step) {
    const char* const b = static_cast<const char*>(block.b) + step * kTileRows * block.b_row;
    Tiles::load<4>(static_cast<const char*>(block.a[0]) + step * kTileBytes, block.a_row);
    Tiles::load<6>(b, block.b_row);
    Instruction::template multiply<0, 4, 6>();
    if constexpr (kTwoColumns) {
      Tiles::load<7>(b + kTileBytes, block.b_row);
      Instruction::template multiply<1, 4, 7>();
    }
    Tiles::zero<4>();
    if constexpr (kTwoRows) {
      Tiles::load<5>(static_cast<const char*>(block.a[1]) + step * kTileBytes, block.a_row);
      Instruction::template multiply<2, 5, 6>();
    }
    Tiles::zero<6>();
    if constexpr (kTwoRows && kTwoColumns) Instruction::template multiply<3, 5, 7>();
    if constexpr (kTwoRows) Tiles::zero<5>();
    if constexpr (kTwoColumns) Tiles::zero<7>();
  }
  const auto second_sums = [](void* first) MHA_INLINE_LAMBDA { return static_cast<char*>(first) + kTileBytes; };
  Tiles::store<0>(block.sums[0], block.sums_row);
  if constexpr (kTwoColumns) Tiles::store<1>(second_sums(block.sums[0]), block.sums_row);
  if constexpr (kTwoRows) Tiles::store<2>(block.sums[1], block.sums_row);
  if constexpr (kTwoRows && kTwoColumns) Tiles::store<3>(second_sums(block.sums[1]), block.sums_row);
}

template <class Instruction>
void multiply_tiles(const TileBlock& block, bool has_two_rows, bool has_two_columns) {
  if (has_two_rows)
    (has_two_columns ? multiply_tiles<Instruction, true, true> : multiply_tiles<Instruction, true, false>)(block);
  else
    (has_two_columns ? multiply_tiles<Instruction, false, true> : multiply_tiles<Instruction, false, false>)(block);
}

/// Rows [first, first + count) of a product, as one or two tiles of 16 rows; the second one, or the only one, may begin
/// before the end of what precedes it. Rows that are computed twice have the same bits.
struct TileRows {
  Index first[2];
  Index height;  // of a tile
  bool are_two;

  Index begin() const { return first[0]; }
  Index count() const { return first[are_two] + height - first[0]; }
};

/// Calls visit(TileRows) until `rows` rows are done: fewer than 16 with tiles of so many.
template <class Visit>
MHA_INLINE void for_each_tile_rows(Index rows, Visit visit) {
  if (rows < kTileRows) {
    if (rows == 0) return;
    Tiles::configure(int(rows));
    visit(TileRows{{0, 0}, rows, false});
    Tiles::configure(kTileRows);
    return;
  }
  for (Index row = 0; row < rows; row += Index{2} * kTileRows) {
    const Index last = rows - kTileRows, next = row + kTileRows;
    visit(TileRows{{row < last ? row : last, next < last ? next : last}, kTileRows, next < rows});
  }
}

/// Sums [rows][lanes] of the products of `depth` pairs, alone or added to what is there: A has rows that are `a_row` pairs
/// apart, B and the sums have rows that are `width` numbers apart. `upcoming` is prefetched between the rows.
inline void multiply_rows_by_tiles(const Pair* a, Index a_row, Index rows, const Pair* b, float* sums, Index width,
                                   Index lanes, Index depth, bool adds, const Upcoming& upcoming) {
  for_each_tile_rows(rows, [&](const TileRows& tiles) {
    const Index first = tiles.begin(), last = first + tiles.count();
    upcoming.prefetch(upcoming.rows * first / rows, upcoming.rows * last / rows);
    for (Index lane = 0; lane < lanes; lane += Index{2} * kTileColumns)
      multiply_tiles<PairInstruction>({{a + tiles.first[0] * a_row, a + tiles.first[1] * a_row},
                                       a_row * Index(sizeof(Pair)),
                                       b + lane,
                                       width * Index(sizeof(Pair)),
                                       {sums + tiles.first[0] * width + lane, sums + tiles.first[1] * width + lane},
                                       width * Index(sizeof(float)),
                                       depth / kTileColumns,
                                       adds},
                                      tiles.are_two, lane + kTileColumns < lanes);
  });
}

}  // namespace
}  // namespace mha::MHA_ISA

#endif

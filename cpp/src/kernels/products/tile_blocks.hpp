// Products by tiles: blocks of up to 32 rows and 32 columns of sums, which are four of the eight tile registers.
//
// Four loads serve four products of 16 cycles. Tiles of factors are zeroed after their last use: that releases the
// registers, and a product takes 42 cycles instead of 75 while the other thread of the core is busy, as it mostly is on
// rented machines. If that thread is idle, nothing changes (Sapphire Rapids: docs/decisions/0021).
#pragma once

#include <type_traits>

#include "kernels/products/byte_products.hpp"
#include "kernels/products/strips.hpp"
#include "kernels/products/tile_products.hpp"

#ifdef MHA_TILES

namespace mha::MHA_ISA {
namespace {

/// Rows and columns of sums that are multiplied at a time.
constexpr Index kBlockRows = Index{2} * kTileRows, kBlockColumns = 2 * kTileColumns;

/// Where the factors and the sums of a product lie. Bytes lie between rows.
struct TileBlock {
  const void* a;  // the first factor, at any address
  Index a_row, rows;
  const void* b;  // 16 rows of 16 or 32 operands of four bytes for each step, all one after another
  Index b_row;
  void* sums;  // of each row of A 16 or 32 numbers
  Index sums_row;
  Index steps;  // of 64 bytes of the rows of A
  bool has_two_columns;
  bool adds;  // to the numbers at `sums`, else to 0; then rows are whole tiles, or no more than two
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

/// Rows of a product as one or two tiles, from row `begin` on. The second one, or the only one, may begin before the
/// end of the rows that are done: rows that are computed twice have the same bits. Fewer rows than 16 are one lower
/// tile.
struct TileRows {
  Index first[2];
  Index height;  // of a tile
  bool are_two;

  TileRows(Index begin, Index rows) : height(rows < kTileRows ? rows : kTileRows), are_two(begin + height < rows) {
    const Index last = rows - height, second = begin + height;
    first[0] = begin < last ? begin : last;
    first[1] = second < last ? second : last;
  }
  Index begin() const { return first[0]; }
  Index end() const { return first[are_two] + height; }
};

/// A product step by step. next() multiplies one tile of rows by one or two of columns: 16 cycles for each in a unit of
/// its own, or 42. So kernels let vectors work between the steps, by beside(). Tiles are configured for block.rows
/// rows: TileState, FewTileRows.
///
/// Tiles 0 to 3 hold the sums, row of tiles by row of tiles; 4 and 5 the rows of A, 6 and 7 the columns of B.
template <class Instruction>
class TileSteps {
 public:
  explicit TileSteps(const TileBlock& block, const Upcoming& upcoming = {})
      : block_(block),
        upcoming_(upcoming),
        count_((block.rows + kTileRows - 1) / kTileRows * block.steps),
        rows_(0, block.rows) {
    point_at_rows();
    if (block.steps == 0 && !block.adds) clear_sums();  // no step reaches them
  }

  MHA_INLINE void next() {
    if (!is_second_) {
      if (step_ == 0) begin_rows();
      Tiles::load<4>(a_[0] + step_ * kTileBytes, block_.a_row);
      Tiles::load<6>(b_, block_.b_row);
      Instruction::template multiply<0, 4, 6>();
      if (block_.has_two_columns) {
        Tiles::load<7>(b_ + kTileBytes, block_.b_row);
        Instruction::template multiply<1, 4, 7>();
      }
      Tiles::zero<4>();
      if (rows_.are_two) {
        is_second_ = true;
        ++done_;
        return;
      }
      Tiles::zero<6>();
    } else {
      Tiles::load<5>(a_[1] + step_ * kTileBytes, block_.a_row);
      Instruction::template multiply<2, 5, 6>();
      Tiles::zero<6>();
      if (block_.has_two_columns) Instruction::template multiply<3, 5, 7>();
      Tiles::zero<5>();
      is_second_ = false;
    }
    if (block_.has_two_columns) Tiles::zero<7>();
    ++done_;
    b_ += kTileRows * block_.b_row;
    if (++step_ == block_.steps) end_rows();
  }

  __attribute__((noinline)) void finish() {
    while (done_ < count_) next();
  }

  /// Multiplies the share of steps that is due by now; vectors call it after each of their `pieces`, from 0 on.
  MHA_INLINE void beside(Index piece, Index pieces) {
    while (done_ * pieces < count_ * (piece + 1)) next();
  }

 private:
  void point_at_rows() {
    for (int i = 0; i < 2; ++i) a_[i] = static_cast<const char*>(block_.a) + rows_.first[i] * block_.a_row;
    b_ = static_cast<const char*>(block_.b);
  }

  MHA_INLINE void begin_rows() {
    upcoming_.prefetch_share(rows_.first[0], rows_.end(), block_.rows);
    if (!block_.adds) {
      Tiles::zero<0>();
      if (block_.has_two_columns) Tiles::zero<1>();
      if (rows_.are_two) Tiles::zero<2>();
      if (rows_.are_two && block_.has_two_columns) Tiles::zero<3>();
      return;
    }
    for_each_sum([this](auto tile, char* at)
                     MHA_INLINE_LAMBDA { Tiles::load<decltype(tile)::value>(at, block_.sums_row); });
  }

  MHA_INLINE void end_rows() {
    for_each_sum([this](auto tile, char* at)
                     MHA_INLINE_LAMBDA { Tiles::store<decltype(tile)::value>(at, block_.sums_row); });
    step_ = 0;
    rows_ = TileRows(rows_.end(), block_.rows);
    point_at_rows();
  }

  __attribute__((noinline)) void clear_sums() const {
    for (Index r = 0; r < block_.rows; ++r)
      __builtin_memset(static_cast<char*>(block_.sums) + r * block_.sums_row, 0,
                       std::size_t(block_.has_two_columns ? 2 * kTileBytes : kTileBytes));
  }

  template <class Visit>
  MHA_INLINE void for_each_sum(Visit visit) const {
    char* const first = static_cast<char*>(block_.sums) + rows_.first[0] * block_.sums_row;
    char* const second = static_cast<char*>(block_.sums) + rows_.first[1] * block_.sums_row;
    visit(Tile<0>{}, first);
    if (block_.has_two_columns) visit(Tile<1>{}, first + kTileBytes);
    if (rows_.are_two) visit(Tile<2>{}, second);
    if (rows_.are_two && block_.has_two_columns) visit(Tile<3>{}, second + kTileBytes);
  }
  template <int kTile>
  using Tile = std::integral_constant<int, kTile>;

  const TileBlock block_;
  const Upcoming upcoming_;
  const Index count_;  // of steps
  TileRows rows_;
  const char *a_[2], *b_;
  Index step_ = 0, done_ = 0;
  bool is_second_ = false;
};

/// The whole product.
template <class Instruction>
__attribute__((noinline)) void multiply_tiles(const TileBlock& block, const Upcoming& upcoming = {}) {
  TileSteps<Instruction>(block, upcoming).finish();
}

}  // namespace
}  // namespace mha::MHA_ISA

#endif

// Shared by projections whose weights are narrower than their sums: strips as wide as a register tile, and the places
// of their columns.
//
// These are weights of WeightFormat::bf16 and int8, and pairs of bf16. A word of four bytes, one column of one row of a
// panel, holds two or four input features of one output feature. Results are f32.
#pragma once

#include "kernels/kernel_table.hpp"
#include "kernels/products/kinds.hpp"
#include "kernels/products/strips.hpp"
#include "kernels/rows/activate.hpp"

namespace mha::MHA_ISA {
namespace {

/// One strip of columns of a panel.
struct WeightStrip {
  const ProjectionTile* tile;
  Index column;             // the first
  float* out[kRowVectors];  // where each vector of columns goes
  Index out_row;

  const float* row_of_columns(const void* rows, Index row) const {
    return static_cast<const float*>(rows) + row * (kPanelBytes / Index(sizeof(float))) + column;
  }
  const std::byte* panel() const { return static_cast<const std::byte*>(tile->panel) + column * Index(sizeof(float)); }
};

/// Strips of all heights, at full width only, and wide ones of a single row: narrower ones would save a little where a
/// panel ends in padding, for three times the code.
template <template <class, int, int> class Strip, class Products, int kMostVectors>
using WeightStripTable = StripTable<Strip, Products, WeightStrip, kVectors, kMostVectors>;

/// Calls multiply(vectors, strip, after) for each group of columns as wide as a register tile, which computes all rows
/// and calls after(row, rows) for those that are done. Results that are not whole vectors of contiguous columns go
/// through `scratch`, which has projection_scratch() bytes. A single row takes kWidest vectors of columns.
template <int kWidest = kRowVectors, class Multiply>
MHA_INLINE void project_narrow(const ProjectionTile& tile, void* scratch, Multiply multiply) {
  constexpr Index L = kLanes<float>, kColumns = kPanelBytes / Index(sizeof(float));
  constexpr Index kGroup = kVectorBytes / Index(sizeof(float)), kGroups = kPanelBytes / kVectorBytes;
  float* const sums = static_cast<float*>(scratch);
  bool is_direct = tile.out_step == 1;
  Index columns = 0;  // without the padding at the end
  for (Index g = 0; g < kGroups; ++g) {
    is_direct = is_direct && tile.group_columns[g] == kGroup;
    if (tile.group_columns[g] > 0) columns = (g + 1) * kGroup;
  }
  for (Index column = 0, width; column < columns; column += width) {
    const int vectors = tile.rows == 1 && columns - column >= kWidest * L ? kWidest : kVectors;
    width = vectors * L;
    WeightStrip strip{&tile, column, {}, is_direct ? tile.out_row : kColumns};
    for (Index j = 0; j < vectors; ++j) {
      const Index at = column + j * L;
      strip.out[j] = is_direct ? static_cast<float*>(tile.out[at / kGroup]) + at % kGroup : sums + at;
    }
    multiply(vectors, strip, [&](Index row, Index rows) {
      activate<float>(tile.activation, strip.out, vectors, row, rows, strip.out_row);
    });
  }
  if (is_direct) return;
  for (Index group = 0; group < columns / kGroup; ++group)
    for (Index r = 0; r < tile.rows; ++r) {
      const float* const from = sums + r * kColumns + group * kGroup;
      float* const to = static_cast<float*>(tile.out[group]) + r * tile.out_row;
      for (Index c = 0; c < tile.group_columns[group]; ++c) to[c * tile.out_step] = from[c];
    }
}

/// The same by tables of strips; `first` is the table for the first strip of rows.
template <class Rows, class FirstRows>
void project_narrow(const ProjectionTile& tile, void* scratch, const Rows& strips, const FirstRows& first) {
  project_narrow(tile, scratch, [&](int vectors, const WeightStrip& strip, auto after) {
    strips.run(vectors, tile.rows, strip, {}, first.strips, after);
  });
}

}  // namespace
}  // namespace mha::MHA_ISA

// Projections: rows of activations times a packed weight panel, plus bias.
//
// Weights are packed once into panels [in_features][kPanelBytes] and activations are read by broadcast from where they
// lie, so a call packs nothing (the "sup" form of BLIS). A panel is taken kDepth features at a time: that part of the
// panel is read again for every strip of rows and comes from level 2, the rows' own part from level 1. With 6 x 64
// tiles each 256 bytes of panel feed 384 multiply-adds, 21 bytes a cycle on a core that does two 16-lane multiply-adds a
// cycle, a third of what level 2 delivers.
#pragma once

#include "kernel_table.hpp"
#include "microkernel.hpp"

namespace mha::MHA_ISA {

/// Features in a block: 128 KB of panel, within any level 2. Also the length of the longest chain of additions: block
/// sums are added up, which keeps the rounding error of wide layers near that of a blocked summation.
constexpr Index kDepth = 512;

template <class T>
constexpr Index kPanelWidth = kPanelBytes / Index(sizeof(T));

template <class T>
struct ProjectionArguments {
  Index depth;
  const T* x;
  Index x_row, x_step;
  const T* panel;  // at the strip of columns
  const T* start;  // the bias, or null: go on from sums
  T* sums;         // [rows][kPanelWidth], at the strip of columns
};

template <class T, int M, int N>
struct ProjectRows {
  static void run(const ProjectionArguments<T>& g, Index row) {
    using P = Packet<T>;
    constexpr Index L = kLanes<T>;
    T* sums = g.sums + row * kPanelWidth<T>;
    const T* before = g.start ? g.start : sums;
    const Index before_row = g.start ? 0 : kPanelWidth<T>;
    multiply_tile<T, M, N>(
        g.depth, g.x + row * g.x_row, g.x_row, g.x_step, g.panel, kPanelWidth<T>,
        [](int, int) MHA_INLINE_LAMBDA { return pset1<P>(T(0)); },
        [&](int i, int j, const P& sum) MHA_INLINE_LAMBDA {
          pstore(sums + i * kPanelWidth<T> + j * L, padd(pload<P>(before + i * before_row + j * L), sum));
        });
  }
};

template <class T>
std::size_t projection_scratch(Index rows) {
  return std::size_t(rows * kPanelBytes);
}

template <class T>
void project_tile(const ProjectionTile& tile, void* scratch) {
  static constexpr StripTable<ProjectRows, T, ProjectionArguments<T>> project;
  constexpr Index kGroup = kVectorBytes / Index(sizeof(T));
  T* sums = static_cast<T*>(scratch);
  Index width = kPanelWidth<T>;
  while (width > 0 && tile.group_columns[(width - 1) / kGroup] == 0) width -= kGroup;  // padding at the end

  Index k = 0;
  do {
    const Index depth = tile.in_features - k < kDepth ? tile.in_features - k : kDepth;
    for (Index column = 0; column < width; column += kWidth<T>) {
      const Index rest = width - column < kWidth<T> ? width - column : kWidth<T>;
      project(int((rest + kLanes<T> - 1) / kLanes<T>), tile.rows,
              {depth, static_cast<const T*>(tile.x) + k * tile.x_step, tile.x_row, tile.x_step,
               static_cast<const T*>(tile.panel) + k * kPanelWidth<T> + column,
               k == 0 ? static_cast<const T*>(tile.bias) + column : nullptr, sums + column});
    }
    k += depth;
  } while (k < tile.in_features);

  for (Index group = 0; group < width / kGroup; ++group) {
    const Index columns = tile.group_columns[group];
    for (Index r = 0; r < tile.rows; ++r) {
      const T* from = sums + r * kPanelWidth<T> + group * kGroup;
      T* to = static_cast<T*>(tile.out[group]) + r * tile.out_row;
      if (columns == kGroup && tile.out_step == 1)
        for (Index c = 0; c < kGroup; ++c) to[c] = from[c];
      else
        for (Index c = 0; c < columns; ++c) to[c * tile.out_step] = from[c];
    }
  }
}

}  // namespace mha::MHA_ISA

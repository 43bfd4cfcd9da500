// Projections: out = activation(x W + bias), rows of activations times one packed weight panel.
//
// Weights are packed once into panels [in_features][kPanelBytes]. Activations are read by broadcast from where they
// lie. So a call packs nothing (the "sup" form of BLIS: Van Zee and van de Geijn, "BLIS", 2015).
//
// Memory traffic: a panel is taken kDepth features at a time. That part of it is read again for every strip of rows and
// comes from level 2; the same features of the rows come from level 1. With tiles of 6 x 64 each 256 bytes of panel
// feed 384 multiply-adds: 21 bytes a cycle on a core that does two 16-lane multiply-adds a cycle, a third of the
// bandwidth of level 2. A narrower tile takes a strip of the panel's columns for all rows, and fetches the next strip
// meanwhile. A single row takes as many columns side by side as it has accumulators, and so reads the panel in the
// order of addresses.
//
// Numerics: an element is a sum over the features in partial sums (PacketTile::multiply_long) within blocks of kDepth,
// both counted from feature 0, whatever rows are computed with it.
#pragma once

#include "kernels/kernel_table.hpp"
#include "kernels/products/kinds.hpp"
#include "kernels/products/strips.hpp"
#include "kernels/projection/rows_ahead.hpp"
#include "kernels/rows/activate.hpp"

namespace mha::MHA_ISA {
namespace {

/// Features in a block: 192 KB of panel, a fifth of level 2 on Zen. The 768 features of BERT are one block.
constexpr Index kDepth = 768;

template <class T>
constexpr Index kPanelWidth = kPanelBytes / Index(sizeof(T));

template <class Products>
struct ProjectionArguments {
  using T = typename Products::Sum;
  Index depth;
  const typename Products::Operand* x;
  Index x_row, x_step;
  const typename Products::PanelOperand* panel;  // at the strip of columns
  const T* start;                                // the start: the bias (start_row = 0) or the sums so far
  Index start_row;
  T* out[kRowVectors];  // where each vector of columns goes: the sums so far, or the result
  Index out_row;
};

/// M rows of N vectors of columns. Results go from the registers to where they belong: between multiply-adds nothing
/// waits for these stores, while a pass of its own would wait for memory.
template <class Products, int M, int N, int kAhead>
struct ProjectStrip {
  static void run(const ProjectionArguments<Products>& g, Index row) {
    using T = typename Products::Sum;
    using P = Packet<T>;
    constexpr Index L = kLanes<T>;
    const T* start = g.start + row * g.start_row;
    Products::Tile::template multiply_long<M, N, kAhead>(
        g.depth, g.x + row * g.x_row, g.x_row, g.x_step, g.panel, kPanelWidth<T>,
        [&](int i, int j, const P& sum) MHA_INLINE_LAMBDA {
          pstoreu(g.out[j] + (row + i) * g.out_row, padd(pload<P>(start + i * g.start_row + j * L), sum));
        });
  }
};

template <class Products, int M, int N>
using ProjectRows = ProjectStrip<Products, M, N, panel_rows_ahead_later(M)>;
template <class Products, int M, int N>
using ProjectFirstRows = ProjectStrip<Products, M, N, panel_rows_ahead(M)>;

/// Strips are as wide as a register tile, or half of that, and wider for a single row. A quarter and three quarters,
/// for panels that end in padding, would be half of the code.
template <template <class, int, int> class Strip, class Products, int kMostVectors>
using ProjectTable = StripTable<Strip, Products, ProjectionArguments<Products>, kVectors / 2, kMostVectors>;

/// Prefetches the next strip of columns of a panel, whose rows have `left` bytes from `columns` on, a little at a time,
/// while `rows` rows are multiplied by the strip before it. With weights out of level 2, 128 rows take
/// 0.93 to 0.97 of the time on a Zen 3, where a panel is four strips. Few rows would make many requests at once. Panels
/// of fewer bits gain nothing by it.
inline Upcoming next_columns(Index rows, const void* columns, Index depth, Index left) {
  constexpr Index kLeastRows = 24, kStripBytes = kWidth<float> * Index(sizeof(float));
  if (rows < kLeastRows || left == 0) return {};
  return {columns, kPanelBytes, depth, left < kStripBytes ? left : kStripBytes};
}

/// Sums of a panel, and two times its results on the way to their places (project_staged.hpp).
inline std::size_t projection_scratch(Index rows) { return std::size_t(3 * rows * kPanelBytes); }

template <class Products>
void project_tile(const ProjectionTile& tile, void* scratch) {
  using T = typename Products::Sum;
  static constexpr ProjectTable<ProjectRows, Products, kRowVectors> project;
  static constexpr ProjectTable<ProjectFirstRows, Products, kVectors> project_first;
  constexpr Index L = kLanes<T>, kGroup = kVectorBytes / Index(sizeof(T)), kGroups = kPanelBytes / kVectorBytes;
  T* sums = static_cast<T*>(scratch);
  constexpr Index kHalf = kVectors / 2 * L;
  Index groups = kGroups;
  while (groups > 0 && tile.group_columns[groups - 1] == 0) --groups;  // padding at the end
  const Index columns = (groups * kGroup + kHalf - 1) / kHalf * kHalf;
  bool is_direct = tile.out_step == 1;  // all results are whole vectors of contiguous columns
  for (Index g = 0; g < columns / kGroup; ++g) is_direct = is_direct && tile.group_columns[g] == kGroup;

  Index k = 0;
  do {
    const Index depth = tile.in_features - k < kDepth ? tile.in_features - k : kDepth;
    const bool is_last = k + depth == tile.in_features;
    for (Index column = 0, width; column < columns; column += width) {
      const Index left = (columns - column) / L;
      const int vectors = int(tile.rows == 1 && left >= kRowVectors ? kRowVectors : left < kVectors ? left : kVectors);
      width = vectors * L;
      ProjectionArguments<Products> arguments{depth,
                                              static_cast<const T*>(tile.x) + k * tile.x_step,
                                              tile.x_row,
                                              tile.x_step,
                                              static_cast<const T*>(tile.panel) + k * kPanelWidth<T> + column,
                                              k == 0 ? static_cast<const T*>(tile.bias) + column : sums + column,
                                              k == 0 ? 0 : kPanelWidth<T>,
                                              {},
                                              is_last && is_direct ? tile.out_row : kPanelWidth<T>};
      for (Index j = 0; j < vectors; ++j) {
        const Index at = column + j * L;
        arguments.out[j] = is_last && is_direct ? static_cast<T*>(tile.out[at / kGroup]) + at % kGroup : sums + at;
      }
      const Upcoming next =
          next_columns(tile.rows, arguments.panel + width, depth, (columns - column - width) * Index(sizeof(T)));
      // Results are activated while they are in level 1: relu costs 3 cycles a vector that way, 7 to 16 in a pass over
      // the whole block.
      const auto* const first = fetches_ahead(tile) ? project_first.strips : nullptr;
      project.run(vectors, tile.rows, arguments, next, first, [&](Index row, Index rows) {
        activate<T>(is_last ? tile.activation : Activation::none, arguments.out, vectors, row, rows, arguments.out_row);
      });
    }
    k += depth;
  } while (k < tile.in_features);

  if (is_direct) return;
  for (Index group = 0; group < groups; ++group)
    for (Index r = 0; r < tile.rows; ++r) {
      const T* from = sums + r * kPanelWidth<T> + group * kGroup;
      T* to = static_cast<T*>(tile.out[group]) + r * tile.out_row;
      for (Index c = 0; c < tile.group_columns[group]; ++c) to[c * tile.out_step] = from[c];
    }
}

}  // namespace
}  // namespace mha::MHA_ISA

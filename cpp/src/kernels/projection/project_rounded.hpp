// Projections of 16-bit rows: a projection whose results are f32, which are rounded on the way to where they go.
#pragma once

#include "kernels/projection/project_tile.hpp"

namespace mha::MHA_ISA {
namespace {

template <class S>
std::size_t operand_bytes(Index rows, Index in_features) {
  return std::size_t(rows * operand_row<S>(in_features)) * sizeof(typename OperandsOf<S>::Operand);
}

/// Rows as operands: as they lie if they can be multiplied so, else converted to `memory`.
template <class S>
void read_operands(ProjectionTile& tile, void* memory) {
  using Operand = typename OperandsOf<S>::Operand;
  if (OperandsOf<S>::lie_ready(tile.x_row, tile.x_step, tile.in_features)) {
    tile.x_row /= OperandsOf<S>::kElements;
    return;
  }
  const Index row = operand_row<S>(tile.in_features);
  for (Index r = 0; r < tile.rows; ++r)
    convert_row<S>(static_cast<const S*>(tile.x) + r * tile.x_row, tile.x_step, tile.in_features,
                   static_cast<Operand*>(memory) + r * row);
  tile.x = memory;
  tile.x_row = row;
  tile.x_step = 1;
}

/// Scratch for the results of a panel, and for the projection that computes them.
inline std::size_t rounded_scratch(Index rows) { return 2 * projection_scratch<float>(rows); }

/// `project` writes the results of a panel to scratch, in f32: 32 KB for 128 rows, so they are in level 1 or 2 when
/// they are rounded. Rounding takes 2 % of the time of computing them from 512 features.
template <class S, void (*project)(const ProjectionTile&, void*)>
void project_rounded(const ProjectionTile& tile, void* scratch) {
  constexpr Index L = kLanes<float>, kGroup = kVectorBytes / Index(sizeof(float));
  constexpr Index kGroups = kPanelBytes / kVectorBytes, kColumns = kGroups * kGroup;
  float* const results = static_cast<float*>(scratch);
  ProjectionTile whole = tile;
  for (Index g = 0; g < kGroups; ++g) {
    whole.out[g] = results + g * kGroup;
    whole.group_columns[g] = kGroup;  // padding included
  }
  whole.out_row = kColumns;
  whole.out_step = 1;
  project(whole, results + tile.rows * kColumns);

  for (Index g = 0; g < kGroups; ++g) {
    const Index columns = tile.group_columns[g];
    for (Index r = 0; columns > 0 && r < tile.rows; ++r) {
      const float* const from = results + r * kColumns + g * kGroup;
      S* const to = static_cast<S*>(tile.out[g]) + r * tile.out_row;
      alignas(kVectorBytes) S rounded[kGroup];
      const bool is_whole = columns == kGroup && tile.out_step == 1;
      MHA_UNROLL
      for (Index c = 0; c < kGroup; c += L) store_packet((is_whole ? to : rounded) + c, pload<Packet<float>>(from + c));
      for (Index c = 0; !is_whole && c < columns; ++c) to[c * tile.out_step] = rounded[c];
    }
  }
}

template <class S>
void round_numbers(const void* numbers, void* elements, Index count) {
  using T = Compute<S>;
  const T* const from = static_cast<const T*>(numbers);
  S* const to = static_cast<S*>(elements);
  Index i = 0;
  for (; i + kLanes<T> <= count; i += kLanes<T>) store_packet(to + i, ploadu<Packet<T>>(from + i));
  for (; i < count; ++i) store_element(to + i, from[i]);
}

template <class S>
void widen_elements(const void* elements, void* numbers, Index count) {
  using T = Compute<S>;
  const S* const from = static_cast<const S*>(elements);
  T* const to = static_cast<T*>(numbers);
  Index i = 0;
  for (; i + kLanes<T> <= count; i += kLanes<T>) pstoreu(to + i, load_packet(from + i));
  for (; i < count; ++i) to[i] = load_element(from + i);
}

}  // namespace
}  // namespace mha::MHA_ISA

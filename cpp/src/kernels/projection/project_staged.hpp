// Projections that store results in scratch first: 16-bit rows, to be rounded, and gated projections, to be multiplied
// by the results of a second panel. In 16 bits the product is rounded, not its factors.
#pragma once

#include "kernels/projection/project_tile.hpp"

namespace mha::MHA_ISA {
namespace {

using ProjectPanel = void (*)(const ProjectionTile&, void* scratch);

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

/// `project` writes the results of a panel to scratch, in the accumulator's type: 32 KB for 128 rows, so they are in
/// level 1 or 2 when they are multiplied and rounded on the way to where they go. Rounding takes 2 % of the time of
/// computing them from 512 features. Not inlined: one copy serves all formats of weights.
template <class S>
__attribute__((noinline)) void project_staged(const ProjectionTile& tile, void* scratch, ProjectPanel project) {
  using T = Compute<S>;
  constexpr Index L = kLanes<T>, kGroup = kVectorBytes / Index(sizeof(T));
  constexpr Index kGroups = kPanelBytes / kVectorBytes, kColumns = kGroups * kGroup;
  T *const results = static_cast<T*>(scratch), *const sums = results + tile.rows * kColumns;
  T* const factors = sums + tile.rows * kColumns;
  ProjectionTile whole = tile;
  for (Index g = 0; g < kGroups; ++g) whole.group_columns[g] = kGroup;  // padding included
  whole.out_row = kColumns;
  whole.out_step = 1;
  const auto project_to = [&](T* to) {
    for (Index g = 0; g < kGroups; ++g) whole.out[g] = to + g * kGroup;
    project(whole, sums);
  };
  if (tile.gate_panel) {
    whole.activation = Activation::none;
    project_to(factors);
    whole.activation = tile.activation;
    whole.panel = tile.gate_panel;
    whole.bias = tile.gate_bias;
  }
  project_to(results);

  // Row by row: the groups of a row lie together as a rule, and fill lines of the cache together.
  for (Index r = 0; r < tile.rows; ++r)
    for (Index g = 0; g < kGroups; ++g) {
      const Index columns = tile.group_columns[g];
      if (columns == 0) continue;
      const Index from = r * kColumns + g * kGroup;
      S* const to = static_cast<S*>(tile.out[g]) + r * tile.out_row;
      alignas(kVectorBytes) S rounded[kGroup];
      const bool is_whole = columns == kGroup && tile.out_step == 1;
      MHA_UNROLL
      for (Index c = 0; c < kGroup; c += L) {
        Packet<T> result = pload<Packet<T>>(results + from + c);
        if (tile.gate_panel)
          result = pmul(result, gated_factor<T>(tile.activation, pload<Packet<T>>(factors + from + c)));
        store_packet((is_whole ? to : rounded) + c, result);
      }
      for (Index c = 0; !is_whole && c < columns; ++c) to[c * tile.out_step] = rounded[c];
    }
}

/// The kernel of rows of S, where `kProject` computes results in the accumulator's type.
template <class S, ProjectPanel kProject>
void project_rows(const ProjectionTile& tile, void* scratch) {
  if (sizeof(S) == sizeof(Compute<S>) && !tile.gate_panel) return kProject(tile, scratch);
  project_staged<S>(tile, scratch, kProject);
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

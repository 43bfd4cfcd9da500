// Projections of rows in 16 bits: a projection whose results are f32, and their rounding on the way to where they go.
#pragma once

#include "project_bf16_weights.hpp"
#include "project_pairs.hpp"

namespace mha::MHA_ISA {

/// The rows of a panel's results in f32, whole, are 32 KB of scratch for 128 rows: in level 1 or 2 when they are rounded,
/// 2 % of what it takes to compute them from 512 features.
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
  project(whole, nullptr);

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

}  // namespace mha::MHA_ISA

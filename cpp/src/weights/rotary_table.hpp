// Cosines and sines of rotary positions.
#pragma once

#include <vector>

#include "mha/rotary.hpp"

namespace mha {

/// A row for each position: R / 2 cosines, then R / 2 sines, so that the numbers of a position lie together.
struct RotaryTable {
  RotaryTable(const TensorView& cosines, const TensorView& sines, RotaryPairs turned_together);

  DType dtype;
  Index max_positions, num_pairs;  // P, R / 2
  RotaryPairs pairs;
  std::vector<std::byte> data;

  Index row() const { return 2 * num_pairs; }  // elements
  TensorView cos() const { return {data.data(), dtype, {max_positions, num_pairs}, {row(), 1}}; }
  TensorView sin() const {
    return {data.data() + num_pairs * size_of(dtype), dtype, {max_positions, num_pairs}, {row(), 1}};
  }
};

}  // namespace mha

// The option position_bias: a score changes by an entry of a table, which the distance of the key from the query picks.
// A distance beyond the ends of the table takes the last entry there.
#pragma once

#include "kernels/kernel_table.hpp"
#include "kernels/vectors/eigen.hpp"

namespace mha::MHA_ISA {
namespace {

/// The change of the score of a row with a key; `distance` is the position of the key minus the position of the row.
template <class T>
MHA_INLINE T position_bias_at(const AttentionTile& tile, Index row, Index distance) {
  const Index farthest = tile.farthest_distance;
  const Index inside = distance < -farthest ? -farthest : distance > farthest ? farthest : distance;
  return static_cast<const T*>(tile.position_bias[row])[(inside + farthest) * tile.position_bias_step];
}

/// The same for keys in the lanes: a row with kLanes neighbouring keys, the first of them at `distance`.
template <class T>
MHA_INLINE Packet<T> position_biases_of_keys(const AttentionTile& tile, Index row, Index distance) {
  constexpr Index L = kLanes<T>;
  const Index farthest = tile.farthest_distance;
  if (distance >= farthest || distance + L - 1 <= -farthest)
    return pset1<Packet<T>>(position_bias_at<T>(tile, row, distance));
  if (tile.position_bias_step == 1 && distance >= -farthest && distance + L - 1 <= farthest)
    return ploadu<Packet<T>>(static_cast<const T*>(tile.position_bias[row]) + distance + farthest);
  alignas(kVectorBytes) T lanes[L];
  for (Index i = 0; i < L; ++i) lanes[i] = position_bias_at<T>(tile, row, distance + i);
  return pload<Packet<T>>(lanes);
}

/// The same for queries in the lanes: all rows of a tile with the keys of one block.
///
/// Row r + heads belongs to the head of row r, one position on: its entry for a key is the entry of row r for the
/// previous key. So the entries of the keys, from last key to first, overlap: each key adds but one for each head, and
/// 64 keys with 16 rows of one head are 79 entries. A block that lies beyond an end of the table has one entry for each
/// row.
template <class T>
class PositionBiasBlock {
 public:
  /// `memory`: kKeyBlock * kWidth elements.
  explicit PositionBiasBlock(T* memory) : memory_(memory) {}

  /// For the keys [begin, end).
  void fill(const AttentionTile& tile, Index begin, Index end) {
    constexpr Index W = kWidth<T>;
    const Index first_position = tile.position[0], last_position = tile.position[tile.rows - 1];
    const bool is_constant =
        begin - last_position >= tile.farthest_distance || end - 1 - first_position <= -tile.farthest_distance;
    const Index step = tile.heads < W && !is_constant ? tile.heads : W;
    last_ = is_constant ? 0 : end - 1 - begin;
    step_ = is_constant ? 0 : step;
    for (Index r = 0; r < step; ++r) {
      const Index row = r < tile.rows ? r : tile.rows - 1;
      Index distance = begin + last_ - tile.position[row];
      for (Index i = r; i < last_ * step + W; i += step) memory_[i] = position_bias_at<T>(tile, row, distance--);
    }
  }

  /// The entries of all rows with key i of the block, at any address.
  const T* of_key(Index i) const { return memory_ + (last_ - i) * step_; }

 private:
  T* memory_;
  Index step_ = 0, last_ = 0;
};

}  // namespace
}  // namespace mha::MHA_ISA

// Moves between rows in memory and the lanes of a tile: rows[r][c] <-> tile[c][r].
#pragma once

#include "eigen.hpp"

namespace mha::MHA_ISA {

/// tile[c * width + r] = rows[r][(first + c) * step] for c < columns, r < kLanes. In blocks of kLanes x kLanes by register
/// transposes where neighbours are contiguous, else element by element.
template <class T>
void load_transposed(const T* const* rows, Index first, Index columns, Index step, T* tile, Index width) {
  constexpr Index L = kLanes<T>;
  Index c = 0;
  if (step == 1) {
    for (; c + L <= columns; c += L) {
      PacketBlock<Packet<T>, L> block;
      MHA_UNROLL
      for (Index r = 0; r < L; ++r) block.packet[r] = ploadu<Packet<T>>(rows[r] + first + c);
      ptranspose(block);
      MHA_UNROLL
      for (Index r = 0; r < L; ++r) pstore(tile + (c + r) * width, block.packet[r]);
    }
  }
  for (; c < columns; ++c)
    for (Index r = 0; r < L; ++r) tile[c * width + r] = rows[r][(first + c) * step];
}

/// rows[r][(first + c) * step] = tile[c * width + r] * factor[r] for c < columns, r < count <= kLanes.
template <class T>
void store_transposed(const T* tile, Index width, const Packet<T>& factor, T* const* rows, Index count, Index first,
                      Index columns, Index step) {
  constexpr Index L = kLanes<T>;
  const Packet<T> zero = pset1<Packet<T>>(T(0));
  Index c = 0;
  if (step == 1) {
    for (; c + L <= columns; c += L) {
      PacketBlock<Packet<T>, L> block;
      MHA_UNROLL
      for (Index r = 0; r < L; ++r) block.packet[r] = pmadd(pload<Packet<T>>(tile + (c + r) * width), factor, zero);
      ptranspose(block);
      if (count == L) {
        MHA_UNROLL
        for (Index r = 0; r < L; ++r) pstoreu(rows[r] + first + c, block.packet[r]);
      } else {
        alignas(kVectorBytes) T lines[L * L];
        MHA_UNROLL
        for (Index r = 0; r < L; ++r) pstore(lines + r * L, block.packet[r]);
        for (Index r = 0; r < count; ++r) pstoreu(rows[r] + first + c, pload<Packet<T>>(lines + r * L));
      }
    }
  }
  for (; c < columns; ++c) {
    alignas(kVectorBytes) T column[L];
    pstore(column, pmadd(pload<Packet<T>>(tile + c * width), factor, zero));
    for (Index r = 0; r < count; ++r) rows[r][(first + c) * step] = column[r];
  }
}

}  // namespace mha::MHA_ISA

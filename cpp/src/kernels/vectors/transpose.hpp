// Transposes between rows in memory and the lanes of a tile: rows[r][c] <-> tile[c][r].
#pragma once

#include "kernels/vectors/elements.hpp"

namespace mha::MHA_ISA {
namespace {

/// Transposes in registers.
template <class P, int N>
MHA_INLINE void transpose(PacketBlock<P, N>& block) {
  ptranspose(block);
}

#ifdef EIGEN_VECTORIZE_AVX512
// 64 shuffles of whole vectors. Eigen works on halves, takes 48 moves more, and spills: docs/decisions/0007.
MHA_INLINE void transpose(PacketBlock<Packet<float>, 16>& block) {
  __m512* const p = block.packet;
  __m512 quads[16];  // [group of 4 rows][m]: in 128-bit lane l the four rows' element 4 l + m
  MHA_UNROLL
  for (int g = 0; g < 16; g += 4) {
    const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(p[g], p[g + 1]));
    const __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(p[g], p[g + 1]));
    const __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(p[g + 2], p[g + 3]));
    const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(p[g + 2], p[g + 3]));
    quads[g] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
    quads[g + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    quads[g + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
    quads[g + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
  }
  MHA_UNROLL
  for (int m = 0; m < 4; ++m) {
    const __m512 a = _mm512_shuffle_f32x4(quads[m], quads[4 + m], 0x44);
    const __m512 b = _mm512_shuffle_f32x4(quads[m], quads[4 + m], 0xee);
    const __m512 c = _mm512_shuffle_f32x4(quads[8 + m], quads[12 + m], 0x44);
    const __m512 d = _mm512_shuffle_f32x4(quads[8 + m], quads[12 + m], 0xee);
    p[m] = _mm512_shuffle_f32x4(a, c, 0x88);
    p[4 + m] = _mm512_shuffle_f32x4(a, c, 0xdd);
    p[8 + m] = _mm512_shuffle_f32x4(b, d, 0x88);
    p[12 + m] = _mm512_shuffle_f32x4(b, d, 0xdd);
  }
}
#endif

/// tile[c * width + r] = operand c of rows[r] from element `first` on, for r < kLanes and the operands of `columns`
/// elements, `step` apart. In blocks of kLanes x kLanes by register transposes where neighbours are contiguous, else
/// one by one. Not inlined: masks alone would have four copies of it.
template <class Load, class S>
__attribute__((noinline)) void load_transposed(const S* const* rows, Index first, Index columns, Index step,
                                               typename Load::Operand* tile, Index width) {
  using T = typename Load::T;
  constexpr Index L = kLanes<T>, kElements = Load::kElements;
  Index c = 0;
  if (step == 1) {
    for (; (c + L) * kElements <= columns; c += L) {
      PacketBlock<Packet<T>, L> block;
      MHA_UNROLL
      for (Index r = 0; r < L; ++r) block.packet[r] = Load::load(rows[r] + first + c * kElements);
      transpose(block);
      MHA_UNROLL
      for (Index r = 0; r < L; ++r) Load::Products::store(tile + (c + r) * width, block.packet[r]);
    }
  }
  for (; c < Load::count(columns); ++c)
    for (Index r = 0; r < L; ++r)
      tile[c * width + r] = Load::load_one(rows[r] + (first + c * kElements) * step, step, columns - c * kElements);
}

/// rows[r][(first + c) * step] = tile[c * width + r] * factor[r] for c < columns, r < count <= kLanes.
template <class S>
void store_transposed(const Compute<S>* tile, Index width, const Packet<Compute<S>>& factor, S* const* rows,
                      Index count, Index first, Index columns, Index step) {
  using T = Compute<S>;
  constexpr Index L = kLanes<T>;
  const Packet<T> zero = pset1<Packet<T>>(T(0));
  Index c = 0;
  if (step == 1) {
    for (; c + L <= columns; c += L) {
      PacketBlock<Packet<T>, L> block;
      MHA_UNROLL
      for (Index r = 0; r < L; ++r) block.packet[r] = pmadd(pload<Packet<T>>(tile + (c + r) * width), factor, zero);
      transpose(block);
      if (count == L) {
        MHA_UNROLL
        for (Index r = 0; r < L; ++r) store_packet(rows[r] + first + c, block.packet[r]);
      } else {
        alignas(kVectorBytes) T lines[L * L];
        MHA_UNROLL
        for (Index r = 0; r < L; ++r) pstore(lines + r * L, block.packet[r]);
        for (Index r = 0; r < count; ++r) store_packet(rows[r] + first + c, pload<Packet<T>>(lines + r * L));
      }
    }
  }
  for (; c < columns; ++c) {
    alignas(kVectorBytes) T column[L];
    pstore(column, pmadd(pload<Packet<T>>(tile + c * width), factor, zero));
    for (Index r = 0; r < count; ++r) store_element(rows[r] + (first + c) * step, column[r]);
  }
}

}  // namespace
}  // namespace mha::MHA_ISA

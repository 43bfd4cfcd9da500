// Products of pairs of bf16: VDPBF16PS multiplies two pairs and adds both products to an f32 sum, at twice the rate of
// the multiply-add of numbers.
//
// The instruction rounds each product into the sum, in an order that the processor fixes, and takes subnormal numbers
// as 0, in every floating-point state: Intel, "Architecture Instruction Set Extensions Programming Reference",
// 319433-040, VDPBF16PS. Every kernel of an instruction set that has it uses it, with the same pairs, so that a row has
// the same bits in all of them.
#pragma once

#include "kernels/products/packet_tile.hpp"
#include "kernels/vectors/elements.hpp"

#ifdef __AVX512BF16__

namespace mha::MHA_ISA {
namespace {

/// Neighbouring elements of a sum: along the head dimension, or two keys.
struct Pair {
  BFloat16 first, second;
};

struct PairProducts {
  using Operand = Pair;
  using PanelOperand = Pair;
  using Vector = Packet<float>;
  using Sum = float;
  using Sums = Packet<float>;
  using Tile = PacketTile<PairProducts>;
  struct State {};  // vector registers need none

  static constexpr Index kElements = 2;
  static constexpr Index kPartialSumTerms = 128;  // of two products each; the reason is that of PacketProducts

  MHA_INLINE static Packet<float> load(const Pair* from) { return _mm512_load_ps(from); }
  MHA_INLINE static void store(Pair* to, const Packet<float>& operands) { _mm512_store_ps(to, operands); }
  MHA_INLINE static Packet<float> broadcast(const Pair* from) {
    int bits;
    __builtin_memcpy(&bits, from, sizeof bits);
    return _mm512_castsi512_ps(_mm512_set1_epi32(bits));
  }
  MHA_INLINE static Packet<float> multiply_add(const Packet<float>& a, const Packet<float>& b, const Packet<float>& c) {
    return _mm512_dpbf16_ps(c, __m512bh(a), __m512bh(b));
  }
};

/// 2 kLanes columns of two rows, pair by pair.
MHA_INLINE void pair_columns(const BFloat16* first, const BFloat16* second, Packet<float>& low, Packet<float>& high) {
  const __m512i lanes = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37,
                                         5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i a = _mm512_loadu_si512(first), b = _mm512_loadu_si512(second);
  low = _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, lanes, b));
  high = _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, _mm512_add_epi16(lanes, _mm512_set1_epi16(16)), b));
}

/// Elements of bf16 as pairs.
struct PairOperands {
  using T = float;
  using Products = PairProducts;
  using Operand = Pair;
  static constexpr Index kElements = Products::kElements;
  static constexpr bool kJoins = true;
  static constexpr bool kConverts = true;

  static constexpr bool lie_ready(Index row, Index step, Index columns) {
    return step == 1 && row % 2 == 0 && columns % 2 == 0;
  }
  static constexpr Index count(Index elements) { return (elements + 1) / 2; }
  MHA_INLINE static Packet<float> load(const BFloat16* from) { return _mm512_loadu_ps(from); }
  /// The other element of a pair that has only one is 0.
  MHA_INLINE static Pair load_one(const BFloat16* from, Index step, Index left) {
    return {*from, left > 1 ? from[step] : BFloat16{0}};
  }
  MHA_INLINE static void load_columns(const BFloat16* row, const BFloat16* second, Packet<float>* columns) {
    pair_columns(row, second, columns[0], columns[1]);
  }
  static void join_rows(const BFloat16* first, const BFloat16* second, Index step, Index columns, Pair* to) {
    constexpr Index L = kLanes<float>;
    Index c = 0;
    if (step == 1)
      for (; c + 2 * L <= columns; c += 2 * L) {
        Packet<float> low, high;
        pair_columns(first + c, second ? second + c : kZeros<BFloat16, 2 * L>, low, high);
        Products::store(to + c, low);
        Products::store(to + c + L, high);
      }
    for (; c < columns; ++c) to[c] = {first[c * step], second ? second[c * step] : BFloat16{0}};
  }
};

/// Numbers as pairs, each rounded to bf16.
struct RoundedPairOperands : PairOperands {
  MHA_INLINE static Packet<float> load(const float* from) {
    return _mm512_castsi512_ps(
        __m512i(_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + kLanes<float>), _mm512_loadu_ps(from))));
  }
  MHA_INLINE static Pair load_one(const float* from, Index step, Index left) {
    alignas(kVectorBytes) float numbers[2 * kLanes<float>] = {*from, left > 1 ? from[step] : 0.0f};
    alignas(kVectorBytes) Pair pairs[kLanes<float>];
    Products::store(pairs, load(numbers));
    return pairs[0];
  }
};

/// In each lane the first half of one and the second half of the other.
MHA_INLINE Packet<float> join_halves(const Packet<float>& first, const Packet<float>& second) {
  return _mm512_castsi512_ps(
      _mm512_mask_blend_epi16(0xaaaaaaaaU, _mm512_castps_si512(first), _mm512_castps_si512(second)));
}

/// Neighbouring lanes become pairs, rounded.
MHA_INLINE void store_pairs(Pair* to, const Packet<float>& x) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(to), __m256i(_mm512_cvtneps_pbh(x)));
}

/// In each lane the pair of two numbers, rounded.
MHA_INLINE Packet<float> pair_up(const Packet<float>& first, const Packet<float>& second) {
  const __m512i lanes = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_castsi512_ps(_mm512_permutexvar_epi16(lanes, __m512i(_mm512_cvtne2ps_pbh(second, first))));
}

}  // namespace
}  // namespace mha::MHA_ISA

#endif

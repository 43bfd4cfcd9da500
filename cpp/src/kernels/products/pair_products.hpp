// Products of pairs of bf16: VDPBF16PS multiplies two pairs and adds both products to an f32 sum, at twice the rate of
// the multiply-add of numbers.
//
// The instruction rounds each product into the sum, in an order that the processor fixes, and takes subnormal numbers
// as 0, in every floating-point state: Intel, "Architecture Instruction Set Extensions Programming Reference",
// 319433-040, VDPBF16PS. Every kernel of an instruction set that has it uses it, with the same pairs, so that a row has
// the same bits in all of them.
#pragma once

#include "kernels/products/packet_tile.hpp"
#include "kernels/products/pair_operands.hpp"

#ifdef __AVX512BF16__

namespace mha::MHA_ISA {
namespace {

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
  MHA_INLINE static Packet<float> zero() { return pset1<Packet<float>>(0.0f); }
  MHA_INLINE static Packet<float> total(const Packet<float>& sums) { return sums; }
};

}  // namespace
}  // namespace mha::MHA_ISA

#endif

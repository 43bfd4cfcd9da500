// Products of pairs of bf16: VDPBF16PS or BFDOT multiplies two pairs and adds both products to an f32 sum, two
// multiply-adds in one.
//
// Both take subnormal numbers as 0, in every floating-point state, and round as they like:
//
//   VDPBF16PS   each product into the sum, in an order that the processor fixes: Intel, "Architecture Instruction Set
//               Extensions Programming Reference", 319433-040
//   BFDOT       the sum of the two products, then that added to the sum, each to odd: Arm, "Architecture Reference
//               Manual for A-profile architecture", BFDotAdd, where FPCR.EBF is 0, as FloatingPointState has it
//
// Every kernel of an instruction set that has one of them uses it, with the same pairs, so that a row has the same
// bits in all of them.
#pragma once

#include "kernels/products/packet_tile.hpp"
#include "kernels/products/pair_operands.hpp"

#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define MHA_PAIRS

namespace mha::MHA_ISA {
namespace {

struct PairProducts : PairVectors {
  using Sums = Packet<float>;
  using Tile = PacketTile<PairProducts>;
  struct State {};  // vector registers need none

  static constexpr Index kPartialSumTerms = 128;  // of two products each; for the reason in PacketProducts

  MHA_INLINE static Packet<float> multiply_add(const Packet<float>& a, const Packet<float>& b, const Packet<float>& c) {
#ifdef __AVX512BF16__
    return _mm512_dpbf16_ps(c, __m512bh(a), __m512bh(b));
#else
    return vbfdotq_f32(c, bfloat16x8_t(a), bfloat16x8_t(b));
#endif
  }
  MHA_INLINE static Packet<float> zero() { return pset1<Packet<float>>(0.0f); }
  MHA_INLINE static Packet<float> total(const Packet<float>& sums) { return sums; }
};

}  // namespace
}  // namespace mha::MHA_ISA

#endif

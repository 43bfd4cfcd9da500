// What the FMA units can do: the denominator of every fraction of peak.
#pragma once

#include "kernels/vectors/operands.hpp"

namespace mha::MHA_ISA {
namespace {

/// One multiply-add of a chain whose numbers stay near 1: neither subnormal nor infinite.
template <class T>
MHA_INLINE Packet<T> advance(const T*, const Packet<T>& chain, const Packet<T>& shrink, const Packet<T>& grow) {
  return pmadd(chain, shrink, grow);
}
#ifdef __AVX512BF16__
MHA_INLINE Packet<float> advance(const Pair* operand, const Packet<float>& chain, const Packet<float>&,
                                 const Packet<float>& grow) {
  return multiply_add(operand, grow, grow, chain);  // two small products
}
#endif

/// Sixteen multiply-adds a round, none waiting for another: twice what two pipes with a latency of four need, and what
/// 16 registers nearly hold. Returns the operations done, two for each multiply-add and lane.
template <class Operand>
double saturate_fma(Index rounds) {
  using T = Sum<Operand>;
  constexpr int kChains = 2 * kVectors + 4;
  Packet<T> chains[kChains];
  MHA_UNROLL
  for (int i = 0; i < kChains; ++i) chains[i] = pset1<Packet<T>>(T(1) + T(i));
  Packet<T> shrink = pset1<Packet<T>>(T(0.999)), grow = pset1<Packet<T>>(T(0.001));
  constexpr int kRepeats = 8;
  for (Index round = 0; round < rounds; ++round) {
    MHA_UNROLL
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      MHA_UNROLL
      for (int i = 0; i < kChains; ++i)
        chains[i] = advance(static_cast<const Operand*>(nullptr), chains[i], shrink, grow);
    }
  }
  Packet<T> sum = chains[0];
  MHA_UNROLL
  for (int i = 1; i < kChains; ++i) sum = padd(sum, chains[i]);
  const T total = predux(sum);
  asm volatile("" : : "r"(&total) : "memory");
  return 2.0 * double(rounds) * kRepeats * kChains * kLanes<T> * SumType<Operand>::kProducts;
}

}  // namespace
}  // namespace mha::MHA_ISA

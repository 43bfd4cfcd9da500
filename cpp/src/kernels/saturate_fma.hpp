// What the FMA units can do: the denominator of every fraction of peak.
#pragma once

#include "eigen.hpp"

namespace mha::MHA_ISA {

/// Sixteen multiply-adds a round, none waiting for another: twice what two pipes with a latency of four need, and what
/// 16 registers nearly hold. Returns the operations done, two for each multiply-add and lane.
template <class T>
double saturate_fma(Index rounds) {
  constexpr int kChains = 2 * kVectors + 4;
  Packet<T> chains[kChains];
  MHA_UNROLL
  for (int i = 0; i < kChains; ++i) chains[i] = pset1<Packet<T>>(T(1) + T(i));
  // Values stay near 1: no subnormal numbers, no infinities. The empty assembly keeps the operands in registers and the
  // loop from being folded.
  Packet<T> shrink = pset1<Packet<T>>(T(0.999)), grow = pset1<Packet<T>>(T(0.001));
  constexpr int kRepeats = 8;
  for (Index round = 0; round < rounds; ++round) {
    MHA_UNROLL
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      MHA_UNROLL
      for (int i = 0; i < kChains; ++i) chains[i] = pmadd(chains[i], shrink, grow);
    }
  }
  Packet<T> sum = chains[0];
  MHA_UNROLL
  for (int i = 1; i < kChains; ++i) sum = padd(sum, chains[i]);
  const T total = predux(sum);
  asm volatile("" : : "r"(&total) : "memory");
  return 2.0 * double(rounds) * kRepeats * kChains * kLanes<T>;
}

}  // namespace mha::MHA_ISA

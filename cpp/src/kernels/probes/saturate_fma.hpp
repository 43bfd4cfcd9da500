// What the FMA units can do: the denominator of every fraction of peak.
#pragma once

#include "kernels/products/kinds.hpp"

namespace mha::MHA_ISA {
namespace {

/// One multiply-add of a chain whose numbers stay near 1: neither subnormal nor infinite.
template <class Products, class P>
MHA_INLINE P advance(const P& chain, const P& shrink, const P& grow) {
  if constexpr (Products::kElements == 1)
    return Products::multiply_add(chain, shrink, grow);
  else
    return Products::multiply_add(grow, grow, chain);  // two small products
}

/// Chains of multiply-adds, none of which waits for another: 8 of them with 16 registers, 12 with 32. Two pipes with a
/// latency of four need eight. Returns the operations done, two for each multiply-add and lane.
template <class Products>
double saturate_fma(Index rounds) {
  using T = typename Products::Sum;
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
      for (int i = 0; i < kChains; ++i) chains[i] = advance<Products>(chains[i], shrink, grow);
    }
  }
  Packet<T> sum = chains[0];
  MHA_UNROLL
  for (int i = 1; i < kChains; ++i) sum = padd(sum, chains[i]);
  const T total = predux(sum);
  asm volatile("" : : "r"(&total) : "memory");
  return 2.0 * double(rounds) * kRepeats * kChains * kLanes<T> * int(Products::kElements);
}

}  // namespace
}  // namespace mha::MHA_ISA

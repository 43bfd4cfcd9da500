#include <immintrin.h>

#include "saturate.hpp"

namespace mha::bench {

double saturate_bf16(long rounds) {
  constexpr int kChains = 24;
  __m512 chains[kChains];
  for (int i = 0; i < kChains; ++i) chains[i] = _mm512_set1_ps(float(i));
  const __m512 one = _mm512_set1_ps(1.0F);
  const __m512bh a = _mm512_cvtne2ps_pbh(one, one), b = a;
  for (long round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) chains[i] = _mm512_dpbf16_ps(chains[i], a, b);
  }
  for (int i = 0; i < kChains; ++i) asm volatile("" : : "v"(chains[i]));  // wanted by somebody
  return 2.0 * 32 * kChains * double(rounds);                             // 16 lanes, two products each
}

}  // namespace mha::bench

#include <immintrin.h>

#include "saturate.hpp"

namespace mha::bench {

double saturate_int8(long rounds) {
  constexpr int kChains = 24;
  __m512i chains[kChains];
  // Unrolled wherever chains are named: an index that varies would keep them in memory.
#pragma GCC unroll 24
  for (int i = 0; i < kChains; ++i) chains[i] = _mm512_set1_epi32(i);
  const __m512i a = _mm512_set1_epi8(1), b = _mm512_set1_epi8(3);
  for (long round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
    for (int i = 0; i < kChains; ++i) chains[i] = _mm512_dpbusd_epi32(chains[i], a, b);
  }
#pragma GCC unroll 24
  for (int i = 0; i < kChains; ++i) asm volatile("" : : "v"(chains[i]));  // wanted by somebody
  return 2.0 * 64 * kChains * double(rounds);                             // 16 lanes, four products each
}

}  // namespace mha::bench

// Products of quantized rows and int8 weights: the one instruction for it, and exact stand-ins.
//
// A word of a panel holds the weights of four features of one column. A row holds its features as the products want
// them: `features_at` broadcasts four of them, `dot` adds the four products of every column to its sum. All sums are
// exact in 32 bits, so that instruction sets differ in nothing but time.
#pragma once

#include "kernels/vectors/integer_vectors.hpp"

namespace mha::MHA_ISA {
namespace {

#ifdef __AVX512VNNI__

// VPDPBUSD takes bytes without signs from the rows: integers to which the row's offset has been added. Sums begin with
// minus the offset times the sum of the weights, which takes that away again. (They may wrap around on the way, and come
// out right.)
constexpr int kFeatureBytes = 1;
constexpr bool kHasOffset = true;

using WeightBytes = Ints;
MHA_INLINE WeightBytes weights_at(const void* at) { return load_vector<WeightBytes>(at); }

using Features = Ints;
MHA_INLINE Features features_at(const unsigned char* at) {
  std::int32_t four;
  __builtin_memcpy(&four, at, sizeof four);
  return Ints(_mm512_set1_epi32(four));
}

MHA_INLINE Ints dot(const Ints& sum, const Features& x, const WeightBytes& w) {
  return Ints(_mm512_dpbusd_epi32(__m512i(sum), __m512i(x), __m512i(w)));
}

MHA_INLINE void store_features(unsigned char* to, const Bits& words) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(__m512i(words)));
}

#else

// Without it products of 16-bit integers, two of which are added up at a time. VPMADDUBSW would take bytes, but it
// saturates. A row holds 16-bit integers, of four features the first and the third, then the second and the fourth: the
// pairs that are made of a word of weights by one shift or two.
constexpr int kFeatureBytes = 2;
constexpr bool kHasOffset = false;

struct WeightBytes {
  Shorts even, odd;  // features 0 and 2, 1 and 3
};
MHA_INLINE WeightBytes weights_at(const void* at) {
  using Halves = std::uint16_t __attribute__((vector_size(kPacketBytes)));
  const Halves halves = load_vector<Halves>(at);
  return {Shorts(halves << 8) >> 8, Shorts(halves) >> 8};
}

struct Features {
  Shorts even, odd;
};
MHA_INLINE Features features_at(const unsigned char* at) {
  std::int32_t pairs[2];
  __builtin_memcpy(pairs, at, sizeof pairs);
  return {Shorts(Ints{} + pairs[0]), Shorts(Ints{} + pairs[1])};
}

/// a0 b0 + a1 b1 for each pair.
MHA_INLINE Ints multiply_pairs(const Shorts& a, const Shorts& b) {
#if defined(EIGEN_VECTORIZE_AVX512)
  return Ints(_mm512_madd_epi16(__m512i(a), __m512i(b)));
#elif defined(EIGEN_VECTORIZE_AVX2)
  return Ints(_mm256_madd_epi16(__m256i(a), __m256i(b)));
#elif defined(EIGEN_VECTORIZE_SSE2)
  return Ints(_mm_madd_epi16(__m128i(a), __m128i(b)));
#else
  const Bits x = Bits(a), y = Bits(b);
  return (Ints(x << 16) >> 16) * (Ints(y << 16) >> 16) + (Ints(x) >> 16) * (Ints(y) >> 16);
#endif
}

MHA_INLINE Ints dot(const Ints& sum, const Features& x, const WeightBytes& w) {
  return sum + multiply_pairs(x.even, w.even) + multiply_pairs(x.odd, w.odd);
}

MHA_INLINE void store_features(unsigned char* to, const Bits& words) {
  constexpr int kPlaces[4] = {0, 2, 1, 3};
  std::int16_t shorts[kLanes<float>];
  for (int i = 0; i < kLanes<float>; ++i) shorts[i / 4 * 4 + kPlaces[i % 4]] = std::int16_t(words[i]);
  __builtin_memcpy(to, shorts, sizeof shorts);
}

#endif

}  // namespace
}  // namespace mha::MHA_ISA

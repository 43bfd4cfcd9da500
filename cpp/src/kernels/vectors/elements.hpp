// From elements in memory to the numbers that kernels compute with, and back. A 16-bit element becomes an f32 exactly
// when it is loaded, and an f32 is rounded to nearest even, once, when it is stored.
//
// Conversions are written in the vector types of the compiler, which every instruction set has and which become VPMOVZX
// and shifts. binary16 uses its instructions where there are any; they round like the arithmetic here (after F.
// Giesen's float-to-half conversions), and neither depends on the processor's mode for subnormal numbers.
#pragma once

#include <stdint.h>

#include "kernels/kernel_table.hpp"
#include "kernels/vectors/integer_vectors.hpp"

namespace mha::MHA_ISA {
namespace {

template <class S>
struct ComputeType {
  using type = S;
};
template <>
struct ComputeType<Float16> {
  using type = float;
};
template <>
struct ComputeType<BFloat16> {
  using type = float;
};
template <>
struct ComputeType<std::int8_t> {
  using type = float;
};

/// The type in which elements of type S are computed: the accumulator of dtypes.def.
template <class S>
using Compute = typename ComputeType<S>::type;

template <class S>
constexpr bool kIsInt8 = DTypeOf<S>::value == DType::int8;

/// Rows of elements or operands, `row` of them apart; neighbours in a row are `step` apart.
template <class T>
struct Rows {
  const T* data;
  Index row, step;
};

/// The stand-in for columns that do not exist, or that must not be seen.
template <class S, Index kCount>
alignas(kVectorBytes) constexpr S kZeros[kCount] = {};

/// As many 16-bit integers as there are lanes of f32: half a vector.
using ShortLanes = uint16_t __attribute__((vector_size(kPacketBytes / 2)));

#ifdef EIGEN_VECTORIZE_AVX512
// GCC 12 would convert halves of vectors: three instructions more for each.
MHA_INLINE Bits load_words(const void* shorts) {
  return Bits(_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(shorts))));
}
MHA_INLINE void store_words(void* shorts, const Bits& words) {
  _mm256_storeu_si256(static_cast<__m256i*>(shorts), _mm512_cvtepi32_epi16(__m512i(words)));
}
#else
MHA_INLINE Bits load_words(const void* shorts) {
  return __builtin_convertvector(load_vector<ShortLanes>(shorts), Bits);
}
MHA_INLINE void store_words(void* shorts, const Bits& words) {
  const ShortLanes lanes = __builtin_convertvector(words, ShortLanes);
  __builtin_memcpy(shorts, &lanes, sizeof lanes);
}
#endif

/// kLanes contiguous elements, at any address.
MHA_INLINE Packet<float> load_packet(const float* from) { return ploadu<Packet<float>>(from); }
MHA_INLINE Packet<double> load_packet(const double* from) { return ploadu<Packet<double>>(from); }
MHA_INLINE Packet<float> load_packet(const BFloat16* from) { return Packet<float>(load_words(from) << 16); }

MHA_INLINE void store_packet(float* to, const Packet<float>& x) { pstoreu(to, x); }
MHA_INLINE void store_packet(double* to, const Packet<double>& x) { pstoreu(to, x); }
/// Numbers rounded to bf16, in the lower half of each word.
MHA_INLINE Bits round_to_bf16(const Packet<float>& x) {
  const Bits bits = Bits(x), rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const Bits is_nan = Bits((bits & 0x7fffffff) > 0x7f800000);
  return (is_nan & (bits >> 16 | 0x40)) | (~is_nan & rounded);
}
MHA_INLINE void store_packet(BFloat16* to, const Packet<float>& x) { store_words(to, round_to_bf16(x)); }

/// Integers as numbers, without the scale of their row. The compiler would convert vectors of bytes one by one.
MHA_INLINE Packet<float> load_packet(const std::int8_t* from) {
#ifdef EIGEN_VECTORIZE_AVX512
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined EIGEN_VECTORIZE_AVX2
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#elif defined EIGEN_VECTORIZE_SSE4_1
  return _mm_cvtepi32_ps(_mm_cvtepi8_epi32(_mm_loadu_si32(from)));
#else
  using Bytes = std::int8_t __attribute__((vector_size(kPacketBytes / 4)));
  return Packet<float>(__builtin_convertvector(load_vector<Bytes>(from), Floats));
#endif
}

#ifdef __F16C__
MHA_INLINE Packet<float> load_packet(const Float16* from) {
#ifdef EIGEN_VECTORIZE_AVX512
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#else
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#endif
}
MHA_INLINE void store_packet(Float16* to, const Packet<float>& x) {
#ifdef EIGEN_VECTORIZE_AVX512
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#else
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#endif
}
#else
MHA_INLINE Packet<float> load_packet(const Float16* from) {
  constexpr uint32_t kRebias = (127 - 15) << 23;
  const Bits half = load_words(from), magnitude = (half & 0x7fff) << 13;
  const Bits is_subnormal = Bits(magnitude < (1 << 23));
  const Bits is_special = Bits(magnitude >= (31 << 23));  // infinity, NaN
  // A subnormal number: its digits after the exponent of 2^-14, minus 2^-14.
  constexpr float kSmallestNormal = 0x1p-14f;
  const Bits normal = magnitude + kRebias + (is_special & kRebias);
  const Bits subnormal = Bits(Floats(magnitude + kRebias + (1 << 23)) - kSmallestNormal);
  return Packet<float>((half & 0x8000) << 16 | (is_subnormal & subnormal) | (~is_subnormal & normal));
}
MHA_INLINE void store_packet(Float16* to, const Packet<float>& x) {
  const Bits bits = Bits(x), magnitude = bits & 0x7fffffff;
  const Bits is_nan = Bits(magnitude > 0x7f800000);
  const Bits is_large = Bits(magnitude >= (127 + 16) << 23);  // rounds to infinity, or is NaN
  const Bits is_small = Bits(magnitude < (127 - 14) << 23);   // subnormal as binary16
  // Adding 1/2 rounds to multiples of 2^-24, whose number is then in the lower bits.
  const Bits small = Bits(Floats(magnitude) + 0.5f) - 0x3f000000;
  const Bits normal = (magnitude - ((127 - 15) << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
  const Bits large = 0x7c00 | (is_nan & 0x200);
  const Bits half = (is_large & large) | (is_small & small) | (~is_large & ~is_small & normal);
  store_words(to, (bits >> 16 & 0x8000) | half);
}
#endif

/// One element.
MHA_INLINE float load_element(const float* from) { return *from; }
MHA_INLINE double load_element(const double* from) { return *from; }
template <class S>
MHA_INLINE float load_element(const S* from) {
  alignas(kVectorBytes) S lanes[kLanes<float>] = {*from};
  return pfirst(load_packet(lanes));
}
MHA_INLINE void store_element(float* to, float x) { *to = x; }
MHA_INLINE void store_element(double* to, double x) { *to = x; }
template <class S>
MHA_INLINE void store_element(S* to, float x) {
  alignas(kVectorBytes) S lanes[kLanes<float>];
  store_packet(lanes, pset1<Packet<float>>(x));
  *to = lanes[0];
}

/// Calls visit(first column, vector of numbers) for a row, the last vector filled up with zeros.
template <class Visit>
MHA_INLINE void for_each_vector_of_row(const float* x, Index step, Index count, Visit visit) {
  constexpr Index L = kLanes<float>;
  Index k = 0;
  if (step == 1)
    for (; k + L <= count; k += L) visit(k, load_vector<Floats>(x + k));
  for (; k < count; k += L) {
    float lanes[L] = {};
    for (Index i = 0; i < L && k + i < count; ++i) lanes[i] = x[(k + i) * step];
    visit(k, load_vector<Floats>(lanes));
  }
}

}  // namespace
}  // namespace mha::MHA_ISA

// Vectors of integers that are as wide as Packet<float>, in the vector types of GCC and Clang. Eigen has no packets of
// bytes and of 16-bit integers.
#pragma once

#include <cstdint>

#include "kernels/vectors/eigen.hpp"

namespace mha::MHA_ISA {
namespace {

constexpr int kPacketBytes = int(sizeof(Packet<float>));

using Bits = std::uint32_t __attribute__((vector_size(kPacketBytes)));
using Ints = std::int32_t __attribute__((vector_size(kPacketBytes)));
using Shorts = std::int16_t __attribute__((vector_size(kPacketBytes)));
using Floats = float __attribute__((vector_size(kPacketBytes)));

/// Loads a vector from any address.
template <class Vector>
MHA_INLINE Vector load_vector(const void* at) {
  Vector vector;
  __builtin_memcpy(&vector, at, sizeof vector);
  return vector;
}

/// Whether any lane of the result of a comparison is true.
MHA_INLINE bool has_any(const Ints& lanes) {
#if defined(EIGEN_VECTORIZE_AVX512)
  return _mm512_movepi32_mask(__m512i(lanes)) != 0;
#elif defined(EIGEN_VECTORIZE_AVX2)
  return _mm256_movemask_epi8(__m256i(lanes)) != 0;
#elif defined(EIGEN_VECTORIZE_SSE2)
  return _mm_movemask_epi8(__m128i(lanes)) != 0;
#elif defined(__ARM_NEON)
  return vmaxvq_u32(uint32x4_t(lanes)) != 0;
#else
  std::int32_t all = 0;
  for (int i = 0; i < kLanes<float>; ++i) all |= lanes[i];
  return all != 0;
#endif
}

MHA_INLINE std::int32_t sum_of_lanes(const Ints& lanes) {
#ifdef EIGEN_VECTORIZE_AVX512
  return _mm512_reduce_add_epi32(__m512i(lanes));
#else
  std::int32_t sum = 0;
  for (int i = 0; i < kLanes<float>; ++i) sum += lanes[i];
  return sum;
#endif
}

}  // namespace
}  // namespace mha::MHA_ISA

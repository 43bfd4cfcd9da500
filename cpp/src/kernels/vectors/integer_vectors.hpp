// Vectors of integers beside Packet<float>, as wide: bits of numbers, 16-bit ones too, and sums. Eigen has no bytes and
// no 16-bit integers in its packets; the vectors of GCC and Clang have all of them.
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

/// At any address.
template <class Vector>
MHA_INLINE Vector load_vector(const void* at) {
  Vector vector;
  __builtin_memcpy(&vector, at, sizeof vector);
  return vector;
}

}  // namespace
}  // namespace mha::MHA_ISA

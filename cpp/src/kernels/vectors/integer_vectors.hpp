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

}  // namespace
}  // namespace mha::MHA_ISA

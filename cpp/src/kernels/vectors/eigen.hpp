// The only <Eigen/...> include of the library.
//
// Eigen is all templates, and this folder is compiled once for each instruction set. Two objects would hold weak
// symbols with the same name and different code, and the linker would keep one of them for both. Renaming the namespace
// before the include gives every object an Eigen of its own. We use its packet operations: one vocabulary for SSE, AVX,
// AVX-512 and NEON.
#pragma once

#ifndef MHA_ISA
#error "MHA_ISA names the instruction set that this object is compiled for; cpp/cmake/isa.cmake sets it"
#endif

#define MHA_PASTE_EXPANDED(a, b) a##b
#define MHA_PASTE(a, b) MHA_PASTE_EXPANDED(a, b)
#define Eigen MHA_PASTE(mha_eigen_, MHA_ISA)
#define EIGEN_NO_DEBUG
#define EIGEN_DONT_PARALLELIZE
#define EIGEN_MAX_ALIGN_BYTES 64
#include <Eigen/Core>

#include "mha/tensor_view.hpp"

// Loops over the registers of a tile must be unrolled completely, or the accumulators live in memory.
#define MHA_UNROLL _Pragma("GCC unroll 16")
#define MHA_INLINE __attribute__((always_inline)) inline
#define MHA_INLINE_LAMBDA __attribute__((always_inline))

namespace mha::MHA_ISA {
namespace {

using namespace Eigen::internal;

template <class T>
using Packet = typename packet_traits<T>::type;

template <class T>
constexpr int kLanes = packet_traits<T>::size;

// Not std::numeric_limits: a template that all objects would share.
template <class T>
constexpr T kInfinity = T(__builtin_inf());
template <class T>
constexpr T kLowest = sizeof(T) == 4 ? T(-__FLT_MAX__) : T(-__DBL_MAX__);

/// Vectors side by side in a register tile. With 32 registers 6 x 4 accumulators, 4 vectors of B and one broadcast fit,
/// with 16 registers 6 x 2; EVEX and AArch64 have 32. Where tiles multiply rows are wide enough for two of them, also in the
/// model of tiles with 16 registers.
#ifdef MHA_TILES
constexpr int kVectors = 4;
#else
constexpr int kVectors = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS >= 32 ? 4 : 2;
#endif

/// Lanes of a register tile.
template <class T>
constexpr int kWidth = kVectors * kLanes<T>;

}  // namespace
}  // namespace mha::MHA_ISA

// The peak rates of the machine, which benchmarks divide by: multiply-adds in registers, and reading memory.
//
// No part of the library. The benchmarks and the extension module of the Python package link it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mha/tensor_view.hpp"

namespace mha::probes {

/// Runs `rounds` rounds of independent multiply-adds with the active instruction set, in the type that attention
/// computes in for elements of `dtype`. Returns the floating-point operations done.
double multiply_add(DType dtype, Index rounds);

/// Runs multiply_add() on the calling thread for about `seconds` and returns GFLOP/s: the peak of one core.
/// @throws DTypeError if dtype is no floating-point type
double measure_fma_gflops(DType dtype, double seconds);

/// Reads `count` blocks of `bytes` bytes each once, on `threads` threads, and returns the XOR of their 8-byte words,
/// the last word of a block filled up with zeros: how fast this memory can be read at all.
std::uint64_t read_memory(const void* const* blocks, int count, std::size_t bytes, int threads);

}  // namespace mha::probes

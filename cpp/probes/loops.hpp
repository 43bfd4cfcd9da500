// The loops of the probes, compiled once for each instruction set.
#pragma once

#include <cstdint>

#include "mha/tensor_view.hpp"

namespace mha::probes {

struct Loops {
  /// Runs `rounds` rounds of independent multiply-adds; returns the floating-point operations that it did.
  double (*multiply_add[kNumDTypes])(Index rounds);
  /// XOR of `count` words of eight bytes, at any address.
  std::uint64_t (*read_words)(const void* memory, Index count);
};

// One for each row of the generated isa_list.inc: loops_<name>().
#define MHA_ISA(name, required) const Loops& loops_##name();
#include "isa_list.inc"
#undef MHA_ISA

}  // namespace mha::probes

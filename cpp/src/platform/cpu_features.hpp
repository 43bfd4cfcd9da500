// Processor features that __builtin_cpu_supports of some compilers does not know by name, as Clang before version 19.
// Asking the processor is enough: none of these features adds registers that the operating system would have to save
// (F16C computes in the registers of AVX).
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>

namespace mha {

struct Cpuid {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;

  /// Reads one leaf of CPUID; all zeros if the processor does not have it.
  explicit Cpuid(unsigned leaf) { __get_cpuid(leaf, &eax, &ebx, &ecx, &edx); }
};

// "Intel 64 and IA-32 Architectures Software Developer's Manual", volume 2A, table of CPUID leaves.
inline bool has_movbe() { return Cpuid(1).ecx >> 22 & 1U; }
inline bool has_f16c() { return Cpuid(1).ecx >> 29 & 1U; }
inline bool has_lzcnt() { return Cpuid(0x80000001U).ecx >> 5 & 1U; }

}  // namespace mha
#endif

// What a processor can do and not every compiler's __builtin_cpu_supports knows by name: Clang before 19, for one.
// None of these adds registers that an operating system would have to save; F16C computes in those of AVX.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>

namespace mha {

struct Cpuid {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;

  /// All zeros for a leaf that the processor has not.
  explicit Cpuid(unsigned leaf) { __get_cpuid(leaf, &eax, &ebx, &ecx, &edx); }
};

// "Intel 64 and IA-32 Architectures Software Developer's Manual", volume 2A, table of CPUID leaves.
inline bool has_movbe() { return Cpuid(1).ecx >> 22 & 1U; }
inline bool has_f16c() { return Cpuid(1).ecx >> 29 & 1U; }
inline bool has_lzcnt() { return Cpuid(0x80000001U).ecx >> 5 & 1U; }

}  // namespace mha
#endif

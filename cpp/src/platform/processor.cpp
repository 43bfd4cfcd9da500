#include "platform/processor.hpp"

#include "platform/found_once.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace mha {
namespace {

#if defined(__x86_64__)

// "Intel 64 and IA-32 Architectures Software Developer's Manual", volume 2A, table of CPUID leaves.
struct Cpuid {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;

  /// Reads one leaf of CPUID; all zeros if the processor does not have it.
  explicit Cpuid(unsigned leaf, unsigned subleaf = 0) { __get_cpuid_count(leaf, subleaf, &eax, &ebx, &ecx, &edx); }
};

/// Registers that the operating system must save for a feature: bits of XCR0, as XGETBV reads it.
enum Registers : unsigned { kAlways = 0, kAvx = 0x06, kAvx512 = 0xe6, kTiles = 0x60000 };

/// The registers that the operating system saves; 0 if it does not say.
unsigned saved_registers() {
  if ((Cpuid(1).ecx >> 27 & 1U) == 0) return 0;  // OSXSAVE: XGETBV exists
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

/// Where CPUID says that the processor has a feature.
struct Feature {
  unsigned leaf, subleaf;
  unsigned Cpuid::* word;
  int bit;
  Registers needed;

  bool is_here() const {
    return (Cpuid(leaf, subleaf).*word >> bit & 1U) != 0 && (saved_registers() & needed) == needed;
  }
  bool is_lent() const { return needed == kTiles; }
};

/// Asks Linux (5.16 and later) for the 8 KB of tile registers, which it then saves for each thread. It refuses where an
/// alternative signal stack is too small for them, and so do some sandboxes.
bool are_tiles_lent() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

/// Those that REQUIRES of the registry may name. Compilers have __builtin_cpu_supports for this, but not each knows
/// every name, and for Windows Clang calls a library that its linker does not find. They are members, no constants: a
/// build with few sets asks for few, and Clang warns of constants that nobody asks for.
struct Known {
  Feature sse3{1, 0, &Cpuid::ecx, 0, kAlways}, ssse3{1, 0, &Cpuid::ecx, 9, kAlways};
  Feature sse4_1{1, 0, &Cpuid::ecx, 19, kAlways}, sse4_2{1, 0, &Cpuid::ecx, 20, kAlways};
  Feature movbe{1, 0, &Cpuid::ecx, 22, kAlways}, popcnt{1, 0, &Cpuid::ecx, 23, kAlways};
  Feature lzcnt{0x80000001U, 0, &Cpuid::ecx, 5, kAlways};
  Feature avx{1, 0, &Cpuid::ecx, 28, kAvx}, fma{1, 0, &Cpuid::ecx, 12, kAvx};
  Feature f16c{1, 0, &Cpuid::ecx, 29, kAvx}, avx2{7, 0, &Cpuid::ebx, 5, kAvx};
  Feature bmi{7, 0, &Cpuid::ebx, 3, kAlways}, bmi2{7, 0, &Cpuid::ebx, 8, kAlways};
  Feature avxvnni{7, 1, &Cpuid::eax, 4, kAvx};
  Feature avx512f{7, 0, &Cpuid::ebx, 16, kAvx512}, avx512dq{7, 0, &Cpuid::ebx, 17, kAvx512};
  Feature avx512cd{7, 0, &Cpuid::ebx, 28, kAvx512}, avx512bw{7, 0, &Cpuid::ebx, 30, kAvx512};
  Feature avx512vl{7, 0, &Cpuid::ebx, 31, kAvx512}, avx512vnni{7, 0, &Cpuid::ecx, 11, kAvx512};
  Feature avx512bf16{7, 1, &Cpuid::eax, 5, kAvx512};
  Feature amx_tile{7, 0, &Cpuid::edx, 24, kTiles}, amx_int8{7, 0, &Cpuid::edx, 25, kTiles};
  Feature amx_bf16{7, 0, &Cpuid::edx, 22, kTiles};
};

void identify(Processor& processor) {
  const Cpuid maker(0), version(1);
  for (const unsigned letters : {maker.ebx, maker.edx, maker.ecx})
    for (unsigned shift = 0; shift < 32; shift += 8) processor.vendor += static_cast<char>(letters >> shift & 0xff);
  const unsigned family = version.eax >> 8 & 0xf, model = version.eax >> 4 & 0xf;
  processor.family = static_cast<int>(family == 0xf ? family + (version.eax >> 20 & 0xff) : family);
  processor.model = static_cast<int>(family == 6 || family == 0xf ? model | (version.eax >> 12 & 0xf0) : model);
}

#else

#if defined(__aarch64__) && defined(__linux__)

/// Where Linux lists the features of the processor ("ARM64 ELF hwcaps"). Vector registers are always saved.
struct Feature {
  enum Word { hwcap = 16, hwcap2 = 26 } word;  // AT_HWCAP, AT_HWCAP2
  int bit;

  bool is_here() const { return (getauxval(word) >> bit & 1U) != 0; }
  static bool is_lent() { return false; }
};

struct Known {
  Feature crc{Feature::hwcap, 7}, lse{Feature::hwcap, 8}, rdma{Feature::hwcap, 12};
  Feature dotprod{Feature::hwcap, 20}, bf16{Feature::hwcap2, 14};
};

#endif

void identify(Processor&) {}
bool are_tiles_lent() { return false; }

#endif

Processor find_processor() {
  Processor processor;
  identify(processor);
#define MHA_FEATURE(identifier, name) \
  if (Known{}.identifier.is_here()) processor.features |= features::identifier;
#include "feature_list.inc"
#undef MHA_FEATURE
  return processor;
}

}  // namespace

namespace features {

// Some processors have instruction sets that require nothing.
std::string names([[maybe_unused]] std::uint64_t features, int most) {
  std::string text;
  int count = 0;
  [[maybe_unused]] const auto add = [&](const char* name) {
    if (++count <= most) text += (text.empty() ? "" : ", ") + std::string(name);
  };
#define MHA_FEATURE(identifier, name) \
  if (features & identifier) add(name);
#include "feature_list.inc"
#undef MHA_FEATURE
  return count > most ? text + " and " + std::to_string(count - most) + " more" : text;
}

}  // namespace features

const Processor& this_processor() { return found_once<Processor, find_processor>(); }

std::uint64_t lent_features() {
  std::uint64_t lent = 0;
#define MHA_FEATURE(identifier, name) \
  if (Known{}.identifier.is_lent()) lent |= features::identifier;
#include "feature_list.inc"
#undef MHA_FEATURE
  return lent;
}

Processor ask_for_lent_features() {
  Processor processor = this_processor();
  const std::uint64_t lent = processor.features & lent_features();
  if (lent == 0 || are_tiles_lent()) return processor;
  processor.features &= ~lent;
  processor.refused = lent;
  processor.refusal = "the operating system refuses tile registers (arch_prctl)";
  return processor;
}

}  // namespace mha

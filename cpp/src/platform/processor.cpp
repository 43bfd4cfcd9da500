#include "platform/processor.hpp"

#include "platform/found_once.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
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

// Features that __builtin_cpu_supports of some compilers does not know by name, as Clang before version 19. Asking the
// processor is enough where another required feature stands for the registers that the operating system saves: F16C and
// AVX-VNNI compute in those of AVX.
[[maybe_unused]] bool has_movbe() { return Cpuid(1).ecx >> 22 & 1U; }
[[maybe_unused]] bool has_f16c() { return Cpuid(1).ecx >> 29 & 1U; }
[[maybe_unused]] bool has_lzcnt() { return Cpuid(0x80000001U).ecx >> 5 & 1U; }
[[maybe_unused]] bool has_avxvnni() { return Cpuid(7, 1).eax >> 4 & 1U; }

void identify(Processor& processor) {
  const Cpuid maker(0), version(1);
  for (const unsigned letters : {maker.ebx, maker.edx, maker.ecx})
    for (unsigned shift = 0; shift < 32; shift += 8) processor.vendor += static_cast<char>(letters >> shift & 0xff);
  const unsigned family = version.eax >> 8 & 0xf, model = version.eax >> 4 & 0xf;
  processor.family = static_cast<int>(family == 0xf ? family + (version.eax >> 20 & 0xff) : family);
  processor.model = static_cast<int>(family == 6 || family == 0xf ? model | (version.eax >> 12 & 0xf0) : model);
}

#else

void identify(Processor&) {}

#endif

Processor find_processor() {
  Processor processor;
  identify(processor);
#define MHA_FEATURE(identifier, name, found) \
  if (found) processor.features |= features::identifier;
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
#define MHA_FEATURE(identifier, name, found) \
  if (features & identifier) add(name);
#include "feature_list.inc"
#undef MHA_FEATURE
  return count > most ? text + " and " + std::to_string(count - most) + " more" : text;
}

}  // namespace features

const Processor& this_processor() { return found_once<Processor, find_processor>(); }

}  // namespace mha

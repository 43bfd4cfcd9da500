// Which processor this is, and which instructions it has.
#pragma once

#include <cstdint>
#include <string>

namespace mha {

/// A bit for each processor feature that some instruction set of the registry (cpp/cmake/isa.cmake) requires.
namespace features {

enum class Place {
#define MHA_FEATURE(identifier, name) identifier,
#include "feature_list.inc"
#undef MHA_FEATURE
  count
};
static_assert(int(Place::count) <= 64, "features are bits of one word");

#define MHA_FEATURE(identifier, name) constexpr std::uint64_t identifier = std::uint64_t{1} << int(Place::identifier);
#include "feature_list.inc"
#undef MHA_FEATURE

/// The names of features, at most `most` of them, and how many more there are.
std::string names(std::uint64_t features, int most);

}  // namespace features

struct Processor {
  std::string vendor;  // as CPUID spells it, such as "AuthenticAMD"; empty where there is no CPUID
  int family = 0, model = 0;
  std::uint64_t features = 0;  // that it has, and for which the operating system saves the registers
  std::uint64_t refused = 0;   // that it has as well, and that are not to be used
  std::string refusal = {};    // why: a sentence without a full stop
};

/// The processor that this process runs on. Found once.
const Processor& this_processor();

/// Features whose registers the operating system lends to processes that ask: tiles (Intel AMX).
std::uint64_t lent_features();

/// this_processor() after the operating system has been asked for the registers of lent features, and without these
/// where it refuses. Linux grants them for good, to all threads and to children; asking again is harmless.
Processor ask_for_lent_features();

}  // namespace mha

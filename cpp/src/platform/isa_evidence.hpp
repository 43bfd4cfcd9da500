// On which processors an instruction set pays: what was measured, and what is assumed until somebody measures it.
#pragma once

#include "platform/processor.hpp"

namespace mha {

struct Evidence {
  const char* isa;
  const char* vendor;  // as CPUID spells it; null: any
  int family, model;   // kAny: any
  bool pays;           // whether it may be the default there
  const char* reason;  // "measured: ..." or "assumed: ..."; of a model what it is

  static constexpr int kAny = -1;
};

/// What is known of the instruction set on the processor; null if nothing speaks for or against it, and then it pays.
const Evidence* find_evidence(const char* isa, const Processor& processor);

}  // namespace mha

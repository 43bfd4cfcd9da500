// The processors on which an instruction set pays, by measurement, or by assumption until somebody measures it.
#pragma once

#include "platform/processor.hpp"

namespace mha {

struct Evidence {
  const char* isa;
  const char* vendor;  // as CPUID spells it; null: any
  int family, model;   // kAny: any
  bool pays;           // whether it may be the default there
  const char* reason;  // "measured: ..." or "assumed: ..."; for a model, its description

  static constexpr int kAny = -1;
};

/// The evidence about the instruction set on the processor; null if there is none, and then the set pays.
const Evidence* find_evidence(const char* isa, const Processor& processor);

}  // namespace mha

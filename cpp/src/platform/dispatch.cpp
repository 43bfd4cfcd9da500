// The functions of mha/runtime.hpp about instruction sets, and the choice of kernels of dispatch.hpp.
#include "platform/dispatch.hpp"

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "mha/runtime.hpp"
#include "platform/floating_point_state.hpp"
#include "platform/found_once.hpp"
#include "platform/isa_evidence.hpp"
#include "platform/known_answers.hpp"

namespace mha {

#define MHA_ISA(name, required)        \
  namespace name {                     \
  const KernelTable& table() noexcept; \
  }
#include "isa_list.inc"
#undef MHA_ISA

namespace {

struct Isa {
  const char* name;
  const KernelTable& (*table)();
  std::uint64_t required;  // features
};

// In rising order of preference, as registered in cpp/cmake/isa.cmake.
constexpr Isa kIsas[] = {
#define MHA_ISA(name, required) {#name, &name::table, required},
#include "isa_list.inc"
#undef MHA_ISA
};
constexpr int kNumIsas = static_cast<int>(sizeof kIsas / sizeof *kIsas);
constexpr int kNone = -1;

const Isa& isa_at(int index) {
  if (index < 0 || index >= kNumIsas)
    throw std::invalid_argument("isa index: expected 0 to " + std::to_string(kNumIsas - 1) + "; got " +
                                std::to_string(index));
  return kIsas[index];
}

/// Whether an instruction set that this machine runs multiplies by tiles, and these give other bits than expected.
bool multiplies_otherwise(int index) {
  const TileInstructions& tiles = kIsas[index].table().tiles;
  if (tiles.multiply_bf16 == nullptr) return false;
  const FloatingPointState state;
  return !gives_known_answers(tiles);
}

Processor find_trusted_processor() { return without_refused(ask_for_lent_features(), &multiplies_otherwise); }

/// The features that decide about an instruction set. Asks for registers on loan only if the set needs them.
const Processor& processor_for(int index) {
  return (isa_at(index).required & lent_features()) == 0 ? this_processor() : trusted_processor();
}

std::string supported_names() {
  std::string names;
  for (int index = 0; index < kNumIsas; ++index)
    if (isa_supported(index)) names += (names.empty() ? "" : ", ") + std::string(kIsas[index].name);
  return names.empty() ? "none" : names;
}

/// Index of the instruction set called `name`; the error message begins with `source`.
int find_isa(const std::string& source, const std::string& name) {
  for (int index = 0; index < kNumIsas; ++index) {
    if (name != kIsas[index].name) continue;
    if (isa_supported(index)) return index;
    throw std::invalid_argument(source + ": this machine does not run the instruction set '" + name +
                                "'; available: " + supported_names());
  }
  throw std::invalid_argument(source + ": unknown instruction set '" + name + "'; available: " + supported_names());
}

/// The instruction set that is used unless set_isa() has chosen one. Found once. If MHA_NATIVE_ISA asks for something
/// impossible, `index` is kNone and every call that needs the default throws `explanation`; for the best that is empty.
struct DefaultIsa {
  int index = kNone;
  std::string explanation;

  DefaultIsa() {
    const char* requested = std::getenv("MHA_NATIVE_ISA");  // NOLINT(concurrency-mt-unsafe): nothing here sets one
    if (requested != nullptr && *requested != '\0') {
      try {
        index = find_isa("MHA_NATIVE_ISA", requested);
        explanation = "the environment variable MHA_NATIVE_ISA asks for it";
      } catch (const std::invalid_argument& error) {
        explanation = error.what();
      }
      return;
    }
    index = default_isa_index(kNumIsas, &isa_supported, &isa_preferred);
    if (index == kNone)
      explanation = std::string("this machine runs none of the instruction sets that were built, from '") +
                    kIsas[0].name + "' upwards";
  }
};

DefaultIsa find_default_isa() { return {}; }

const DefaultIsa& default_isa() { return found_once<DefaultIsa, find_default_isa>(); }

std::atomic<int> chosen_isa{kNone};  // by set_isa()

/// The instruction sets of a thread: one thread-local variable, since finding it takes longer than reading it.
struct ThreadIsas {
  int of_scope = kNone;  // of the innermost IsaScope
  const char* last_used = "";
};
thread_local ThreadIsas thread_isas;

const Isa& current_isa(const ThreadIsas& thread = thread_isas) {
  int index = thread.of_scope;
  if (index == kNone) index = chosen_isa.load(std::memory_order_relaxed);
  if (index == kNone) {
    index = default_isa().index;
    if (index == kNone) throw std::invalid_argument(default_isa().explanation);
  }
  return kIsas[index];
}

/// Not found with the default, since finding the sets that run may take a loan.
std::string explain_best() { return "the best for this processor, of: " + supported_names(); }

using Reasons = std::vector<std::string>;

Reasons find_reasons() {
  Reasons reasons;
  for (int index = 0; index < kNumIsas; ++index) reasons.push_back(isa_reason_on(index, processor_for(index)));
  return reasons;
}

}  // namespace

const KernelTable& active_kernels() {
  ThreadIsas& thread = thread_isas;
  const Isa& isa = current_isa(thread);
  thread.last_used = isa.name;
  return isa.table();
}

int num_built_isas() { return kNumIsas; }

const char* built_isa(int index) { return isa_at(index).name; }

const Processor& trusted_processor() { return found_once<Processor, find_trusted_processor>(); }

bool isa_supported(int index) { return isa_runs_on(index, processor_for(index)); }

bool isa_preferred(int index) { return isa_pays_on(index, this_processor()); }

const char* isa_reason(int index) {
  isa_at(index);
  return found_once<Reasons, find_reasons>()[static_cast<std::size_t>(index)].c_str();
}

bool isa_runs_on(int index, const Processor& processor) { return (isa_at(index).required & ~processor.features) == 0; }

bool isa_pays_on(int index, const Processor& processor) {
  const Evidence* const evidence = find_evidence(isa_at(index).name, processor);
  return evidence == nullptr || evidence->pays;
}

std::string isa_reason_on(int index, const Processor& processor) {
  const std::uint64_t missing = isa_at(index).required & ~processor.features;
  if (missing != 0 && (missing & ~processor.refused) == 0) return "does not run here: " + processor.refusal;
  if (missing != 0) return "does not run here, without " + features::names(missing, 3);
  const Evidence* const evidence = find_evidence(isa_at(index).name, processor);
  if (evidence == nullptr) return "runs here";
  return (evidence->pays ? "runs here; " : "runs here, but not by default; ") + std::string(evidence->reason);
}

Processor without_refused(const Processor& processor, const std::function<bool(int)>& refused) {
  Processor trusted = processor;
  std::uint64_t earlier = 0;
  for (int index = 0; index < kNumIsas; ++index) {
    const std::uint64_t required = kIsas[index].required, own = required & ~earlier;
    earlier |= required;
    if (own == 0 || !isa_runs_on(index, trusted) || !refused(index)) continue;
    trusted.features &= ~own;
    trusted.refused |= own;
    trusted.refusal =
        std::string("its products by '") + kIsas[index].name + "' have other bits than the kernels count on";
  }
  return trusted;
}

int default_isa_on(const Processor& processor) {
  return default_isa_index(
      kNumIsas, [&](int index) { return isa_runs_on(index, processor); },
      [&](int index) { return isa_pays_on(index, processor); });
}

int default_isa_index(int count, const std::function<bool(int)>& supported, const std::function<bool(int)>& preferred) {
  for (int index = count - 1; index >= 0; --index)
    if (preferred(index) && supported(index)) return index;
  return kNone;
}

const char* active_isa() { return current_isa().name; }

const char* active_isa_reason() {
  current_isa();  // throws as any other call would
  if (thread_isas.of_scope != kNone) return "it was chosen by an IsaScope of this thread";
  if (chosen_isa.load(std::memory_order_relaxed) != kNone) return "it was chosen by set_isa()";
  const std::string& requested = default_isa().explanation;
  return (requested.empty() ? found_once<std::string, explain_best>() : requested).c_str();
}

void set_isa(const char* name) {
  const bool is_default = name == nullptr || *name == '\0';
  chosen_isa.store(is_default ? kNone : find_isa("set_isa: name", name), std::memory_order_relaxed);
}

const char* last_used_isa() { return thread_isas.last_used; }

IsaScope::IsaScope(int index) : outer_(thread_isas.of_scope) {
  if (!isa_supported(index))
    throw std::invalid_argument(std::string("IsaScope index: this machine does not run the instruction set '") +
                                built_isa(index) + "'");
  thread_isas.of_scope = index;
}

IsaScope::~IsaScope() { thread_isas.of_scope = outer_; }

}  // namespace mha

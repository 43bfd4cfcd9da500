// The functions of mha/runtime.hpp about instruction sets, and the choice of kernels of dispatch.hpp.
#include "platform/dispatch.hpp"

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "mha/runtime.hpp"
#include "platform/cpu_features.hpp"
#include "platform/found_once.hpp"

namespace mha {

#define MHA_ISA(name, condition, preferred) \
  namespace name {                          \
  const KernelTable& table() noexcept;      \
  }
#include "isa_list.inc"
#undef MHA_ISA

namespace {

struct Isa {
  const char* name;
  const KernelTable& (*table)();
  bool (*supported)();
  bool (*preferred)();  // whether it is chosen by default on a machine that supports it
};

// In rising order of preference, as registered in cpp/cmake/isa.cmake.
constexpr Isa kIsas[] = {
#define MHA_ISA(name, condition, preferred) \
  {#name, &name::table, [] { return bool(condition); }, [] { return bool(preferred); }},
#include "isa_list.inc"
#undef MHA_ISA
};
constexpr int kNumIsas = static_cast<int>(sizeof kIsas / sizeof *kIsas);
constexpr int kNone = -1;

std::string supported_names() {
  std::string names;
  for (const Isa& isa : kIsas)
    if (isa.supported()) names += (names.empty() ? "" : ", ") + std::string(isa.name);
  return names.empty() ? "none" : names;
}

/// Index of the instruction set called `name`; the error message begins with `source`.
int find_isa(const std::string& source, const std::string& name) {
  for (int index = 0; index < kNumIsas; ++index) {
    if (name != kIsas[index].name) continue;
    if (kIsas[index].supported()) return index;
    throw std::invalid_argument(source + ": this machine does not run the instruction set '" + name +
                                "'; available: " + supported_names());
  }
  throw std::invalid_argument(source + ": unknown instruction set '" + name + "'; available: " + supported_names());
}

/// The instruction set that is used unless set_isa() has chosen one. Found once. If MHA_NATIVE_ISA asks for something
/// impossible, `index` is kNone and every call that needs the default throws `explanation`.
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
    explanation = index == kNone
                      ? std::string("this machine runs none of the instruction sets that were built, from '") +
                            kIsas[0].name + "' upwards"
                      : "the best that this machine runs, of: " + supported_names();
  }
};

DefaultIsa find_default_isa() { return {}; }

const DefaultIsa& default_isa() { return found_once<DefaultIsa, find_default_isa>(); }

std::atomic<int> chosen_isa{kNone};  // by set_isa()
thread_local const char* last_used = "";

const Isa& current_isa() {
  int index = chosen_isa.load(std::memory_order_relaxed);
  if (index == kNone) {
    index = default_isa().index;
    if (index == kNone) throw std::invalid_argument(default_isa().explanation);
  }
  return kIsas[index];
}

const Isa& isa_at(int index) {
  if (index < 0 || index >= kNumIsas)
    throw std::invalid_argument("isa index: expected 0 to " + std::to_string(kNumIsas - 1) + "; got " +
                                std::to_string(index));
  return kIsas[index];
}

}  // namespace

const KernelTable& active_kernels() {
  const Isa& isa = current_isa();
  last_used = isa.name;
  return isa.table();
}

int num_built_isas() { return kNumIsas; }

const char* built_isa(int index) { return isa_at(index).name; }

bool isa_supported(int index) { return isa_at(index).supported(); }

bool isa_preferred(int index) { return isa_at(index).preferred(); }

int default_isa_index(int count, bool (*supported)(int), bool (*preferred)(int)) {
  for (int index = count - 1; index >= 0; --index)
    if (supported(index) && preferred(index)) return index;
  return kNone;
}

const char* active_isa() { return current_isa().name; }

const char* active_isa_reason() {
  current_isa();  // throws what any other call would
  return chosen_isa.load(std::memory_order_relaxed) == kNone ? default_isa().explanation.c_str()
                                                             : "it was chosen by set_isa()";
}

void set_isa(const char* name) {
  const bool is_default = name == nullptr || *name == '\0';
  chosen_isa.store(is_default ? kNone : find_isa("set_isa: name", name), std::memory_order_relaxed);
}

const char* last_used_isa() { return last_used; }

}  // namespace mha

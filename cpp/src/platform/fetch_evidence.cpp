#include "platform/fetch_evidence.hpp"

#include "platform/found_once.hpp"

namespace mha {
namespace {

constexpr int kZen5 = 0x1a;  // family of AMD

bool find() { return fetches_few_rows_ahead_on(this_processor()); }

}  // namespace

bool fetches_few_rows_ahead() { return found_once<bool, find>(); }

bool fetches_few_rows_ahead_on(const Processor& processor) {
  // Measured on Zen 5. On Zen 4 it takes longer, and other processors are assumed to be like that.
  return processor.vendor == "AuthenticAMD" && processor.family == kZen5;
}

}  // namespace mha

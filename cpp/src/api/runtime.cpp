// The thread half of mha/runtime.hpp: the process-wide default. dispatch.cpp holds the instruction sets, parallel.cpp
// forked children, workspace.cpp the scratch.
#include "mha/runtime.hpp"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>

#include "platform/found_once.hpp"
#include "platform/parallel.hpp"
#include "platform/thread_count.hpp"

namespace mha {
namespace {

std::atomic<int> chosen_threads{0};  // by set_num_threads()

const ThreadCount& default_threads() { return found_once<ThreadCount, default_thread_count>(); }

/// The number without a limit.
int wanted_threads() {
  const int chosen = chosen_threads.load(std::memory_order_relaxed);
  return chosen > 0 ? chosen : default_threads().count;
}

}  // namespace

int num_threads() { return std::min(wanted_threads(), thread_limit().count); }

const char* num_threads_reason() {
  if (const ThreadLimit limit = thread_limit(); limit.count < wanted_threads()) return limit.reason;
  return chosen_threads.load(std::memory_order_relaxed) > 0 ? "it was chosen by set_num_threads()"
                                                            : default_threads().reason.c_str();
}

void set_num_threads(int n) {
  if (n < 0) throw std::invalid_argument("set_num_threads n: expected 0 or more; got " + std::to_string(n));
  chosen_threads.store(n, std::memory_order_relaxed);
}

}  // namespace mha

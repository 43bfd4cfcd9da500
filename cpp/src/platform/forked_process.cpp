#include "platform/forked_process.hpp"

#include <atomic>
#include <fstream>
#include <sstream>

#include "mha/runtime.hpp"

#ifndef _WIN32
#include <pthread.h>
#endif

namespace mha {
namespace {

/// Set in every child that is forked from here on, even if this library has started no thread: another library may have
/// started some in the same OpenMP runtime.
std::atomic<bool> is_forked{false};
#ifndef _WIN32
const int watches_for_forks =
    pthread_atfork(nullptr, nullptr, [] { is_forked.store(true, std::memory_order_relaxed); });
#endif

const bool is_loaded_after_fork = is_forked_without_exec();  // found while the library is loaded

}  // namespace

bool in_forked_child() { return is_forked.load(std::memory_order_relaxed); }

bool loaded_after_fork() { return is_loaded_after_fork; }

bool is_forked_without_exec(const std::string& proc_self) {
  constexpr unsigned kForkedWithoutExec = 0x40;  // PF_FORKNOEXEC of include/linux/sched.h; exec() clears it
  // "pid (name) state ppid pgrp session tty_nr tpgid flags ...", see proc(5). The name may contain spaces and brackets.
  std::ifstream file(proc_self + "/stat");
  std::string line;
  if (!std::getline(file, line)) return false;
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string skipped;
  unsigned flags = 0;
  fields >> skipped >> skipped >> skipped >> skipped >> skipped >> skipped >> flags;
  return (flags & kForkedWithoutExec) != 0;
}

}  // namespace mha

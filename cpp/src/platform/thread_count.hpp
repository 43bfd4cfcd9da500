// How many threads to use when nobody said.
#pragma once

#include <string>

namespace mha {

struct ThreadCount {
  int count;
  std::string reason;
};

/// `omp_num_threads` (the environment variable, or null) if its first entry is a positive integer, else the smaller of
/// `processors` and `quota`, the latter rounded up; at least 1. `quota` is infinity where there is none.
ThreadCount choose_thread_count(const char* omp_num_threads, int processors, double quota);

/// choose_thread_count() of this process: its environment, its affinity mask and its cgroup.
ThreadCount default_thread_count();

}  // namespace mha

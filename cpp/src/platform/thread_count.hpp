// The number of threads that calls use by default.
#pragma once

#include <string>

namespace mha {

struct ThreadCount {
  int count;
  std::string reason;  // one clause, for the user
};

/// `omp_num_threads` (the environment variable, or null) if its first entry is a positive integer, else the smaller of
/// `processors` and `quota`, the latter rounded up; at least 1. `quota` is infinity where there is none; `source` names
/// the origin of `processors` in the reason.
ThreadCount choose_thread_count(const char* omp_num_threads, int processors, double quota,
                                const char* source = "the affinity mask");

/// choose_thread_count() for this process, from its environment, its affinity mask (or the places to which OpenMP has
/// bound its threads) and its cgroups.
ThreadCount default_thread_count();

}  // namespace mha

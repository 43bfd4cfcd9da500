// The one place that knows about threads; parallel.cpp is the only file that includes <omp.h>.
#pragma once

#include "mha/tensor_view.hpp"

namespace mha {

/// A set of independent tasks. `run(context, task, worker)` must not throw; `worker` < the number of threads given to
/// run_phases names the scratch that the task may use.
struct Phase {
  Index tasks;
  void (*run)(const void* context, Index task, int worker);
  const void* context;
};

/// Runs the phases one after another, the tasks of each in any order on up to `threads` threads: those of the calling
/// thread's ExecutorScope, else of the build; with OpenMP all phases are one parallel region. Workers take tasks in
/// rising order as they become free. Serial inside another parallel region and in a forked child.
void run_phases(const Phase* phases, int count, int threads);

/// How many threads to use: `requested` (0: the default of runtime.hpp), no more than `tasks`, and no more than leaves
/// each thread `work` enough to pay for waking it. `work` counts multiply-adds.
int threads_for(int requested, Index tasks, double work);

}  // namespace mha

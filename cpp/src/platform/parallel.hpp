// How tasks are run on threads. parallel.cpp is the only file of the library that includes <omp.h>.
#pragma once

#include "mha/tensor_view.hpp"

namespace mha {

/// A set of independent tasks, numbered from 0. `run(context, task, worker)` must not throw. `worker` is in [0,
/// threads) of run_phases(): no two tasks that run at the same time have the same one, so it says which scratch memory
/// is theirs.
struct Phase {
  Index tasks;
  void (*run)(const void* context, Index task, int worker);
  const void* context;
};

/// Runs the phases one after another: the next one begins when all tasks of the one before are done. Up to `threads`
/// workers take the tasks of a phase in rising order, each its next one when it is free. The threads are those of the
/// calling thread's ExecutorScope if there is one, otherwise those that the build was configured with; with OpenMP all
/// phases are one parallel region. Runs everything on the calling thread inside another parallel region, and in a
/// forked child. The calling thread must have a FloatingPointState; all other threads get one.
void run_phases(const Phase* phases, int count, int threads);

/// How many threads a call should use: `requested` (0: the default of runtime.hpp), but no more than there are `tasks`,
/// and no more than leave each thread enough of the `work`, in multiply-adds, to pay for waking it.
int threads_for(int requested, Index tasks, double work);

}  // namespace mha

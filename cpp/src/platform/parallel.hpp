// How tasks are run on threads. parallel.cpp is the only file of the library that includes <omp.h>.
#pragma once

#include "mha/tensor_view.hpp"

namespace mha {

/// A set of independent tasks, numbered from 0. `run(context, task, worker)` must not throw, and if it may take more
/// than 10 ms it looks between its parts whether the call is to end (cancellation.hpp). `worker` is in [0, threads) of
/// run_phases(): no two tasks that run at the same time have the same one, so it says which scratch memory is theirs.
struct Phase {
  Index tasks;
  void (*run)(const void* context, Index task, int worker);
  const void* context;
};

/// Runs the phases one after another: the next one begins when all tasks of the one before are done. Up to `threads`
/// workers take the tasks of a phase in rising order, each its next one when it is free. The threads belong to the
/// calling thread's ExecutorScope if there is one, otherwise to the library's pool (MHA_THREADS); with OpenMP all
/// phases are one parallel region. Runs everything on the calling thread inside another parallel region, and in a
/// forked child. The calling thread has a FloatingPointState from its function of api/; all others get one here.
/// @throws Cancelled when all workers are done, if the calling thread's CancellationScope ended the call: then tasks
///   were left out
void run_phases(const Phase* phases, int count, int threads);

/// How many threads a call should use: `requested` (0: the default of runtime.hpp), but no more than there are `tasks`,
/// and no more than leave each thread enough of the `work`, in multiply-adds, to pay for waking it.
int threads_for(int requested, Index tasks, double work);

/// A number of threads that no call exceeds, and one clause of the reason, for the user.
struct ThreadLimit {
  int count;
  const char* reason;
};

/// The limit of calls of this thread now, without an ExecutorScope.
ThreadLimit thread_limit();

/// On how many processors OpenMP's threads run if OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY bind them; 0 if
/// nothing binds them, or if OpenMP does not compute. libgomp takes a copy of the process's affinity mask when it is
/// loaded, and then binds the thread that loads it to one place. From there on the mask of that thread, and of all
/// threads that it starts, no longer says where the process may run.
int processors_of_openmp_places();

}  // namespace mha

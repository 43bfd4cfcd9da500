// Phases on the threads of OpenMP, of our own pool, or of a caller's executor.
#include "platform/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "mha/executor.hpp"
#include "mha/runtime.hpp"
#include "platform/cancellation.hpp"
#include "platform/cpu_pause.hpp"
#include "platform/floating_point_state.hpp"
#include "platform/forked_process.hpp"
#include "platform/startable_threads.hpp"
#include "platform/thread_pool.hpp"

#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef __linux__
#include <sched.h>
#endif

namespace mha {
namespace {

// The fewest multiply-adds that are worth one more thread; they take 1 us on a Zen 5 core. A thread that is awake, as
// in a loop of calls, joins in less time than that. One that sleeps joins in 5 to 50 us, and one that another process
// has displaced in milliseconds.
constexpr double kWorkPerThread = 1.25e5;

// More threads than this make no call faster: few machines have as many processors. libgomp has a struct for each of
// them on the stack of the caller, some 200 bytes, which 100000 threads overflow.
constexpr int kMostThreads = 1024;

thread_local const Executor* chosen_executor = nullptr;  // of the innermost ExecutorScope; null outside of any
thread_local bool is_worker = false;                     // this thread is inside a task that an executor runs

/// The executor that computes for this thread; null if OpenMP does, or if there are no threads in this build.
const Executor* executor() {
  if (chosen_executor != nullptr) return chosen_executor;
#if defined _OPENMP
  // OpenMP may be waiting for threads that it had before the fork, when another library computed with it.
  return loaded_after_fork() ? &thread_pool() : nullptr;
#elif defined MHA_THREADS_STD
  return &thread_pool();
#else
  return nullptr;
#endif
}

bool can_run_parallel() {
  if (in_forked_child() || is_worker) return false;
#ifdef _OPENMP
  if (chosen_executor == nullptr) return !omp_in_parallel();
#endif
  return executor() != nullptr;
}

void run_serial(const Phase& phase, Cancellation& cancellation) {
  for (Index task = 0; task < phase.tasks && !cancellation.is_set(); ++task) phase.run(phase.context, task, 0);
}

/// Takes tasks until there are none, or until `is_over`.
template <class IsOver>
void take_tasks(const Phase& phase, std::atomic<Index>& next, int worker, IsOver is_over) {
  while (!is_over()) {
    const Index task = next.fetch_add(1, std::memory_order_relaxed);
    if (task >= phase.tasks) break;
    phase.run(phase.context, task, worker);
  }
}

/// Runs a phase on an executor: each of its bodies is a worker.
///
/// The calling thread may be one of them, or wait for them and so have no occasion to ask whether the call is to end.
/// Then the others leave the rest of the tasks to another round.
void run_on(const Executor& executor, const Phase& phase, int workers, Cancellation& caller) {
  struct Work {
    const Phase& phase;
    const CancellationScopes scopes;
    std::atomic<Index> next{0};
  } work{phase, caller.scopes()};
  const auto run_worker = [](void* context, int worker) {
    const FloatingPointState state;
    Work& shared = *static_cast<Work*>(context);
    const FollowCaller follow(shared.scopes);
    Cancellation& cancellation = Cancellation::of_this_thread();
    is_worker = true;
    take_tasks(shared.phase, shared.next, worker,
               [&] { return cancellation.is_set() || cancellation.is_caller_late(); });
    is_worker = false;
  };
  while (work.next.load(std::memory_order_relaxed) < phase.tasks && !caller.is_set_before_waiting())
    executor.parallel_for(executor.state, workers, run_worker, &work);
}

/// Runs the phases on an executor. There can be no barrier between its workers, because an executor may run them one
/// after another. So each phase is a parallel_for() of its own, which returns when all its workers have.
void run_on(const Executor& executor, const Phase* phases, int count, int threads, Cancellation& caller) {
  for (int p = 0; p < count; ++p) {
    const auto workers = static_cast<int>(std::min<Index>(threads, phases[p].tasks));
    if (workers <= 1)
      run_serial(phases[p], caller);
    else
      run_on(executor, phases[p], workers, caller);
  }
}

#ifdef _OPENMP
struct alignas(64) TaskCounter {  // two counters never share a cache line of 64 bytes
  std::atomic<Index> next{0};
};

// Linux may wake a sleeping thread on the processor of the caller. The thread then waits for the caller to leave that
// processor, while the caller, done with its tasks, spins in the barrier and waits for the thread. For the first call
// after a pause this takes 4 to 8 ms, until the scheduler moves one of the two. So the caller yields its processor if a
// thread has not arrived, and a thread that finds itself on the caller's processor moves to another one.
// docs/decisions/0012-late-threads.md has the measurements.

// How often the caller checks before it yields. This takes some 30 us, enough for a thread that can wake up to arrive.
constexpr int kSpins = 1000;

/// Waits until `threads` threads have arrived.
void await_arrivals(const std::atomic<int>& arrived, int threads) {
  for (int spins = 0; arrived.load(std::memory_order_relaxed) < threads; ++spins)
    if (spins < kSpins)
      cpu_pause();
    else
      std::this_thread::yield();
}

#ifdef __linux__
int current_processor() { return sched_getcpu(); }

/// Moves this thread away from `processor` if it is there: takes the processor out of its affinity mask, at which Linux
/// moves the thread, and puts the mask back.
void leave_processor(int processor) {
  if (processor < 0 || sched_getcpu() != processor) return;
  cpu_set_t allowed, others;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;  // more processors than cpu_set_t holds
  others = allowed;
  CPU_CLR(static_cast<unsigned>(processor), &others);
  if (CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof others, &others) == 0)
    sched_setaffinity(0, sizeof allowed, &allowed);
}
#else
int current_processor() { return -1; }
void leave_processor(int) {}
#endif

void run_region(const Phase* phases, int count, int threads, CancellationScopes scopes) {
  // Phases use the two counters in turn. During a phase no thread reads the counter of the next one: its last use ended
  // at the barrier before this phase, and its next use begins at the barrier after it. So the caller may reset it now.
  TaskCounter counters[2];
  std::atomic<int> arrived{0};
  const int processor_of_caller = current_processor();
#pragma omp parallel num_threads(threads)
  {
    const FloatingPointState state;
    const int worker = omp_get_thread_num();
    const FollowCaller follow(scopes);
    Cancellation& cancellation = Cancellation::of_this_thread();
    if (worker > 0) leave_processor(processor_of_caller);
    arrived.fetch_add(1, std::memory_order_relaxed);
    for (int p = 0; p < count; ++p) {
      if (worker == 0) counters[(p + 1) % 2].next.store(0, std::memory_order_relaxed);
      take_tasks(phases[p], counters[p % 2].next, worker, [&] { return cancellation.is_set(); });
      if (p == 0 && worker == 0) await_arrivals(arrived, omp_get_num_threads());
      if (p + 1 < count) {
#pragma omp barrier
      }
    }
  }
}
#endif

void run_parallel(const Phase* phases, int count, int threads, Cancellation& caller) {
  if (const Executor* chosen = executor()) return run_on(*chosen, phases, count, threads, caller);
#ifdef _OPENMP
  run_region(phases, count, startable_threads(threads), caller.scopes());
#endif
}

}  // namespace

void run_phases(const Phase* phases, int count, int threads) {
  Cancellation& cancellation = Cancellation::of_this_thread();
  if (threads > 1 && can_run_parallel())
    run_parallel(phases, count, threads, cancellation);
  else
    for (int p = 0; p < count; ++p) run_serial(phases[p], cancellation);
  cancellation.end_call_if_set();
}

int threads_for(int requested, Index tasks, double work) {
  if (!can_run_parallel()) return 1;
  const double most = std::min(static_cast<double>(tasks), work / kWorkPerThread);
  if (most < 2) return 1;  // a small call does not ask for more
  const int threads = chosen_executor != nullptr ? (requested > 0 ? requested : chosen_executor->num_threads)
                      : requested > 0            ? std::min(requested, thread_limit().count)
                                                 : num_threads();
  return most < threads ? static_cast<int>(most) : threads;
}

ThreadLimit thread_limit() {
  if (in_forked_child()) return {1, "a forked process computes on one thread"};
  if (!can_run_parallel())
    return {1, "this thread is inside a parallel region, or the library was built without threads"};
#ifdef _OPENMP
  if (executor() == nullptr) {
    if (omp_get_max_active_levels() < 1) return {1, "OMP_MAX_ACTIVE_LEVELS is 0"};
    const int processors = omp_get_dynamic() ? omp_get_num_procs() : kMostThreads;
    if (omp_get_thread_limit() < std::min(processors, kMostThreads))
      return {omp_get_thread_limit(), "OMP_THREAD_LIMIT allows no more"};
    if (processors < kMostThreads) return {processors, "OMP_DYNAMIC allows no more than there are processors"};
  }
#endif
  return {kMostThreads, "no call uses more"};
}

int processors_of_openmp_places() {
#ifdef _OPENMP
  if (loaded_after_fork() || omp_get_proc_bind() == omp_proc_bind_false) return 0;
  std::set<int> processors;  // places may overlap
  for (int place = 0; place < omp_get_num_places(); ++place) {
    std::vector<int> numbers(static_cast<std::size_t>(std::max(omp_get_place_num_procs(place), 0)));
    omp_get_place_proc_ids(place, numbers.data());
    processors.insert(numbers.begin(), numbers.end());
  }
  // A list in GOMP_CPU_AFFINITY may name processors outside of the affinity mask; omp_get_num_procs() counts the mask
  // as it was before threads were bound.
  return std::min(static_cast<int>(processors.size()), omp_get_num_procs());
#else
  return 0;
#endif
}

ExecutorScope::ExecutorScope(const Executor& executor) : executor_(executor), outer_(chosen_executor) {
  if (executor.parallel_for == nullptr) throw std::invalid_argument("ExecutorScope executor: parallel_for is null");
  if (executor.num_threads < 1)
    throw std::invalid_argument("ExecutorScope executor: num_threads must be at least 1; got " +
                                std::to_string(executor.num_threads));
  chosen_executor = &executor_;
}

ExecutorScope::~ExecutorScope() { chosen_executor = outer_; }

}  // namespace mha

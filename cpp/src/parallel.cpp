// Threads, by OpenMP: one parallel region for all phases of a call.
#include "parallel.hpp"

#include <algorithm>
#include <atomic>

#include "mha/runtime.hpp"

#ifdef _OPENMP
#include <omp.h>
#endif
#ifndef _WIN32
#include <pthread.h>
#endif

namespace mha {
namespace {

// Fewest multiply-adds that are worth a thread of their own: 8 us on a Zen 5 core. A thread that is awake joins in
// about 2 us, one that sleeps in 5 to 50, one that another process has displaced in milliseconds.
constexpr double kWorkPerThread = 1e6;

/// Set in every forked child. It has OpenMP's memory without its threads, and would wait for them forever. Whether
/// OpenMP had threads at the moment of the fork cannot be known: another library may have started them in the same
/// runtime.
std::atomic<bool> is_forked{false};
#ifndef _WIN32
const int watches_for_forks =
    pthread_atfork(nullptr, nullptr, [] { is_forked.store(true, std::memory_order_relaxed); });
#endif

bool can_run_parallel() {
#ifdef _OPENMP
  return !in_forked_child() && !omp_in_parallel();
#else
  return false;
#endif
}

void run_serial(const Phase* phases, int count) {
  for (int p = 0; p < count; ++p)
    for (Index task = 0; task < phases[p].tasks; ++task) phases[p].run(phases[p].context, task, 0);
}

#ifdef _OPENMP
struct alignas(64) TaskCounter {  // a cache line each
  std::atomic<Index> next{0};
};

void run_parallel(const Phase* phases, int count, int threads) {
  // Phases use the two counters in turn. During one phase nobody looks at the counter of the next: the barrier before
  // has ended its last use, the barrier after will begin its next one. So any thread may set it back to zero.
  TaskCounter counters[2];
#pragma omp parallel num_threads(threads)
  {
    const int worker = omp_get_thread_num();
    for (int p = 0; p < count; ++p) {
      const Phase& phase = phases[p];
      std::atomic<Index>& next = counters[p % 2].next;
      if (worker == 0) counters[(p + 1) % 2].next.store(0, std::memory_order_relaxed);
      for (;;) {
        const Index task = next.fetch_add(1, std::memory_order_relaxed);
        if (task >= phase.tasks) break;
        phase.run(phase.context, task, worker);
      }
      if (p + 1 < count) {
#pragma omp barrier
      }
    }
  }
}
#endif

}  // namespace

bool in_forked_child() { return is_forked.load(std::memory_order_relaxed); }

void run_phases(const Phase* phases, int count, int threads) {
#ifdef _OPENMP
  if (threads > 1 && can_run_parallel()) {
    run_parallel(phases, count, threads);
    return;
  }
#else
  static_cast<void>(threads);
#endif
  run_serial(phases, count);
}

int threads_for(int requested, Index tasks, double work) {
  if (!can_run_parallel()) return 1;
  const double most = std::min(static_cast<double>(tasks), work / kWorkPerThread);
  const int threads = requested > 0 ? requested : num_threads();
  return most < threads ? std::max(1, static_cast<int>(most)) : threads;
}

}  // namespace mha

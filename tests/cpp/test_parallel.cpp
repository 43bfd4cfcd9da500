// run_phases: every task runs once, no phase begins before the one before has ended, workers are in range, and no
// thread is used after a fork.
#include "platform/parallel.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "mha/runtime.hpp"

namespace mha {
namespace {

constexpr double kPlentyOfWork = 1e12;

/// Phases that count their tasks and notice if one begins too early.
class Phases {
 public:
  Phases(const std::vector<Index>& sizes, int threads) : threads_(threads) {
    Index before = 0;
    for (Index size : sizes) {
      contexts_.emplace_back(this, before, static_cast<std::size_t>(size));
      phases_.push_back({size, &Context::run, &contexts_.back()});
      before += size;
    }
  }

  void run() const { run_phases(phases_.data(), static_cast<int>(phases_.size()), threads_); }

  void expect_all_done_once() const {
    for (const Context& context : contexts_)
      for (const std::atomic<int>& runs : context.runs) EXPECT_EQ(runs, 1);
    EXPECT_EQ(errors_, 0);
  }

 private:
  struct Context {
    Context(Phases* all, Index tasks_before, std::size_t tasks) : phases(all), before(tasks_before), runs(tasks) {}

    static void run(const void* context, Index task, int worker) {
      const auto& self = *static_cast<const Context*>(context);
      if (worker < 0 || worker >= self.phases->threads_) ++self.phases->errors_;
      if (self.phases->done_ < self.before) ++self.phases->errors_;  // an earlier phase was not over
      ++self.runs[static_cast<std::size_t>(task)];
      ++self.phases->done_;
    }

    Phases* phases;
    Index before;
    mutable std::vector<std::atomic<int>> runs;
  };

  int threads_;
  std::deque<Context> contexts_;
  std::vector<Phase> phases_;
  std::atomic<Index> done_{0};
  std::atomic<int> errors_{0};
};

TEST(Parallel, EveryTaskRunsOnceAndPhasesWaitForEachOther) {
  for (int threads : {1, 2, 3, 7}) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      const Phases phases({100, 1, 0, 17, 0, 0, 3, 64, 2, 1, 40}, threads);
      phases.run();
      phases.expect_all_done_once();
    }
  }
}

TEST(Parallel, NoPhasesAndNoTasksAreFine) {
  run_phases(nullptr, 0, 3);
  const Phases phases({0}, 3);
  phases.run();
}

TEST(Parallel, SeveralCallersAtOnce) {
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([] {
      for (int repeat = 0; repeat < 10; ++repeat) {
        const Phases phases({50, 20, 50}, 2);
        phases.run();
        phases.expect_all_done_once();
      }
    });
  for (std::thread& caller : callers) caller.join();
}

#ifndef MHA_SERIAL
TEST(Parallel, NestedCallsAreSerial) {
  struct Nest {
    std::atomic<int> wrong_workers{0}, inner_tasks{0}, several_threads{0};
  } nest;
  const auto inner = [](const void* context, Index, int worker) {
    auto& self = *static_cast<Nest*>(const_cast<void*>(context));
    if (worker != 0) ++self.wrong_workers;
    ++self.inner_tasks;
  };
  struct Outer {
    Nest* nest;
    void (*inner)(const void*, Index, int);
  } outer{&nest, inner};
  const Phase phase{8,
                    [](const void* context, Index, int) {
                      const auto& self = *static_cast<const Outer*>(context);
                      if (threads_for(4, 100, kPlentyOfWork) != 1) ++self.nest->several_threads;
                      const Phase inner_phase{5, self.inner, self.nest};
                      run_phases(&inner_phase, 1, 3);
                    },
                    &outer};
  run_phases(&phase, 1, 2);
  EXPECT_EQ(nest.inner_tasks, 40);
  EXPECT_EQ(nest.wrong_workers, 0);
  EXPECT_EQ(nest.several_threads, 0);
}

TEST(Parallel, ThreadsAreLimitedByTasksAndByWork) {
  EXPECT_EQ(threads_for(4, 100, kPlentyOfWork), 4);
  EXPECT_EQ(threads_for(4, 3, kPlentyOfWork), 3);
  EXPECT_EQ(threads_for(4, 0, kPlentyOfWork), 1);
  EXPECT_EQ(threads_for(100000, 100000, kPlentyOfWork), 1024);
  EXPECT_EQ(threads_for(4, 100, 0), 1);
  EXPECT_EQ(threads_for(1, 100, kPlentyOfWork), 1);
  set_num_threads(5);
  EXPECT_EQ(threads_for(0, 100, kPlentyOfWork), 5);
  set_num_threads(0);
  EXPECT_EQ(threads_for(0, 100, kPlentyOfWork), std::min(num_threads(), 100));
}

TEST(Parallel, AForkedChildIsSerialAndDoesNotHang) {
  const Phases warm_up({10}, 2);
  warm_up.run();
  EXPECT_FALSE(in_forked_child());

  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // a child that waits for threads it does not have is killed
    struct Seen {
      int tasks, other_workers;
    } seen{0, 0};
    const Phase phase{50,
                      [](const void* context, Index, int worker) {
                        auto& self = *static_cast<Seen*>(const_cast<void*>(context));
                        ++self.tasks;
                        self.other_workers += worker != 0;
                      },
                      &seen};
    run_phases(&phase, 1, 3);
    const bool good =
        in_forked_child() && threads_for(3, 100, kPlentyOfWork) == 1 && seen.tasks == 50 && seen.other_workers == 0;
    _exit(good ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(in_forked_child());
}
#endif

TEST(Parallel, TheThreadCountCanBeSetAndReset) {
  const int by_default = num_threads();
  const std::string reason = num_threads_reason();
  set_num_threads(3);
  EXPECT_EQ(num_threads(), 3);
  EXPECT_NE(num_threads_reason(), reason);
  set_num_threads(0);
  EXPECT_EQ(num_threads(), by_default);
  EXPECT_EQ(num_threads_reason(), reason);
  EXPECT_THROW(set_num_threads(-1), std::invalid_argument);
  EXPECT_EQ(num_threads(), by_default);
}

}  // namespace
}  // namespace mha

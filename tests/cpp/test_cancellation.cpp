// Cancellation: a call that is told to end does so soon, whatever threads compute, grows no cache, and the next call has
// the bits that it has without.
#include "mha/cancellation.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "arrays.hpp"
#include "mha/mha.hpp"
#include "platform/cancellation.hpp"
#include "platform/parallel.hpp"

namespace mha {
namespace {

using testing::Array;
using testing::expect_words;
using testing::message_of;
using testing::nans;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Answers `answer`, and says how often it was asked, and when, where and how last.
struct Asked {
  bool answer = true;
  int times = 0;
  Clock::time_point last{};
  std::thread::id thread{};
  bool has_subnormals = false;

  static bool ask(void* state) {
    auto& self = *static_cast<Asked*>(state);
    ++self.times;
    self.last = Clock::now();
    self.thread = std::this_thread::get_id();
    const volatile float small = 1e-40F;
    self.has_subnormals = small * 0.5F > 0;
    return self.answer;
  }
};

/// A phase of tasks that take `task_time` each, and count themselves.
struct Tasks {
  milliseconds task_time;
  std::atomic<int> done{0};

  Phase phase(Index count) {
    return {count,
            [](const void* context, Index, int) {
              auto& self = *static_cast<Tasks*>(const_cast<void*>(context));
              std::this_thread::sleep_for(self.task_time);
              ++self.done;
            },
            this};
  }
};

constexpr milliseconds kSoon(2000);  // against a machine that others use; tasks below would take 10 s and more

using Body = void (*)(void* context, int i);

void on_the_caller(void*, int count, Body body, void* context) {
  for (int i = 0; i < count; ++i) body(context, i);
}

/// The calling thread only waits.
void on_other_threads(void*, int count, Body body, void* context) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(body, context, i);
  for (std::thread& thread : threads) thread.join();
}

void expect_to_end_soon(int threads) {
  Tasks tasks{milliseconds(10)};
  Asked asked;
  const CancellationScope scope(&Asked::ask, &asked);
  const Phase phases[] = {tasks.phase(5000), tasks.phase(5000)};
  const auto start = Clock::now();
  EXPECT_THROW(run_phases(phases, 2, threads), Cancelled);
  EXPECT_LT(Clock::now() - start, kSoon);
  EXPECT_GE(asked.last - start, milliseconds(50));  // short calls do not ask
  EXPECT_EQ(asked.times, 1);
  EXPECT_EQ(asked.thread, std::this_thread::get_id());
  EXPECT_GT(tasks.done, 0);

  asked.answer = false;  // and what comes next is whole
  tasks.done = 0;
  const Phase next = tasks.phase(20);
  run_phases(&next, 1, threads);
  EXPECT_EQ(tasks.done, 20);
}

TEST(Cancellation, EndsACallOnOneThread) { expect_to_end_soon(1); }
TEST(Cancellation, EndsACallOnTheThreadsOfTheLibrary) { expect_to_end_soon(3); }

TEST(Cancellation, EndsACallOnAnExecutor) {
  for (const auto run : {on_the_caller, on_other_threads}) {
    const ExecutorScope executor({run, nullptr, 3});
    expect_to_end_soon(3);
  }
}

TEST(Cancellation, NoTaskIsLeftOutOfACallThatGoesOn) {
  for (const auto run : {on_the_caller, on_other_threads}) {
    const ExecutorScope executor({run, nullptr, 3});
    Asked asked;
    asked.answer = false;
    const CancellationScope scope(&Asked::ask, &asked);
    Tasks tasks{milliseconds(2)};
    const Phase phases[] = {tasks.phase(150), tasks.phase(150)};
    const auto start = Clock::now();
    run_phases(phases, 2, 3);
    EXPECT_EQ(tasks.done, 300);
    EXPECT_GT(asked.times, 0);
    EXPECT_LE(asked.times, (Clock::now() - start) / milliseconds(50));
  }
}

TEST(Cancellation, CallsOfManyShortPhasesAreAsked) {
  Tasks tasks{milliseconds(0)};
  Asked asked;
  const CancellationScope scope(&Asked::ask, &asked);
  const Phase phase = tasks.phase(1);
  const auto start = Clock::now();
  const auto run_for_a_minute = [&] {
    while (Clock::now() - start < std::chrono::minutes(1)) run_phases(&phase, 1, 1);
  };
  EXPECT_THROW(run_for_a_minute(), Cancelled);
  EXPECT_LT(Clock::now() - start, kSoon);
}

TEST(Cancellation, ScopesNestAndAreOfTheirThread) {
  Asked outer, inner;
  Tasks tasks{milliseconds(20)};
  const Phase phase = tasks.phase(500), few = tasks.phase(6);
  const CancellationScope scope(&Asked::ask, &outer);
  {
    const CancellationScope nested(&Asked::ask, &inner);
    EXPECT_THROW(run_phases(&phase, 1, 1), Cancelled);
  }
  EXPECT_EQ(inner.times, 1);
  EXPECT_EQ(outer.times, 0);
  std::thread([&] { run_phases(&few, 1, 1); }).join();
  EXPECT_EQ(outer.times, 0);
  EXPECT_THROW(run_phases(&phase, 1, 1), Cancelled);
  EXPECT_EQ(outer.times, 1);
}

/// Tasks of which the fifth sets a flag, on whatever thread it runs.
struct SetsAFlag {
  std::atomic<bool> flag{false};
  std::atomic<int> done{0};

  Phase phase(Index count) {
    return {count,
            [](const void* context, Index, int) {
              auto& self = *static_cast<SetsAFlag*>(const_cast<void*>(context));
              if (++self.done == 5) self.flag = true;
            },
            this};
  }
};

TEST(Cancellation, AFlagEndsACallWithTheTasksUnderWay) {
  constexpr Index kMany = 1 << 20;
  using ParallelFor = decltype(Executor::parallel_for);
  for (const ParallelFor run : {ParallelFor{nullptr}, ParallelFor{on_the_caller}, ParallelFor{on_other_threads}}) {
    std::optional<ExecutorScope> executor;
    if (run != nullptr) executor.emplace(Executor{run, nullptr, 3});
    for (const int threads : {1, 3}) {
      SetsAFlag tasks;
      const Phase phases[] = {tasks.phase(kMany), tasks.phase(kMany)};
      {
        const CancellationScope scope(tasks.flag);
        EXPECT_THROW(run_phases(phases, 2, threads), Cancelled);
        EXPECT_LT(tasks.done, kMany);
        tasks.done = 100;
        EXPECT_THROW(run_phases(phases, 2, threads), Cancelled);  // and every other call of the scope
        EXPECT_EQ(tasks.done, 100);
      }
      run_phases(phases, 1, threads);
      EXPECT_EQ(tasks.done, 100 + kMany);
    }
  }
}

TEST(Cancellation, FlagsAndFunctionsNest) {
  std::atomic<bool> outer{false}, inner{false};
  Asked asked;
  Tasks tasks{milliseconds(5)};
  const Phase one = tasks.phase(1), many = tasks.phase(2000);
  const auto ends = [&](const Phase& phase) {
    try {
      run_phases(&phase, 1, 1);
      return false;
    } catch (const Cancelled&) {
      return true;
    }
  };
  const CancellationScope around(outer);
  {
    const CancellationScope function(&Asked::ask, &asked);
    const CancellationScope within(inner);
    EXPECT_FALSE(ends(one));
    EXPECT_TRUE(ends(many));  // by the function
    EXPECT_EQ(asked.times, 1);
    EXPECT_FALSE(ends(one));
    inner = true;
    EXPECT_TRUE(ends(one));
    std::thread([&] { EXPECT_FALSE(ends(one)); }).join();
  }
  EXPECT_FALSE(ends(one));
  outer = true;
  std::atomic<bool> unset{false};
  const CancellationScope within(unset);
  EXPECT_TRUE(ends(one));
}

TEST(Cancellation, WhoIsAskedMayCallTheLibrary) {
  struct Caller {
    Tasks tasks{milliseconds(5)};
    int times = 0;
    static bool ask(void* state) {
      auto& self = *static_cast<Caller*>(state);
      ++self.times;
      const Phase phase = self.tasks.phase(40);
      run_phases(&phase, 1, 2);
      return self.times == 2;
    }
  } caller;
  const CancellationScope scope(&Caller::ask, &caller);
  for (int threads : {1, 2}) {
    Tasks tasks{milliseconds(5)};
    const Phase phase = tasks.phase(2000);
    caller.times = 0;
    EXPECT_THROW(run_phases(&phase, 1, threads), Cancelled);
    EXPECT_EQ(caller.times, 2);
  }
}

TEST(Cancellation, ANullPointerIsRefused) {
  expect_words(message_of<std::invalid_argument>([] { const CancellationScope scope(nullptr); }),
               {"should_cancel", "null"});
}

/// Calls that take seconds.
class LongCalls : public ::testing::Test {
 protected:
  template <class Call>
  void expect_to_end(Call call) {
    Asked asked;
    const CancellationScope scope(&Asked::ask, &asked);
    EXPECT_THROW(call(), Cancelled);
    EXPECT_EQ(asked.times, 1);
    EXPECT_LT(Clock::now() - asked.last, kSoon);
    EXPECT_TRUE(asked.has_subnormals);  // it is code of the user, which has the arithmetic that it is used to
  }
};

TEST_F(LongCalls, EndInTheMiddleOfAHeadOfStatistics) {
  constexpr Index T = 30000, D = 64;
  const auto x = Array<float>::random({1, T, D}, 1);
  auto entropy = nans<float>({1, T});
  AttentionStatistics statistics;
  statistics.entropy = entropy.view();
  expect_to_end([&] { attention_statistics(x.view(), x.view(), statistics, {}); });
}

TEST_F(LongCalls, EndInTheMiddleOfAGradient) {
  constexpr Index T = 30000, D = 64;
  const auto x = Array<float>::random({1, T, D}, 1), lse = Array<float>::random({1, T}, 2);
  auto dvalue = nans<float>({1, T, D});
  AttentionGradients gradients;
  gradients.value = dvalue.view();
  AttentionOptions options;
  options.num_threads = 1;
  expect_to_end(
      [&] { attention_gradient(x.view(), x.view(), x.view(), x.view(), lse.view(), x.view(), gradients, options); });
}

TEST_F(LongCalls, EndInTheMiddleOfASum) {
  const Array<float> row({1, 64}, 1);
  const TensorView rows(row.data().data(), {Index{1} << 31, 64}, {0, 1});
  auto mean = nans<float>({1, 64});
  const std::int64_t offsets[] = {0, Index{1} << 31};
  expect_to_end([&] { mean_pool(rows, offsets, 1, false, mean.view()); });
}

TEST_F(LongCalls, OfManyLayersGrowNoCache) {
  constexpr Index E = 64, F = 4096, T = 1024, kLayers = 200;
  const auto square = Array<float>::random({E, E}, 3), up = Array<float>::random({F, E}, 4),
             down = Array<float>::random({E, F}, 5), ones = Array<float>::random({E}, 6),
             x = Array<float>::random({1, T, E}, 7);
  const MultiHeadAttention attention({E, 1}, {{square.view()}, {square.view()}, {square.view()}, {square.view()}});
  const FeedForward feed_forward({{up.view()}, {down.view()}}, Activation::relu);
  const LayerNorm norm(ones.view(), {}, 1e-5);
  const std::vector<TransformerLayer> layers(kLayers, {attention, {}, feed_forward, norm, norm, {}});
  const TransformerStack stack(layers.data(), kLayers);
  std::vector<KVCache> caches;
  std::vector<KVCache*> pointers;
  for (Index i = 0; i < kLayers; ++i) caches.emplace_back(KVCacheConfig{1, 1, T, E});
  for (KVCache& cache : caches) pointers.push_back(&cache);
  auto out = nans<float>({1, T, E}), expected = nans<float>({1, 1, E});
  TransformerExtras extras;
  extras.caches = pointers.data();
  const TensorView first(x.data().data(), {1, 1, E});
  stack.forward(first, expected.view(), {});

  expect_to_end([&] { stack.forward(x.view(), out.view(), {}, extras); });
  const std::int64_t starts[] = {0, T}, names[] = {0};
  const TensorView rows(x.data().data(), {T, E});
  const MutableTensorView results(out.data().data(), {T, E});
  extras.sequences = names;
  expect_to_end([&] { stack.forward_varlen(rows, starts, 1, results, {}, extras); });
  extras.sequences = nullptr;
  for (const KVCache& cache : caches) EXPECT_EQ(cache.lengths()[0], 0);

  auto again = nans<float>({1, 1, E});
  stack.forward(first, again.view(), {}, extras);
  EXPECT_EQ(again.data(), expected.data());
  for (const KVCache& cache : caches) EXPECT_EQ(cache.lengths()[0], 1);
}

}  // namespace
}  // namespace mha

// Executors: whatever an executor does within its contract, results have the bits that the library's own threads give.
#include "mha/executor.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "arrays.hpp"
#include "mha/attention_gradient.hpp"
#include "mha/attention_statistics.hpp"
#include "mha/merge_attention.hpp"
#include "mha/multi_head_attention.hpp"
#include "mha/runtime.hpp"
#include "platform/parallel.hpp"

namespace mha {
namespace {

using testing::Array;
using testing::expect_words;
using testing::message_of;
using testing::nans;

using Body = void (*)(void* context, int i);

/// The calls that an executor got.
struct Record {
  std::atomic<int> calls{0}, largest{0};

  static void note(void* state, int count) {
    auto& self = *static_cast<Record*>(state);
    ++self.calls;
    self.largest = std::max(self.largest.load(), count);
  }
};

void one_after_another(void* state, int count, Body body, void* context) {
  Record::note(state, count);
  for (int i = 0; i < count; ++i) body(context, i);
}

void from_the_last(void* state, int count, Body body, void* context) {
  Record::note(state, count);
  for (int i = count; i-- > 0;) body(context, i);
}

void a_thread_for_each(void* state, int count, Body body, void* context) {
  Record::note(state, count);
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(body, context, i);
  for (std::thread& thread : threads) thread.join();
}

/// Threads that have been told to round upwards, by somebody else in the process.
void rounding_upwards(void* state, int count, Body body, void* context) {
  Record::note(state, count);
  std::thread([&] {
    std::fesetround(FE_UPWARD);
    for (int i = 0; i < count; ++i) body(context, i);
    EXPECT_EQ(std::fegetround(), FE_UPWARD);
  }).join();
}

/// A pool that has fewer threads than it is asked to use.
void two_threads(void* state, int count, Body body, void* context) {
  Record::note(state, count);
  std::atomic<int> next{0};
  const auto work = [&] {
    for (int i; (i = next++) < count;) body(context, i);
  };
  std::thread other(work);
  work();
  other.join();
}

/// The results of attention, its weights, its statistics, its gradients, its shards and a layer, one after another: all
/// kinds of tasks.
std::vector<float> results(int num_threads) {
  constexpr Index H = 4, T = 150, D = 32, E = H * D;
  const auto x = Array<float>::random({1, H, T, D}, 1);
  const auto key = Array<float>::random({1, 1, 1600, D}, 2);  // one head, so that threads share its keys
  const auto square = Array<float>::random({E, E}, 3), rows = Array<float>::random({2, T, E}, 4);
  const MultiHeadAttention layer({E, H}, {{square.view()}, {square.view()}, {square.view()}, {square.view()}});
  auto out = nans<float>({1, H, T, D}), shared = nans<float>({1, 1, 1, D}), weights = nans<float>({1, H, T, T});
  auto entropy = nans<float>({1, H, T}), projected = nans<float>({2, T, E}), merged = nans<float>({1, H, T, D});
  AttentionOptions options;
  options.num_threads = num_threads;
  AttentionStatistics statistics;
  statistics.entropy = entropy.view();
  const TensorView shards[] = {out.view(), x.view()}, lses[] = {entropy.view(), entropy.view()};
  const TensorView one_row(x.data().data(), {1, 1, 1, D});

  scaled_dot_product_attention(x.view(), x.view(), x.view(), out.view(), {}, options);
  scaled_dot_product_attention(one_row, key.view(), key.view(), shared.view(), {}, options);
  attention_weights(x.view(), x.view(), weights.view(), options);
  attention_statistics(x.view(), x.view(), statistics, options);
  merge_attention(shards, lses, 2, merged.view(), {}, num_threads);
  layer.forward(rows.view(), rows.view(), rows.view(), projected.view(), {}, options);

  auto lse = nans<float>({1, H, T}), dkey = nans<float>({1, H, T, D});
  auto one_out = nans<float>({1, 1, 1, D}), one_lse = nans<float>({1, 1, 1}), dquery = nans<float>({1, 1, 1, D});
  AttentionGradients gradients, of_spans;
  gradients.key = dkey.view();
  of_spans.query = dquery.view();
  scaled_dot_product_attention(x.view(), x.view(), x.view(), out.view(), lse.view(), options);
  attention_gradient(x.view(), x.view(), x.view(), out.view(), lse.view(), x.view(), gradients, options);
  scaled_dot_product_attention(one_row, key.view(), key.view(), one_out.view(), one_lse.view(), options);
  attention_gradient(one_row, key.view(), key.view(), one_out.view(), one_lse.view(), one_row, of_spans, options);

  std::vector<float> all;
  for (const auto* array : {&out, &shared, &weights, &entropy, &merged, &projected, &dkey, &dquery})
    all.insert(all.end(), array->data().begin(), array->data().end());
  return all;
}

TEST(Executor, TheBitsAreThoseOfTheLibrarysOwnThreads) {
  const std::vector<float> expected = results(1);
  for (const auto run : {one_after_another, from_the_last, a_thread_for_each, two_threads, rounding_upwards}) {
    for (int num_threads : {0, 1, 2, 3, 7}) {
      Record record;
      const ExecutorScope scope({run, &record, 4});
      EXPECT_EQ(results(num_threads), expected) << num_threads << " threads";
      const int most = num_threads == 0 ? 4 : num_threads;
      EXPECT_LE(record.largest, most);
      EXPECT_EQ(record.calls > 0, most > 1) << num_threads << " threads";
    }
  }
}

TEST(Executor, IsAskedForAsManyAsItSaysAndNoMoreThanThereAreTasks) {
  Record record;
  const ExecutorScope scope({one_after_another, &record, 5});
  EXPECT_EQ(threads_for(0, 100, 1e12), 5);
  EXPECT_EQ(threads_for(3, 100, 1e12), 3);
  EXPECT_EQ(threads_for(9, 100, 1e12), 9);
  EXPECT_EQ(threads_for(0, 100, 0), 1);
  std::atomic<int> runs{0};
  const auto count = [](const void* context, Index, int) {
    ++*static_cast<std::atomic<int>*>(const_cast<void*>(context));
  };
  const Phase phases[] = {{3, count, &runs}, {0, count, &runs}, {1, count, &runs}, {50, count, &runs}};
  run_phases(phases, 4, 5);
  EXPECT_EQ(runs, 54);
  EXPECT_EQ(record.calls, 2);  // no call for a phase without tasks, nor for one with a single task
  EXPECT_EQ(record.largest, 5);
}

TEST(Executor, ItsTasksUseNoThreadsOfTheirOwn) {
  Record record;
  const ExecutorScope scope({a_thread_for_each, &record, 2});
  std::atomic<int> wrong{0};
  const Phase phase{8,
                    [](const void* context, Index, int) {
                      if (threads_for(4, 100, 1e12) != 1) ++*static_cast<std::atomic<int>*>(const_cast<void*>(context));
                    },
                    &wrong};
  run_phases(&phase, 1, 2);
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(threads_for(4, 100, 1e12), 4);  // outside of tasks a call may use threads again
}

TEST(Executor, ScopesNestAndAreOfTheirThread) {
  Record outer, inner;
  const auto expected = results(1);
  {
    const ExecutorScope scope({one_after_another, &outer, 2});
    {
      const ExecutorScope nested({one_after_another, &inner, 3});
      EXPECT_EQ(threads_for(0, 100, 1e12), 3);
      EXPECT_EQ(results(0), expected);
    }
    EXPECT_GT(inner.calls, 0);
    EXPECT_EQ(outer.calls, 0);
    EXPECT_EQ(threads_for(0, 100, 1e12), 2);
    std::thread([&] { EXPECT_EQ(results(2), expected); }).join();
    EXPECT_EQ(outer.calls, 0);
    EXPECT_EQ(results(0), expected);
    EXPECT_GT(outer.calls, 0);
  }
  outer.calls = inner.calls = 0;
  EXPECT_EQ(results(2), expected);
  EXPECT_EQ(outer.calls + inner.calls, 0);
}

TEST(Executor, TheExecutorIsCopied) {
  Record record;
  Executor executor{one_after_another, &record, 2};
  const ExecutorScope scope(executor);
  executor = {};
  EXPECT_EQ(threads_for(0, 100, 1e12), 2);
}

TEST(Executor, WhatIsNoExecutorIsRefused) {
  expect_words(message_of<std::invalid_argument>([] { const ExecutorScope scope({}); }), {"parallel_for", "null"});
  expect_words(message_of<std::invalid_argument>([] { const ExecutorScope scope({one_after_another, nullptr, 0}); }),
               {"num_threads", "at least 1", "got 0"});
  Record record;
  const ExecutorScope scope({one_after_another, &record, 2});
  EXPECT_THROW(ExecutorScope({}), std::invalid_argument);
  EXPECT_EQ(threads_for(0, 100, 1e12), 2);  // the num_threads of the outer executor
}

}  // namespace
}  // namespace mha

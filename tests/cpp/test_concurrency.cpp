// Calls from several threads at the same time: each gives the bits that it gives alone.
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "arrays.hpp"
#include "mha/multi_head_attention.hpp"
#include "mha/runtime.hpp"

namespace mha {
namespace {

using testing::Array;
using testing::nans;

constexpr int kThreads = 6, kRounds = 10;

template <class Work>
void on_threads(Work work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back([&work, i] { work(i); });
  for (std::thread& thread : threads) thread.join();
}

TEST(Concurrency, Attention) {
  constexpr Index H = 4, T = 130, D = 32;
  const auto x = Array<float>::random({1, H, T, D}, 1);
  auto expected = nans<float>({1, H, T, D});
  AttentionOptions serial;
  serial.num_threads = 1;
  scaled_dot_product_attention(x.view(), x.view(), x.view(), expected.view(), {}, serial);
  std::atomic<int> differences{0};
  on_threads([&](int worker) {
    for (int round = 0; round < kRounds; ++round) {
      auto out = nans<float>({1, H, T, D});
      AttentionOptions options;
      options.num_threads = 1 + (worker + round) % 3;
      scaled_dot_product_attention(x.view(), x.view(), x.view(), out.view(), {}, options);
      differences += out.data() != expected.data();
    }
  });
  EXPECT_EQ(differences, 0);
}

TEST(Concurrency, OneLayer) {
  constexpr Index T = 70, E = 64;
  const auto square = Array<double>::random({E, E}, 1);
  const MultiHeadAttention layer({E, 4}, {{square.view()}, {square.view()}, {square.view()}, {square.view()}});
  std::vector<Array<double>> inputs, expected;
  for (unsigned i = 0; i < kThreads; ++i) {
    inputs.push_back(Array<double>::random({1, T + Index(i), E}, i));
    expected.push_back(nans<double>({1, T + Index(i), E}));
    layer.forward(inputs[i].view(), inputs[i].view(), inputs[i].view(), expected[i].view());
  }
  std::atomic<int> differences{0};
  on_threads([&](int worker) {
    for (int round = 0; round < kRounds; ++round) {
      const auto i = static_cast<std::size_t>((worker + round) % kThreads);
      auto out = nans<double>({1, T + Index(i), E});
      AttentionOptions options;
      options.num_threads = 1 + round % 3;
      layer.forward(inputs[i].view(), inputs[i].view(), inputs[i].view(), out.view(), {}, options);
      differences += out.data() != expected[i].data();
    }
  });
  EXPECT_EQ(differences, 0);
}

TEST(Concurrency, ErrorsStayInTheirThread) {
  const auto x = Array<float>::random({1, 2, 40, 16}, 1), narrow = Array<float>::random({1, 2, 40, 15}, 1);
  auto expected = nans<float>({1, 2, 40, 16});
  scaled_dot_product_attention(x.view(), x.view(), x.view(), expected.view());
  std::atomic<int> thrown{0}, differences{0};
  on_threads([&](int worker) {
    for (int round = 0; round < kRounds; ++round) {
      auto out = nans<float>({1, 2, 40, 16});
      try {
        scaled_dot_product_attention(x.view(), worker % 2 ? narrow.view() : x.view(), x.view(), out.view());
        differences += out.data() != expected.data();
      } catch (const std::invalid_argument&) {
        ++thrown;
      }
    }
  });
  EXPECT_EQ(thrown, kThreads / 2 * kRounds);
  EXPECT_EQ(differences, 0);
}

TEST(Concurrency, TheInstructionSetMayChangeMeanwhile) {
  // A call computes with the instruction set that was chosen when it began.
  const auto x = Array<float>::random({1, 2, 70, 16}, 1);
  std::vector<std::vector<float>> possible;
  std::vector<const char*> names;
  for (int index = 0; index < num_built_isas(); ++index) {
    if (!isa_supported(index)) continue;
    set_isa(built_isa(index));
    auto out = nans<float>({1, 2, 70, 16});
    scaled_dot_product_attention(x.view(), x.view(), x.view(), out.view());
    possible.push_back(out.data());
    names.push_back(built_isa(index));
  }
  std::atomic<int> wrong{0};
  on_threads([&](int worker) {
    for (int round = 0; round < kRounds; ++round) {
      if (worker == 0) set_isa(names[static_cast<std::size_t>(round) % names.size()]);
      auto out = nans<float>({1, 2, 70, 16});
      scaled_dot_product_attention(x.view(), x.view(), x.view(), out.view());
      bool found = false;
      for (const auto& result : possible) found = found || result == out.data();
      wrong += !found;
    }
  });
  set_isa(nullptr);
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace mha

// Memory of packed weights: how it is aligned and written, that it asks for huge pages, and what is said when there is
// none.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "allocator.hpp"
#include "huge_pages.hpp"
#include "mha/errors.hpp"
#include "mha/linear_weights.hpp"
#include "weights/packed_linear.hpp"
#include "weights/weight_memory.hpp"

namespace mha {
namespace {

std::uintptr_t address_of(const WeightMemory& memory) { return reinterpret_cast<std::uintptr_t>(memory.get()); }

constexpr std::size_t kSizes[] = {1, 4096, kLeastInHugePages - 1, kLeastInHugePages, kHugePage - 1, 2 * kHugePage + 1};

TEST(WeightMemory, IsAligned) {
  for (const std::size_t bytes : kSizes) EXPECT_EQ(address_of(allocate_weights(bytes)) % 64, 0u) << bytes;
}

/// The bytes of all panels, and of all bias rows.
std::vector<std::byte> bytes_of(const PackedLinear& packed) {
  std::vector<std::byte> bytes(packed.panel(0), packed.panel(packed.panels()));
  bytes.insert(bytes.end(), packed.bias(0), packed.bias(packed.panels()));
  return bytes;
}

// Numbers where there is no weight would be multiplied, too: a NaN among them would be seen.
TEST(WeightMemory, IsWrittenWholeByPackingTheSameByAnyNumberOfThreads) {
  constexpr Index kFeatures = 203, kInputs = 129, kSegment = 29;
  std::vector<float> weight(kFeatures * kInputs), bias(kFeatures);
  for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = float(i * 2654435761u % 1009) / 1009 - 0.5f;
  for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = float(i) / 16;
  LinearWeights weights;
  weights.weight = {weight.data(), DType::f32, {kFeatures, kInputs}};
  weights.bias = {bias.data(), DType::f32, {kFeatures}};
  for (const WeightFormat format : {WeightFormat::plain, WeightFormat::bf16, WeightFormat::int8, WeightFormat::int4}) {
    std::vector<std::byte> first;
    for (const int threads : {1, 2, 5})
      for (const int before : {0, 0xff}) {
        {
          const WeightMemory used = allocate_weights(std::size_t{1} << 18);  // freed, and found again
          std::memset(used.get(), before, std::size_t{1} << 18);
        }
        const PackedLinear packed(weights, kSegment, format, threads);
        const std::vector<std::byte> bytes = bytes_of(packed);
        if (first.empty()) first = bytes;
        EXPECT_EQ(first, bytes) << int(format) << ", " << threads << " threads";
      }
  }
}

TEST(WeightMemory, IsOfOneOwner) {
  std::vector<WeightMemory> memories;
  std::vector<std::size_t> sizes;
  for (int turn = 0; turn < 12; ++turn)
    for (const std::size_t bytes : kSizes) {
      memories.push_back(allocate_weights(bytes));
      sizes.push_back(bytes);
      std::fill_n(memories.back().get(), bytes, std::byte(memories.size()));
      if (memories.size() % 3 == 0) memories[memories.size() / 2].reset();
    }
  for (std::size_t i = 0; i < memories.size(); ++i) {
    if (!memories[i]) continue;
    EXPECT_TRUE(std::all_of(memories[i].get(), memories[i].get() + sizes[i], [&](std::byte b) {
      return b == std::byte(i + 1);
    })) << i;
  }
}

TEST(WeightMemory, MayBeTakenByManyThreads) {
  std::vector<std::thread> threads;
  for (int thread = 1; thread <= 4; ++thread)
    threads.emplace_back([thread] {
      for (int turn = 0; turn < 50; ++turn) {
        const WeightMemory memory = allocate_weights(kLeastInHugePages);
        std::fill_n(memory.get(), kLeastInHugePages, std::byte(thread));
        EXPECT_EQ(std::count(memory.get(), memory.get() + kLeastInHugePages, std::byte(thread)), kLeastInHugePages);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(WeightMemory, SaysHowMuchWasAskedForWhenThereIsNone) {
  testing::refuse_allocations_above(kHugePage);
  EXPECT_THROW(allocate_weights(3 * kHugePage), AllocationError);
  EXPECT_NE(allocate_weights(kHugePage), nullptr) << "where there is no area, but memory";
  testing::refuse_allocations_above(std::size_t(-1));
  EXPECT_NE(allocate_weights(3 * kHugePage), nullptr);
}

TEST(WeightMemory, AsksForHugePages) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the address sanitizer is to see the end of each memory";
#endif
  if (!testing::can_ask_for_huge_pages()) GTEST_SKIP() << "this system has no huge pages for memory that asks for them";
  for (const std::size_t bytes : {kLeastInHugePages, 2 * kHugePage + 1}) {
    const WeightMemory memory = allocate_weights(bytes);
    EXPECT_TRUE(testing::asks_for_huge_pages(memory.get())) << bytes;
    EXPECT_TRUE(testing::asks_for_huge_pages(memory.get() + bytes - 1)) << bytes;
  }
}

}  // namespace
}  // namespace mha

// Memory of packed weights: how it is aligned, that it asks for huge pages, and what is said when there is none.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#include "allocator.hpp"
#include "huge_pages.hpp"
#include "mha/errors.hpp"
#include "weights/weight_memory.hpp"

namespace mha {
namespace {

std::uintptr_t address_of(const WeightMemory& memory) { return reinterpret_cast<std::uintptr_t>(memory.get()); }

constexpr std::size_t kSizes[] = {1, 4096, kLeastInHugePages - 1, kLeastInHugePages, kHugePage - 1, 2 * kHugePage + 1};

TEST(WeightMemory, IsZeroAndAligned) {
  for (const std::size_t bytes : kSizes) {
    const WeightMemory memory = allocate_weights(bytes);
    EXPECT_EQ(address_of(memory) % 64, 0u) << bytes;
    EXPECT_TRUE(std::all_of(memory.get(), memory.get() + bytes, [](std::byte b) { return b == std::byte{0}; }));
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

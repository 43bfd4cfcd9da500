// Memory of packed weights: how it is aligned, that it asks for huge pages, and what is said when there is none.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "allocator.hpp"
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

/// Whether the mapping of an address is marked for huge pages: the flag "hg" in /proc/self/smaps.
bool asks_for_huge_pages(std::uintptr_t address) {
  std::ifstream maps("/proc/self/smaps");
  bool is_here = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long long from = 0, to = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &from, &to) == 2) is_here = from <= address && address < to;
    if (is_here && line.rfind("VmFlags:", 0) == 0) return (line + ' ').find(" hg ") != std::string::npos;
  }
  return false;
}

TEST(WeightMemory, AsksForHugePages) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the address sanitizer is to see the end of each memory";
#endif
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled") || !std::ifstream("/proc/self/smaps"))
    GTEST_SKIP() << "this system has no huge pages for memory that asks for them";
  for (const std::size_t bytes : {kLeastInHugePages, 2 * kHugePage + 1}) {
    const WeightMemory memory = allocate_weights(bytes);
    EXPECT_TRUE(asks_for_huge_pages(address_of(memory))) << bytes;
    EXPECT_TRUE(asks_for_huge_pages(address_of(memory) + bytes - 1)) << bytes;
  }
}

}  // namespace
}  // namespace mha

// Memory of packed weights: how it is aligned, that it asks for huge pages, and what is said when there is none.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#include "allocator.hpp"
#include "mha/errors.hpp"
#include "weights/weight_memory.hpp"

namespace mha {
namespace {

std::uintptr_t address_of(const WeightMemory& memory) { return reinterpret_cast<std::uintptr_t>(memory.get()); }

TEST(WeightMemory, IsZeroAndAlignedToTheLargestPageThatItFills) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, kHugePage - 1, kHugePage, 2 * kHugePage + 1}) {
    const WeightMemory memory = allocate_weights(bytes);
    EXPECT_EQ(address_of(memory) % (bytes < kHugePage ? 64 : kHugePage), 0u) << bytes;
    EXPECT_TRUE(std::all_of(memory.get(), memory.get() + bytes, [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST(WeightMemory, SaysHowMuchWasAskedForWhenThereIsNone) {
  testing::fail_allocation(1);
  EXPECT_THROW(allocate_weights(3 * kHugePage), AllocationError);
  testing::fail_allocation(0);
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

TEST(WeightMemory, AsksForHugePagesWhereItFillsThem) {
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled") || !std::ifstream("/proc/self/smaps"))
    GTEST_SKIP() << "this system has no huge pages for memory that asks for them";
  const WeightMemory memory = allocate_weights(2 * kHugePage);
  EXPECT_TRUE(asks_for_huge_pages(address_of(memory)));
  EXPECT_TRUE(asks_for_huge_pages(address_of(memory) + 2 * kHugePage - 1));
}

}  // namespace
}  // namespace mha

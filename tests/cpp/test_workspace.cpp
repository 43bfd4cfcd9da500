// Scratch arenas: kept between calls, separate when nested, freed if they are large, and an error if memory runs out.
#include "platform/workspace.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <thread>

#include "mha/errors.hpp"
#include "mha/runtime.hpp"

namespace mha {
namespace {

constexpr std::size_t kPage = 4096;  // arenas are whole pages

/// The arena belongs to the thread: every test takes a new one.
template <class Test>
void on_a_new_thread(Test test) {
  std::thread(test).join();
}

bool is_aligned(const std::byte* data) { return reinterpret_cast<std::uintptr_t>(data) % 64 == 0; }

TEST(Workspace, IsAlignedWritableAndKept) {
  on_a_new_thread([] {
    EXPECT_EQ(scratch_bytes(), 0u);
    const std::byte* first;
    {
      const Workspace workspace(100'000);
      first = workspace.data();
      EXPECT_TRUE(is_aligned(first));
      std::memset(workspace.data(), 0xff, 100'000);
    }
    {
      const Workspace smaller(10);
      EXPECT_EQ(smaller.data(), first);
    }
    EXPECT_EQ(scratch_bytes(), 25 * kPage);
  });
}

TEST(Workspace, NestedOnesDoNotOverlap) {
  on_a_new_thread([] {
    const Workspace outer(1000);
    std::memset(outer.data(), 1, 1000);
    {
      const Workspace inner(2000);
      EXPECT_TRUE(is_aligned(inner.data()));
      std::memset(inner.data(), 2, 2000);
    }
    for (int i = 0; i < 1000; ++i) ASSERT_EQ(outer.data()[i], std::byte{1});
    EXPECT_EQ(scratch_bytes(), 2 * kPage);
  });
}

TEST(Workspace, FailureNamesTheSizeAndLeavesAWorkingArena) {
  on_a_new_thread([] {
    const std::size_t impossible = std::numeric_limits<std::size_t>::max();
    try {
      const Workspace workspace(impossible);
      ADD_FAILURE() << "no exception";
    } catch (const AllocationError& error) {
      EXPECT_NE(std::strstr(error.what(), std::to_string(impossible).c_str()), nullptr) << error.what();
    }
    const Workspace workspace(100);
    EXPECT_NE(workspace.data(), nullptr);
  });
}

TEST(Workspace, AVeryLargeArenaIsNotKept) {
  on_a_new_thread([] {
    {
      const Workspace large((std::size_t{64} << 20) + 1);
    }
    const Workspace small(100);
    std::memset(small.data(), 0, 100);
    EXPECT_EQ(scratch_bytes(), (std::size_t{64} << 20) + kPage);
  });
}

}  // namespace
}  // namespace mha

// Whether threads can be started, where they can and where they cannot.
#include "platform/startable_threads.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

namespace mha {
namespace {

#ifndef MHA_SERIAL
constexpr std::size_t kKiB = 1024;

TEST(StartableThreads, StackBytesAreReadAsOpenMPDoes) {
  EXPECT_EQ(stack_bytes("64"), 64 * kKiB);
  EXPECT_EQ(stack_bytes("100b"), 100);
  EXPECT_EQ(stack_bytes(" 3 K "), 3 * kKiB);
  EXPECT_EQ(stack_bytes("5M"), 5 * kKiB * kKiB);
  EXPECT_EQ(stack_bytes("2g"), 2 * kKiB * kKiB * kKiB);
  EXPECT_EQ(stack_bytes("0"), 0);
  for (const char* text :
       {"", " ", "M", "-1", "1.5M", "4T", "4 MB", "many", "99999999999999999999", "99999999999999999G"})
    EXPECT_EQ(stack_bytes(text), 0) << '"' << text << '"';
  EXPECT_EQ(stack_bytes(nullptr), 0);
}

TEST(StartableThreads, AsManyAsWantedWhereNothingHinders) {
  std::thread([] {
    EXPECT_EQ(startable_threads(1), 1);
    EXPECT_EQ(startable_threads(3), 3);
    EXPECT_EQ(startable_threads(2), 2);
    EXPECT_EQ(startable_threads(5), 5);
  }).join();
}

TEST(StartableThreads, FewerWhereTheSystemStartsNoMore) {
  setenv("OMP_STACKSIZE", "1000000G", 1);  // more than there are addresses
  std::thread([] {
    EXPECT_EQ(startable_threads(1), 1);
    EXPECT_EQ(startable_threads(4), 1);
    unsetenv("OMP_STACKSIZE");
    EXPECT_EQ(startable_threads(4), 1) << "it is tried again at once";
  }).join();
  std::thread([] { EXPECT_EQ(startable_threads(4), 4) << "another thread makes do with less, too"; }).join();
}
#endif

}  // namespace
}  // namespace mha

// Whether a process was forked and still is the program of its parent, as the kernel says and from made-up files.
#include "platform/forked_process.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "platform/found_once.hpp"

namespace mha {
namespace {

bool says_forked(const std::string& stat) {
  std::string folder = (std::filesystem::temp_directory_path() / "mha_proc_XXXXXX").string();
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  std::ofstream(folder + "/stat") << stat;
  const bool result = is_forked_without_exec(folder);
  std::filesystem::remove_all(folder);
  return result;
}

TEST(ForkedProcess, TheFlagIsFoundBehindAnyName) {
  EXPECT_TRUE(says_forked("1 (python) S 1 1 1 0 -1 4194368 0 0\n"));  // 0x400040
  EXPECT_FALSE(says_forked("1 (python) S 1 1 1 0 -1 4194304 0 0\n"));
  EXPECT_TRUE(says_forked("1 (a) b (c) 7 S 1 0) S 1 1 1 0 -1 64 0 0\n"));
  EXPECT_FALSE(says_forked("1 (64 64 64 64 64 64 64) S 64 64 64 64 64 0 64 64\n"));
}

TEST(ForkedProcess, NonsenseIsNotForked) {
  for (const char* stat : {"", "\n", "64", "1 (python", "1 (python) S 1 1", "1 (python) S 1 1 1 0 -1 many"})
    EXPECT_FALSE(says_forked(stat)) << stat;
  EXPECT_FALSE(is_forked_without_exec("/nowhere"));
}

#ifdef __linux__
TEST(ForkedProcess, TheKernelForgetsItAtExec) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const char seen = is_forked_without_exec() ? 'y' : 'n';
    if (write(pipe_ends[1], &seen, 1) != 1) _exit(1);
    dup2(pipe_ends[1], STDOUT_FILENO);
    execlp("cat", "cat", "/proc/self/stat", static_cast<char*>(nullptr));
    _exit(1);
  }
  close(pipe_ends[1]);
  std::string text(4096, '\0');
  std::size_t size = 0;
  for (ssize_t got; (got = read(pipe_ends[0], &text[size], text.size() - size)) > 0;)
    size += static_cast<std::size_t>(got);
  close(pipe_ends[0]);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  text.resize(size);
  if (text[0] != 'y') GTEST_SKIP() << "this kernel does not say it";
  EXPECT_FALSE(says_forked(text.substr(1))) << text;
}
#endif

std::atomic<int> searches{0};

int find_slowly() {
  const int mine = ++searches;
  if (mine == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  return mine;
}

TEST(ForkedProcess, WhatAnotherThreadLooksForIsFoundWithoutIt) {
  std::thread other([] { EXPECT_EQ((found_once<int, find_slowly>()), 2); });
  while (searches == 0) std::this_thread::yield();
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a child that waits for the other thread is killed
    _exit(found_once<int, find_slowly>() == 2 ? 0 : 1);
  }
  EXPECT_EQ((found_once<int, find_slowly>()), 2);
  other.join();
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(searches, 2);
}

}  // namespace
}  // namespace mha

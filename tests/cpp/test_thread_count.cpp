// The default thread count, on made-up environments and made-up cgroup trees.
#include "platform/thread_count.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "platform/cgroup_quota.hpp"

namespace mha {
namespace {

constexpr double kNoQuota = std::numeric_limits<double>::infinity();

TEST(ThreadCount, OmpNumThreadsWins) {
  EXPECT_EQ(choose_thread_count("3", 8, 2.0).count, 3);
  EXPECT_EQ(choose_thread_count("16", 8, kNoQuota).count, 16);
  EXPECT_EQ(choose_thread_count(" 4 , 2", 8, kNoQuota).count, 4);
  EXPECT_NE(choose_thread_count("3", 8, 2.0).reason.find("OMP_NUM_THREADS is 3"), std::string::npos);
}

TEST(ThreadCount, OmpNumThreadsThatIsNoPositiveIntegerIsPassedOver) {
  for (const char* value : {"", " ", "0", "-2", "four", "4x", "2.5", ",4", "99999999999999999999"})
    EXPECT_EQ(choose_thread_count(value, 8, kNoQuota).count, 8) << '"' << value << '"';
  EXPECT_EQ(choose_thread_count(nullptr, 8, kNoQuota).count, 8);
}

TEST(ThreadCount, SmallerOfAffinityAndQuotaRoundedUp) {
  EXPECT_EQ(choose_thread_count(nullptr, 8, 2.0).count, 2);
  EXPECT_EQ(choose_thread_count(nullptr, 8, 2.5).count, 3);
  EXPECT_EQ(choose_thread_count(nullptr, 2, 2.5).count, 2);
  EXPECT_EQ(choose_thread_count(nullptr, 2, 16.0).count, 2);
  EXPECT_EQ(choose_thread_count(nullptr, 8, 0.01).count, 1);
  EXPECT_EQ(choose_thread_count(nullptr, 0, kNoQuota).count, 1);
  EXPECT_NE(choose_thread_count(nullptr, 8, 2.5).reason.find("2.5 processors"), std::string::npos);
  EXPECT_NE(choose_thread_count(nullptr, 2, kNoQuota).reason.find("affinity mask has 2"), std::string::npos);
  EXPECT_NE(choose_thread_count(nullptr, 2, kNoQuota, "a list").reason.find("a list has 2"), std::string::npos);
}

TEST(ThreadCount, ThisProcessHasAtLeastOne) { EXPECT_GE(default_thread_count().count, 1); }

class CgroupQuota : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "mha_cgroup_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  double quota() const { return cgroup_cpu_quota(root_ + "/proc", root_); }

  static constexpr const char* kV2Mount =
      "25 20 0:5 / /dev rw,nosuid shared:2 - devtmpfs udev rw\n"
      "30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

 private:
  std::string root_;
};

TEST_F(CgroupQuota, NothingMountedIsUnlimited) {
  EXPECT_EQ(quota(), kNoQuota);
  write("/proc/mountinfo", "25 20 0:5 / /dev rw,nosuid shared:2 - devtmpfs udev rw\n");
  write("/proc/cgroup", "0::/\n");
  EXPECT_EQ(quota(), kNoQuota);
}

TEST_F(CgroupQuota, V2ReadsTheOwnGroup) {
  write("/proc/mountinfo", kV2Mount);
  write("/proc/cgroup", "0::/app.slice/run\n");
  write("/sys/fs/cgroup/app.slice/run/cpu.max", "150000 100000\n");
  write("/sys/fs/cgroup/other/cpu.max", "50000 100000\n");
  EXPECT_EQ(quota(), 1.5);
}

TEST_F(CgroupQuota, V2MaxIsUnlimited) {
  write("/proc/mountinfo", kV2Mount);
  write("/proc/cgroup", "0::/run\n");
  write("/sys/fs/cgroup/run/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), kNoQuota);
}

TEST_F(CgroupQuota, V2TakesTheSmallestOfTheAncestors) {
  write("/proc/mountinfo", kV2Mount);
  write("/proc/cgroup", "0::/a/b/c\n");
  write("/sys/fs/cgroup/a/cpu.max", "200000 100000\n");
  write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  write("/sys/fs/cgroup/a/b/c/cpu.max", "400000 100000\n");
  EXPECT_EQ(quota(), 2.0);
  write("/sys/fs/cgroup/cpu.max", "50000 100000\n");  // a container sees its own limit at the mount point
  EXPECT_EQ(quota(), 0.5);
}

TEST_F(CgroupQuota, V1ReadsTheCpuHierarchyOnly) {
  write("/proc/mountinfo",
        "31 30 0:27 / /sys/fs/cgroup/cpuset rw shared:10 - cgroup cgroup rw,cpuset\n"
        "32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:11 - cgroup cgroup rw,cpu,cpuacct\n"
        "33 30 0:29 / /sys/fs/cgroup/unified rw shared:12 - cgroup2 cgroup2 rw\n");
  write("/proc/cgroup", "5:cpuset:/wrong\n4:cpu,cpuacct:/a/b\n0::/a/b\n");
  write("/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1\n");
  write("/sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), kNoQuota);
  write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "300000\n");
  write("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), 3.0);
}

TEST_F(CgroupQuota, V1InAContainerWhosePathsStartAtTheHost) {
  write("/proc/mountinfo", "32 30 0:28 /docker/f00 /sys/fs/cgroup/cpu ro master:11 - cgroup cgroup rw,cpu\n");
  write("/proc/cgroup", "4:cpu:/docker/f00/inner\n");
  write("/sys/fs/cgroup/cpu/inner/cpu.cfs_quota_us", "70000\n");
  write("/sys/fs/cgroup/cpu/inner/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(quota(), 0.7);
}

TEST_F(CgroupQuota, NonsenseIsUnlimited) {
  write("/proc/mountinfo", std::string("\n30 23\n") + kV2Mount);
  write("/proc/cgroup", "nonsense\n0::no-slash\n");
  write("/sys/fs/cgroup/cpu.max", "a lot\n");
  EXPECT_EQ(quota(), kNoQuota);
  write("/sys/fs/cgroup/cpu.max", "100000 0\n");
  EXPECT_EQ(quota(), kNoQuota);
}

}  // namespace
}  // namespace mha

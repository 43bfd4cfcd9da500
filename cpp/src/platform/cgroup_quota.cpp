#include "platform/cgroup_quota.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

namespace mha {
namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

/// Quota divided by period, from text: "150000 100000" in v2 and, put together from two files, in v1. No quota is "max
/// 100000" in v2 and "-1 100000" in v1.
double ratio(std::istream& quota_and_period) {
  double quota, period;
  return quota_and_period >> quota >> period && quota > 0 && period > 0 ? quota / period : kUnlimited;
}

/// The quota of one cgroup by itself, in processors. A folder has the files of v1 or of v2, never of both.
double quota_of(const std::string& folder) {
  std::stringstream numbers;
  for (const char* name : {"/cpu.max", "/cpu.cfs_quota_us", "/cpu.cfs_period_us"}) {
    std::ifstream file(folder + name);
    std::string line;
    if (std::getline(file, line)) numbers << line << ' ';
  }
  return ratio(numbers);
}

bool contains_entry(const std::string& comma_list, const std::string& entry) {
  return ("," + comma_list + ",").find("," + entry + ",") != std::string::npos;
}

/// A line of /proc/self/mountinfo: "36 35 0:30 /root /mount/point options [tags ...] - type source super_options".
struct Mount {
  std::string root, point, type, super_options;

  explicit Mount(const std::string& line) {
    std::istringstream fields(line);
    std::string skipped;
    fields >> skipped >> skipped >> skipped >> root >> point;
    while (fields >> skipped && skipped != "-") {
    }
    fields >> type >> skipped >> super_options;
  }

  bool has_cpu_controller() const {
    return type == "cgroup2" || (type == "cgroup" && contains_entry(super_options, "cpu"));
  }
};

/// The path of this process's cgroup in the hierarchy that is mounted. /proc/self/cgroup has lines such as
/// "4:cpu,cpuacct:/path", and "0::/path" for v2.
std::string path_in(const Mount& mount, const std::string& proc_self) {
  std::ifstream memberships(proc_self + "/cgroup");
  for (std::string line; std::getline(memberships, line);) {
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (mount.type == "cgroup2" ? line.compare(0, 3, "0::") == 0 : contains_entry(controllers, "cpu"))
      return line.substr(second + 1);
  }
  return "/";
}

/// The smallest quota from the cgroup of this process up to the mount point.
double quota_of_branch(const Mount& mount, const std::string& proc_self, const std::string& root) {
  std::string path = path_in(mount, proc_self);
  // In a container the mount shows only a part of the hierarchy, below mount.root, while the path may begin at the root
  // of the whole hierarchy.
  if ((path + "/").compare(0, mount.root.size() + 1, mount.root + "/") == 0) path.erase(0, mount.root.size());

  double quota = quota_of(root + mount.point);
  while (path.find('/') != std::string::npos) {
    quota = std::min(quota, quota_of(root + mount.point + path));
    path.erase(path.rfind('/'));
  }
  return quota;
}

}  // namespace

double cgroup_cpu_quota(const std::string& proc_self, const std::string& root) {
  double quota = kUnlimited;
  std::ifstream mounts(proc_self + "/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    const Mount mount(line);
    if (mount.has_cpu_controller()) quota = std::min(quota, quota_of_branch(mount, proc_self, root));
  }
  return quota;
}

}  // namespace mha

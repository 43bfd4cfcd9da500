// The CPU quota of this process, as its cgroups (v1 and v2) limit it.
#pragma once

#include <string>

namespace mha {

/// The quota in processors: the smallest one of all cgroups from the process's up to the mount point; infinity if no
/// cgroup has a quota. `proc_self` is the folder with the files cgroup and mountinfo. `root` is put before every
/// mount point, so that tests can run on a made-up tree.
double cgroup_cpu_quota(const std::string& proc_self = "/proc/self", const std::string& root = "");

}  // namespace mha

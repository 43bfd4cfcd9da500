// How much CPU time the cgroups (v1 and v2) of this process allow it.
#pragma once

#include <string>

namespace mha {

/// The quota in processors: the smallest on the way from the process's own cgroup up to the mount point; infinity where
/// there is none. `proc_self` is the folder that holds the files cgroup and mountinfo; `root` is put before every mount
/// point, for tests on a made-up tree.
double cgroup_cpu_quota(const std::string& proc_self = "/proc/self", const std::string& root = "");

}  // namespace mha

// Detects forks. A child of fork() has the memory of its parent, but of its threads only the one that forked: waiting
// for another thread never ends. in_forked_child() of mha/runtime.hpp is defined here, too.
#pragma once

#include <string>

namespace mha {

/// True if this process was forked before it loaded this library. Then the library has no threads that are gone, but an
/// OpenMP runtime that another library used before the fork may have some, and nobody can ask it.
bool loaded_after_fork();

/// Whether a process is a child of fork() that has not become another program by exec() since, as Linux says in the
/// file `stat` of the folder `proc_self`. False where there is no such file.
bool is_forked_without_exec(const std::string& proc_self = "/proc/self");

}  // namespace mha

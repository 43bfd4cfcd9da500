// The threads of a build with MHA_THREADS=std.
#pragma once

#include "mha/executor.hpp"

namespace mha {

/// One pool for the process. Threads are started as they are first needed, one caller at a time has each of them, and
/// they live as long as the process. Its num_threads is not set.
const Executor& thread_pool();

}  // namespace mha

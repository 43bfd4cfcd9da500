// The thread pool of a build with MHA_THREADS=std, and in a process that was forked before it loaded the library.
#pragma once

#include "mha/executor.hpp"

namespace mha {

/// The one pool of the process, as an executor whose num_threads is not set. It starts a thread when a call needs one
/// and none is idle; threads live as long as the process, and each works for one call at a time.
const Executor& thread_pool();

}  // namespace mha

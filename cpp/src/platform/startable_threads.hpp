// Whether the system starts as many threads as a parallel region of OpenMP wants.
#pragma once

#include <cstddef>

namespace mha {

/// How many threads, the calling one among them, a parallel region of the calling thread should have: `wanted`, or
/// fewer if the system does not start so many at the moment. libgomp and libomp end the process when they cannot start
/// a thread.
///
/// Costs nothing unless `wanted` is more than this thread has ever been given: each thread that calls has workers of
/// its own in libgomp, which stay. Otherwise the threads that are missing are started, all at once, and ended again.
int startable_threads(int wanted);

/// The value of OMP_STACKSIZE in bytes: a number of KiB, or of the unit of a letter B, K, M or G after it. 0, which
/// selects the size of the system, for null and for any other text.
std::size_t stack_bytes(const char* omp_stacksize);

}  // namespace mha

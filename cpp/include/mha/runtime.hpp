// Which instruction set and how many threads: queries and process-wide defaults.
#pragma once

#include <cstddef>

#include "mha/export.h"

namespace mha {

/// Number of instruction sets compiled in; the names in rising order of preference.
MHA_API int num_built_isas();
MHA_API const char* built_isa(int index);
/// Whether this processor and operating system run the instruction set. To know it of `amx`, Linux is asked for tile
/// registers, which it lends for as long as the process lives; so does isa_reason().
MHA_API bool isa_supported(int index);
/// One clause: whether it runs here, and whether it may be the default here, and why.
MHA_API const char* isa_reason(int index);

/// The instruction set that calls of this thread use: of its IsaScope, else set_isa(), else the environment variable
/// MHA_NATIVE_ISA, else the best for this processor.
/// @throws std::invalid_argument if MHA_NATIVE_ISA names one that is unknown, or that this machine does not run
MHA_API const char* active_isa();
/// One sentence: the reason for active_isa().
MHA_API const char* active_isa_reason();
/// Chooses by name for the whole process; null or "" goes back to the environment and detection.
MHA_API void set_isa(const char* name);
/// While it lives, calls of this thread use built_isa(index), also while another thread calls set_isa(). The innermost
/// scope counts. For several calls whose results must fit each other.
class MHA_API IsaScope {
 public:
  /// @throws std::invalid_argument if there is no such index, or this machine does not run the instruction set
  explicit IsaScope(int index);
  ~IsaScope();
  IsaScope(const IsaScope&) = delete;
  IsaScope& operator=(const IsaScope&) = delete;

 private:
  int outer_;
};
/// The instruction set that the calling thread's latest attention or layer call ran on; "" before the first.
MHA_API const char* last_used_isa();

/// The most threads that a call with num_threads = 0 uses: set_num_threads(), else OMP_NUM_THREADS, else the smaller of
/// the affinity mask and the cgroup CPU quota. No more than OpenMP allows (OMP_THREAD_LIMIT), and 1 where calls are
/// serial: in a forked child, and inside a parallel region of OpenMP.
MHA_API int num_threads();
/// One sentence: the reason for num_threads().
MHA_API const char* num_threads_reason();
/// n >= 1 for the whole process; 0 goes back to the environment and detection.
MHA_API void set_num_threads(int n);

/// True in a child forked after this library was loaded: its calls are serial, with the same bits, since OpenMP's
/// threads do not survive a fork.
MHA_API bool in_forked_child();

/// Largest scratch that the calling thread's arena has held, in bytes and whole pages: all workers of its calls
/// together.
MHA_API std::size_t scratch_bytes();

}  // namespace mha

// The threads of XLA as an executor of this library.
#pragma once

#include <mha/executor.hpp>

#include "xla_ffi.hpp"

namespace mha::bindings::xla {

/// The threads that compute a call from XLA: XLA's own, since several such calls may run at once, and our threads next
/// to each of them would outnumber the processors.
///
/// The calling thread takes part, and waits for nobody but threads that compute for it. So calls on all threads of XLA
/// at once come to their end one by one, each alone if need be.
class Threads {
 public:
  explicit Threads(const CallFrame& frame) : api_(*frame.api), context_(frame.context) {}

  /// How many threads XLA has; 0 if it has none, or is too old to say so.
  int count() const;
  /// `num_threads` of them, and the calling one among these. Lives no longer than this object.
  Executor executor(int num_threads) { return {&parallel_for, this, num_threads}; }

 private:
  static void parallel_for(void* self, int count, void (*body)(void* context, int i), void* context);
  bool succeeded(Error* error) const;

  const Api& api_;
  Context* context_;
};

}  // namespace mha::bindings::xla

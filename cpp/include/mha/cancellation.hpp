// Ending a call before it is done.
#pragma once

#include <atomic>
#include <cstdint>

#include "mha/export.h"

namespace mha {

/// While it lives, calls of this library from the thread that made it ask now and then whether they are to end. A call
/// that is told to throws mha::Cancelled, within some 0.1 s: what it wrote to outputs is of no use, caches are as they
/// were before it, and the next call asks anew. Scopes nest and end in reverse order; the innermost one is asked.
///
/// Not asked is what only moves tokens within a KVCache, because it cannot stop halfway, and a call that takes no longer
/// than 50 ms.
class MHA_API CancellationScope {
 public:
  /// @param should_cancel called with `state` on the thread of the scope, from within calls, every 50 ms or less often:
  ///   less often if it takes long itself. It must not throw. It may call this library.
  /// @throws std::invalid_argument if should_cancel is null
  explicit CancellationScope(bool (*should_cancel)(void* state), void* state = nullptr);
  ~CancellationScope();
  CancellationScope(const CancellationScope&) = delete;
  CancellationScope& operator=(const CancellationScope&) = delete;

 private:
  friend class Cancellation;  // of src/platform

  bool (*should_cancel_)(void* state);
  void* state_;
  CancellationScope* outer_;
  std::atomic<bool> is_cancelled_{false};
  std::atomic<std::int64_t> next_question_{0};  // when, in ns of a steady clock; 0: not known yet
};

}  // namespace mha

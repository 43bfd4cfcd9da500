// Ending a call before it is done.
#pragma once

#include <atomic>
#include <cstdint>

#include "mha/export.h"

namespace mha {

/// While it lives, calls of this library from the thread that made it ask now and then whether they should end. Then
/// the call throws mha::Cancelled within about 0.1 s: its outputs are invalid, caches are unchanged, and the next call
/// asks again. Scopes nest and end in reverse order; calls ask the innermost scope.
///
/// Calls of at most 50 ms do not ask, and neither do calls that only move tokens within a KVCache, which cannot stop
/// halfway.
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

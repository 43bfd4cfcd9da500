// Ending a call before it is done.
#pragma once

#include <atomic>
#include <cstdint>

#include "mha/export.h"

namespace mha {

/// While it lives, calls of this library from the thread that made it ask now and then whether they should end. Then
/// the call throws mha::Cancelled within about 0.1 s: its outputs are invalid, caches are unchanged, and the next call
/// asks again. Scopes nest and end in reverse order; calls ask the innermost function.
///
/// A scope may have a flag instead of a function, which any thread sets. Then the call throws mha::Cancelled when its
/// tasks under way are done. Calls look at the flags of all scopes around them, and at the function, too.
///
/// Calls of at most 50 ms do not ask the function. Calls that only move tokens within a KVCache, which cannot stop
/// halfway, neither ask nor look.
class MHA_API CancellationScope {
 public:
  /// @param should_cancel called with `state` on the thread of the scope, from within calls, every 50 ms or less often:
  ///   less often if it takes long itself. It must not throw. It may call this library.
  /// @throws std::invalid_argument if should_cancel is null
  explicit CancellationScope(bool (*should_cancel)(void* state), void* state = nullptr);
  /// @param is_cancelled outlives the scope, and stays true once it is: every further call of the scope ends, too
  explicit CancellationScope(const std::atomic<bool>& is_cancelled);
  ~CancellationScope();
  CancellationScope(const CancellationScope&) = delete;
  CancellationScope& operator=(const CancellationScope&) = delete;

 private:
  friend class Cancellation;  // of src/platform

  bool (*should_cancel_)(void* state);  // null with a flag
  void* state_ = nullptr;
  const std::atomic<bool>* flag_ = nullptr;
  CancellationScope* outer_;  // the next one around it with a function, or with a flag, as it has itself
  std::atomic<bool> is_cancelled_{false};
  std::atomic<std::int64_t> next_question_{0};  // when, in ns of a steady clock; 0: not known yet
};

}  // namespace mha

// The caller's thread pool, which computes instead of the threads of this library.
#pragma once

#include "mha/export.h"

namespace mha {

/// A thread pool, as one function. Neither the function nor the bodies may throw.
struct Executor {
  /// Calls body(context, i) once for each i in [0, count), on any threads, in any order, at once or one after another,
  /// and returns when all of them have returned. The calling thread may do its share. Several calls may come from
  /// different threads at once, but never from within a body.
  void (*parallel_for)(void* state, int count, void (*body)(void* context, int i), void* context) = nullptr;
  void* state = nullptr;
  /// The default for num_threads = 0 of a call: how many bodies run at once. A call that passes num_threads asks for
  /// that number.
  int num_threads = 0;
};

/// While it lives, calls of this library from the thread that made it compute on `executor`, whatever the library was
/// built with; other threads do as before. Scopes nest and end in reverse order. The results are the same, in every
/// bit. A forked child computes serially, as it does without.
class MHA_API ExecutorScope {
 public:
  /// @throws std::invalid_argument if parallel_for is null or num_threads is less than 1
  explicit ExecutorScope(const Executor& executor);
  ~ExecutorScope();
  ExecutorScope(const ExecutorScope&) = delete;
  ExecutorScope& operator=(const ExecutorScope&) = delete;

 private:
  Executor executor_;
  const Executor* outer_;
};

}  // namespace mha

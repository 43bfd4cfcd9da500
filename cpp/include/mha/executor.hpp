// Threads of the caller: what computes instead of the threads of this library.
#pragma once

#include "mha/export.h"

namespace mha {

/// A pool of threads, by its one function. Neither the function nor what it calls may throw.
struct Executor {
  /// Calls body(context, i) once for each i in [0, count), on any threads, in any order, at once or one after another,
  /// and returns when all of them have returned. The calling thread may do its share. Several calls may come from
  /// different threads at once; none comes from within a body.
  void (*parallel_for)(void* state, int count, void (*body)(void* context, int i), void* context) = nullptr;
  void* state = nullptr;
  /// What num_threads = 0 of a call stands for: how many calls of a body run at once. A call that gives num_threads asks
  /// for as many.
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

// Cancellation of a call, as tasks see it: mha/cancellation.hpp.
#pragma once

#include <cstdint>

#include "mha/cancellation.hpp"

namespace mha {

/// The time, but not for every one of many short tasks: looking at a clock takes 20 to 40 ns, as some tasks do.
class PacedClock {
 public:
  /// In ns; 0 if it is too early to look again.
  std::int64_t look() { return --tasks_left_ > 0 ? 0 : read(); }
  std::int64_t read();

 private:
  int tasks_left_ = 2;  // a call of one task does not look at all; the first two tasks may be long ones
  std::int64_t last_look_ = 0;
};

/// The innermost scope of the thread that makes a call, as a thread that computes for this call sees it.
class Cancellation {
 public:
  /// The cancellation of the call that this thread computes for; outside of any call, of its next calls.
  static Cancellation& of_this_thread();

  /// Null: nobody is to be asked.
  CancellationScope* scope() const { return scope_; }

  /// Whether to skip the rest of the call. On the calling thread this may ask the user; on the others
  /// it is one load. A task that may take more than 10 ms asks it between its parts, too.
  bool is_set() {
    if (scope_ == nullptr) return false;
    if (is_caller_)
      if (const std::int64_t now = clock_.look()) ask(now);
    return scope_->is_cancelled_.load(std::memory_order_relaxed);
  }

  /// The same on the calling thread where it is about to wait for others: looks at the clock for certain.
  bool is_set_before_waiting() {
    if (scope_ != nullptr) ask(clock_.read());
    return is_set();
  }
  /// On one of those others: whether the calling thread should have asked the user a while ago, and has not come to it.
  bool is_caller_late();

  /// On the calling thread, when no other computes for the call any more.
  /// @throws Cancelled if it was set before
  void end_call_if_set() {
    if (scope_ != nullptr && scope_->is_cancelled_.load(std::memory_order_relaxed)) end_call();
  }

 private:
  friend class CancellationScope;
  friend class FollowCaller;

  void ask(std::int64_t now);
  [[noreturn]] void end_call();

  CancellationScope* scope_ = nullptr;
  bool is_caller_ = true;
  PacedClock clock_;
};

/// While it lives, this thread computes for a call of the thread that made `scope`, or of its own.
class FollowCaller {
 public:
  explicit FollowCaller(CancellationScope* scope);
  ~FollowCaller();
  FollowCaller(const FollowCaller&) = delete;
  FollowCaller& operator=(const FollowCaller&) = delete;

 private:
  const Cancellation before_;
  const bool is_other_;  // than the calling thread
};

}  // namespace mha

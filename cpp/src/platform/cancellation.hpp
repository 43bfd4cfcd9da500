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

/// The innermost scopes of a thread that makes a call; null: there is none.
struct CancellationScopes {
  CancellationScope* asked = nullptr;    // with a function
  CancellationScope* flagged = nullptr;  // with a flag

  friend bool operator==(const CancellationScopes& a, const CancellationScopes& b) {
    return a.asked == b.asked && a.flagged == b.flagged;
  }
};

/// The innermost scopes of the thread that makes a call, as a thread that computes for this call sees them.
class Cancellation {
 public:
  /// The cancellation of the call that this thread computes for; outside of any call, of its next calls.
  static Cancellation& of_this_thread();

  CancellationScopes scopes() const { return scopes_; }

  /// Whether to skip the rest of the call. On the calling thread this may ask the user; on the others
  /// it is one load for each scope. A task that may take more than 10 ms asks it between its parts, too.
  bool is_set() {
    if (scopes_.flagged != nullptr && is_flag_set()) return true;
    if (scopes_.asked == nullptr) return false;
    if (is_caller_)
      if (const std::int64_t now = clock_.look()) ask(now);
    return scopes_.asked->is_cancelled_.load(std::memory_order_relaxed);
  }

  /// The same on the calling thread where it is about to wait for others: looks at the clock for certain.
  bool is_set_before_waiting() {
    if (scopes_.asked != nullptr) ask(clock_.read());
    return is_set();
  }
  /// On one of those others: whether the calling thread should have asked the user a while ago, and has not come to it.
  bool is_caller_late();

  /// On the calling thread, when no other computes for the call any more.
  /// @throws Cancelled if it was set before
  void end_call_if_set() {
    const bool is_answered = scopes_.asked != nullptr && scopes_.asked->is_cancelled_.load(std::memory_order_relaxed);
    if (is_answered || (scopes_.flagged != nullptr && is_flag_set())) end_call();
  }

 private:
  friend class CancellationScope;
  friend class FollowCaller;

  bool is_flag_set() const;
  void ask(std::int64_t now);
  [[noreturn]] void end_call();

  CancellationScopes scopes_;
  bool is_caller_ = true;
  PacedClock clock_;
};

/// While it lives, this thread computes for a call of the thread that made `scopes`, or of its own.
class FollowCaller {
 public:
  explicit FollowCaller(CancellationScopes scopes);
  ~FollowCaller();
  FollowCaller(const FollowCaller&) = delete;
  FollowCaller& operator=(const FollowCaller&) = delete;

 private:
  const Cancellation before_;
  const bool is_other_;  // than the calling thread
};

}  // namespace mha

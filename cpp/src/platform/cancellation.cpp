#include "platform/cancellation.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <stdexcept>

#include "mha/errors.hpp"
#include "platform/floating_point_state.hpp"

namespace mha {
namespace {

constexpr std::int64_t kMillisecond = std::int64_t{1000} * 1000;  // in ns

// Between two questions. People take 100 ms for at once; a question takes a microsecond.
constexpr std::int64_t kInterval = 50 * kMillisecond;
// A question may wait for others: in Python for the global lock, which another thread may have for 5 ms at a time.
// It is to take no more than this share of the time, ...
constexpr std::int64_t kShare = 40;
// ... but not to come later than this.
constexpr std::int64_t kLongestInterval = 200 * kMillisecond;
constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// Tasks follow each other so fast that looking at the clock for each of them would cost something.
constexpr std::int64_t kShortTime = kMillisecond / 10;
constexpr int kShortTasks = 32;

thread_local Cancellation current;

std::int64_t now_in_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

std::int64_t PacedClock::read() {
  const std::int64_t now = now_in_ns();
  tasks_left_ = now - last_look_ < kShortTime ? kShortTasks : 1;
  last_look_ = now;
  return now;
}

Cancellation& Cancellation::of_this_thread() { return current; }

bool Cancellation::is_caller_late() {
  if (scopes_.asked == nullptr || is_caller_) return false;
  const std::int64_t now = clock_.look();
  return now != 0 && now - kInterval > scopes_.asked->next_question_.load(std::memory_order_relaxed);
}

bool Cancellation::is_flag_set() const {
  const CancellationScope* scope = scopes_.flagged;
  while (scope != nullptr && !scope->flag_->load(std::memory_order_relaxed)) scope = scope->outer_;
  return scope != nullptr;
}

void Cancellation::ask(std::int64_t now) {
  CancellationScope& scope = *scopes_.asked;
  std::atomic<std::int64_t>& next = scope.next_question_;
  const std::int64_t due = next.load(std::memory_order_relaxed);
  if (due == 0) next.store(now + kInterval, std::memory_order_relaxed);
  if (due == 0 || now < due) return;
  next.store(kNever, std::memory_order_relaxed);  // calls that the user makes when asked do not ask
  {
    const FloatingPointState usual(Subnormals::kept);  // this is not our code, such as Python's handlers of signals
    if (scope.should_cancel_(scope.state_)) scope.is_cancelled_.store(true, std::memory_order_relaxed);
  }
  const std::int64_t end = now_in_ns();
  next.store(end + std::clamp(kShare * (end - now), kInterval, kLongestInterval), std::memory_order_relaxed);
}

void Cancellation::end_call() {
  if (scopes_.asked != nullptr) scopes_.asked->is_cancelled_.store(false, std::memory_order_relaxed);
  throw Cancelled();
}

FollowCaller::FollowCaller(CancellationScopes scopes)
    : before_(current), is_other_(!(current.scopes_ == scopes) || !current.is_caller_) {
  if (!is_other_) return;
  current.scopes_ = scopes;
  current.is_caller_ = false;
  current.clock_ = {};
}

FollowCaller::~FollowCaller() {
  if (is_other_) current = before_;
}

CancellationScope::CancellationScope(bool (*should_cancel)(void* state), void* state)
    : should_cancel_(should_cancel), state_(state), outer_(current.scopes_.asked) {
  if (should_cancel == nullptr) throw std::invalid_argument("CancellationScope should_cancel: a null pointer");
  current.scopes_.asked = this;
  current.clock_ = {};
}

CancellationScope::CancellationScope(const std::atomic<bool>& is_cancelled)
    : should_cancel_(nullptr), flag_(&is_cancelled), outer_(current.scopes_.flagged) {
  current.scopes_.flagged = this;
}

CancellationScope::~CancellationScope() {
  if (flag_ != nullptr) {
    current.scopes_.flagged = outer_;
    return;
  }
  current.scopes_.asked = outer_;
  current.clock_ = {};
}

}  // namespace mha

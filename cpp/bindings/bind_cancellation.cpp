// Calls that another thread ends.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include <mha/cancellation.hpp>

#include "bindings.hpp"

namespace mha::bindings {
namespace {

/// Set once, by any thread.
struct CancellationFlag {
  std::atomic<bool> is_set{false};
};

/// The flags that calls of a thread look at, and their scopes, which the library wants to end in reverse order.
class FlagsOfThread {
 public:
  void push(const std::shared_ptr<CancellationFlag>& flag) {
    flags_.push_back(flag);
    scopes_.emplace_back(flag->is_set);
  }

  /// Whether the flag was here; the last one of several is removed.
  bool remove(const std::shared_ptr<CancellationFlag>& flag) {
    const auto found = std::find(flags_.rbegin(), flags_.rend(), flag);
    if (found == flags_.rend()) return false;
    const auto place = static_cast<std::size_t>(flags_.rend() - found) - 1;
    while (scopes_.size() > place) scopes_.pop_back();
    flags_.erase(flags_.begin() + static_cast<std::ptrdiff_t>(place));
    for (std::size_t i = place; i < flags_.size(); ++i) scopes_.emplace_back(flags_[i]->is_set);
    return true;
  }

 private:
  std::vector<std::shared_ptr<CancellationFlag>> flags_;
  std::deque<CancellationScope> scopes_;
};

thread_local FlagsOfThread flags_of_thread;

}  // namespace

void bind_cancellation(py::module_& m) {
  py::class_<CancellationFlag, std::shared_ptr<CancellationFlag>>(m, "CancellationFlag")
      .def(py::init<>())
      .def("set", [](CancellationFlag& flag) { flag.is_set.store(true, std::memory_order_relaxed); })
      .def("is_set", [](const CancellationFlag& flag) { return flag.is_set.load(std::memory_order_relaxed); })
      .def("begin", [](const std::shared_ptr<CancellationFlag>& flag) { flags_of_thread.push(flag); })
      .def(
          "end", [](const std::shared_ptr<CancellationFlag>& flag) { return flags_of_thread.remove(flag); },
          "False: it did not begin in this thread");
}

}  // namespace mha::bindings

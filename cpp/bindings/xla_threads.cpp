#include "xla_threads.hpp"

#include <algorithm>
#include <condition_variable>
#include <limits>
#include <memory>
#include <mutex>

namespace mha::bindings::xla {
namespace {

/// The bodies of one parallel_for. Threads that XLA wakes late find nothing to do, perhaps when the call is long over: the
/// last one to leave frees it.
class Bodies {
 public:
  Bodies(int count, void (*body)(void* context, int i), void* context)
      : count_(count), body_(body), context_(context) {}

  /// Runs bodies that nobody has begun, until there are none.
  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (next_ < count_) {
      const int i = next_++;
      lock.unlock();
      body_(context_, i);
      lock.lock();
      if (++done_ == count_) all_done_.notify_all();
    }
  }

  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    all_done_.wait(lock, [&] { return done_ == count_; });
  }

 private:
  const int count_;
  void (*const body_)(void* context, int i);
  void* const context_;
  std::mutex mutex_;
  std::condition_variable all_done_;
  int next_ = 0, done_ = 0;
};

void run_and_release(void* data) {
  const std::unique_ptr<std::shared_ptr<Bodies>> bodies(static_cast<std::shared_ptr<Bodies>*>(data));
  (*bodies)->run();
}

}  // namespace

bool Threads::succeeded(Error* error) const {
  if (error == nullptr) return true;
  DestroyError arguments{sizeof(DestroyError), nullptr, error};
  api_.destroy_error(&arguments);
  return false;
}

int Threads::count() const {
  if (!MHA_XLA_HAS(&api_, Api, count_threads)) return 0;
  std::int64_t count = 0;
  CountThreads arguments{sizeof(CountThreads), nullptr, context_, &count};
  if (!succeeded(api_.count_threads(&arguments))) return 0;
  return static_cast<int>(std::clamp<std::int64_t>(count, 0, std::numeric_limits<int>::max()));
}

void Threads::parallel_for(void* self, int count, void (*body)(void* context, int i), void* context) {
  const Threads& threads = *static_cast<Threads*>(self);
  const auto bodies = std::make_shared<Bodies>(count, body, context);
  for (int i = 1; i < count; ++i) {
    auto helper = std::make_unique<std::shared_ptr<Bodies>>(bodies);
    Schedule arguments{sizeof(Schedule), nullptr, threads.context_, &run_and_release, helper.get()};
    if (!threads.succeeded(threads.api_.schedule(&arguments))) break;  // those that there are do the rest
    static_cast<void>(helper.release());
  }
  bodies->run();
  bodies->wait();
}

}  // namespace mha::bindings::xla

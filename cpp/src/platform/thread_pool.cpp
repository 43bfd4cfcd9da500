#include "platform/thread_pool.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "platform/cpu_pause.hpp"

namespace mha {
namespace {

// Looks at a flag before a thread goes to sleep, a tenth of a millisecond or two: phases of a call follow each other
// closer than that, and calls in a loop do, too. To give up the processor in between would be kinder to other programs,
// but on a busy machine it is given back milliseconds later.
constexpr int kLooks = 4000;

struct Job {
  void (*body)(void* context, int i);
  void* context;
  int i;
};

/// A thread, and the place where whoever has it leaves a job for it.
class Worker {
 public:
  /// @throws std::system_error if there is no thread to be had
  Worker() { std::thread(&Worker::run, this).detach(); }

  void begin(const Job& job) {
    job_ = job;
    set_busy(true);
  }
  void wait_until_done() { wait_while(true); }

  Worker* next = nullptr;  // in the list that it is in

 private:
  [[noreturn]] void run() {
    for (;;) {
      wait_while(false);
      job_.body(job_.context, job_.i);
      set_busy(false);
    }
  }

  void set_busy(bool is_busy) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_busy_.store(is_busy, std::memory_order_release);
    }
    changed_.notify_one();  // the other side: either the worker waits, or who has it does
  }

  void wait_while(bool is_busy) {
    const auto is_over = [&] { return is_busy_.load(std::memory_order_acquire) != is_busy; };
    for (int i = 0; i < kLooks; ++i) {
      if (is_over()) return;
      cpu_pause();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, is_over);
  }

  Job job_;
  std::atomic<bool> is_busy_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
};

/// The workers that nobody has.
class Pool {
 public:
  /// One of them, or a new one; null if there is no thread to be had.
  Worker* take() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (Worker* worker = idle_) {
        idle_ = worker->next;
        return worker;
      }
    }
    try {
      return new Worker;
    } catch (...) {  // the call goes on with fewer
      return nullptr;
    }
  }

  void give_back(Worker* worker) {
    const std::lock_guard<std::mutex> lock(mutex_);
    worker->next = idle_;
    idle_ = worker;
  }

 private:
  std::mutex mutex_;
  Worker* idle_ = nullptr;
};

void parallel_for(void* state, int count, void (*body)(void* context, int i), void* context) {
  Pool& pool = *static_cast<Pool*>(state);
  Worker* taken = nullptr;
  int left = count - 1;
  while (left > 0) {
    Worker* worker = pool.take();
    if (worker == nullptr) break;
    worker->next = taken;
    taken = worker;
    worker->begin({body, context, left--});
  }
  for (; left >= 0; --left) body(context, left);
  while (taken != nullptr) {
    Worker* worker = taken;
    taken = worker->next;
    worker->wait_until_done();
    pool.give_back(worker);
  }
}

}  // namespace

const Executor& thread_pool() {
  // Never destroyed: its threads wait in it until the process ends, and at exit somebody may still be in a call.
  static const Executor executor = {&parallel_for, new Pool, 0};
  return executor;
}

}  // namespace mha

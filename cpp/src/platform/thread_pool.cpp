#include "platform/thread_pool.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "platform/cpu_pause.hpp"

namespace mha {
namespace {

// How often a waiting thread checks its flag before it goes to sleep: for 0.1 to 0.2 ms. The phases of a call follow
// each other faster than that, and so do calls in a loop. Yielding the processor between two checks would be kinder to
// other programs, but on a busy machine a thread gets it back milliseconds later.
constexpr int kSpins = 4000;

struct Job {
  void (*body)(void* context, int i);
  void* context;
  int i;
};

/// One thread of the pool, and the one job that it is given at a time.
class PoolThread {
 public:
  /// @throws std::system_error if the system starts no more threads
  PoolThread() { std::thread(&PoolThread::run, this).detach(); }

  void begin(const Job& job) {
    job_ = job;
    set_busy(true);
  }
  void wait_until_done() { wait_while(true); }

  PoolThread* next = nullptr;  // in the list of idle threads, or of those that a call has taken

 private:
  [[noreturn]] void run() {
    for (;;) {
      wait_while(false);
      job_.body(job_.context, job_.i);
      set_busy(false);
    }
  }

  /// Hands over between the two sides: true from the call that gives a job, false from this thread when it is done.
  void set_busy(bool is_busy) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_busy_.store(is_busy, std::memory_order_release);
    }
    changed_.notify_one();  // the other side: at any time at most one of the two waits
  }

  void wait_while(bool is_busy) {
    const auto is_over = [&] { return is_busy_.load(std::memory_order_acquire) != is_busy; };
    for (int i = 0; i < kSpins; ++i) {
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

/// The idle threads: those that no call has taken.
class Pool {
 public:
  /// Takes an idle thread, or starts a new one; null if the system starts no more.
  PoolThread* take() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (PoolThread* thread = idle_) {
        idle_ = thread->next;
        return thread;
      }
    }
    try {
      return new PoolThread;
    } catch (...) {  // the call goes on with fewer threads
      return nullptr;
    }
  }

  void give_back(PoolThread* thread) {
    const std::lock_guard<std::mutex> lock(mutex_);
    thread->next = idle_;
    idle_ = thread;
  }

 private:
  std::mutex mutex_;
  PoolThread* idle_ = nullptr;  // a list
};

/// Executor::parallel_for: body(0) runs on the calling thread, the others on threads of the pool as far as there are
/// any.
void parallel_for(void* state, int count, void (*body)(void* context, int i), void* context) {
  Pool& pool = *static_cast<Pool*>(state);
  PoolThread* taken = nullptr;
  int left = count - 1;
  while (left > 0) {
    PoolThread* thread = pool.take();
    if (thread == nullptr) break;
    thread->next = taken;
    taken = thread;
    thread->begin({body, context, left--});
  }
  for (; left >= 0; --left) body(context, left);
  while (taken != nullptr) {
    PoolThread* thread = taken;
    taken = thread->next;
    thread->wait_until_done();
    pool.give_back(thread);
  }
}

}  // namespace

const Executor& thread_pool() {
  // The pool is never destroyed: its threads wait in it until the process ends, and a call may still run at exit.
  static const Executor executor = {&parallel_for, new Pool, 0};
  return executor;
}

}  // namespace mha

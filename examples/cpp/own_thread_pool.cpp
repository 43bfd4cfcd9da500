// A program with its own threads: the library computes on these and starts no threads.
#include <mha/mha.hpp>

#include <condition_variable>
#include <cstdio>
#include <functional>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>

namespace {

/// A typical thread pool: threads and a queue.
class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }
  ~Pool() {
    for (std::size_t i = 0; i < threads_.size(); ++i) submit({});
    for (std::thread& thread : threads_) thread.join();
  }
  void submit(std::function<void()> job) {
    const std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push(std::move(job));
    has_jobs_.notify_one();
  }

 private:
  void work() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      has_jobs_.wait(lock, [this] { return !jobs_.empty(); });
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop();
      lock.unlock();
      if (!job) return;
      job();
    }
  }

  std::mutex mutex_;
  std::condition_variable has_jobs_;
  std::queue<std::function<void()>> jobs_;
  std::vector<std::thread> threads_;
};

int requests = 0;

/// The only function that the library needs: call body(context, i) for each i, and return when all calls have returned.
void parallel_for(void* state, int count, void (*body)(void* context, int i), void* context) {
  Pool& pool = *static_cast<Pool*>(state);
  std::mutex mutex;
  std::condition_variable is_done;
  int left = count - 1;
  for (int i = 1; i < count; ++i)
    pool.submit([&, i] {
      body(context, i);
      const std::lock_guard<std::mutex> lock(mutex);
      if (--left == 0) is_done.notify_one();
    });
  body(context, 0);  // the calling thread computes as well
  std::unique_lock<std::mutex> lock(mutex);
  is_done.wait(lock, [&] { return left == 0; });
  ++requests;
}

}  // namespace

int main() {
  constexpr mha::Index H = 8, T = 300, D = 64;
  std::vector<float> x(H * T * D), serial(x.size()), out(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 13) / 6 - 1;
  const mha::TensorView tokens(x.data(), {H, T, D});
  const auto attend = [&](std::vector<float>& result, int num_threads) {
    mha::AttentionOptions options;
    options.num_threads = num_threads;
    const mha::MutableTensorView view(result.data(), {H, T, D});
    mha::scaled_dot_product_attention(tokens, tokens, tokens, view, {}, options);
  };
  attend(serial, 1);

  Pool pool(2);
  {
    const mha::ExecutorScope scope({&parallel_for, &pool, 3});  // two threads and the caller
    attend(out, 0);
  }
  std::printf("%d requests of the pool, the %s bits\n", requests, out == serial ? "same" : "wrong");
  return requests == 0 || out != serial;
}

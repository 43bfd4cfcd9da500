#include "platform/startable_threads.hpp"

#ifndef _WIN32
#include <pthread.h>
#endif

#include <cctype>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <memory>
#include <mutex>
#include <new>
#include <string_view>

namespace mha {
namespace {

// How long a thread that was given fewer workers than it wanted makes do with those, before it tries again. To try
// takes 10 to 20 us for each thread that is started, once in ten thousand times as long.
constexpr std::chrono::seconds kUntilNextTrial{1};

#ifndef _WIN32
/// Starts up to `count` threads that all live at once, with stacks of the size that OpenMP uses, and ends them.
/// @return how many the system has started
std::size_t start_and_end(std::size_t count) {
  const std::unique_ptr<pthread_t[]> threads(new (std::nothrow) pthread_t[count]);
  pthread_attr_t attributes;
  if (!threads || pthread_attr_init(&attributes) != 0) return 0;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): as in dispatch.cpp
  if (const std::size_t bytes = stack_bytes(std::getenv("OMP_STACKSIZE")))
    pthread_attr_setstacksize(&attributes, bytes);  // fails for less than the least that the system has, as in libgomp
  std::size_t started = 0;
  std::mutex until_all_are_started;
  {
    const std::lock_guard<std::mutex> lock(until_all_are_started);
    const auto wait = [](void* mutex) -> void* {
      const std::lock_guard<std::mutex> passed(*static_cast<std::mutex*>(mutex));
      return nullptr;
    };
    while (started < count && pthread_create(&threads[started], &attributes, wait, &until_all_are_started) == 0)
      ++started;
  }
  pthread_attr_destroy(&attributes);
  for (std::size_t i = 0; i < started; ++i) pthread_join(threads[i], nullptr);
  return started;
}
#else
std::size_t start_and_end(std::size_t count) { return count; }
#endif

}  // namespace

int startable_threads(int wanted) {
  using Clock = std::chrono::steady_clock;
  thread_local int given = 1;                   // the most so far
  thread_local Clock::time_point next_trial{};  // none before
  if (wanted <= given) return wanted;
  const Clock::time_point now = Clock::now();
  if (now < next_trial) return given;
  const int missing = wanted - given;
  const int started = static_cast<int>(start_and_end(static_cast<std::size_t>(missing)));
  if (started == missing) return given = wanted;
  next_trial = now + kUntilNextTrial;
  return given += started / 2;  // the other half of the system's remaining threads is for the rest of the process
}

std::size_t stack_bytes(const char* omp_stacksize) {
  std::string_view text = omp_stacksize == nullptr ? "" : omp_stacksize;
  const auto skip_spaces = [&] {
    while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  };
  skip_spaces();
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return 0;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  skip_spaces();
  int shift = 10;
  if (!text.empty()) {
    constexpr std::string_view kUnits = "BKMG";
    const std::size_t unit = kUnits.find(static_cast<char>(std::toupper(static_cast<unsigned char>(text.front()))));
    if (unit == std::string_view::npos) return 0;
    shift = 10 * static_cast<int>(unit);
    text.remove_prefix(1);
    skip_spaces();
  }
  return text.empty() && number <= std::numeric_limits<std::size_t>::max() >> shift ? number << shift : 0;
}

}  // namespace mha

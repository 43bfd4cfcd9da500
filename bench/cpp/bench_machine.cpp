// What the machine can do: multiply-adds in registers, and reading from each level of memory.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "measure.hpp"
#include "probes.hpp"
#include "saturate.hpp"

namespace mha::bench {
namespace {

/// Runs one loop on each thread. Threads share nothing but the clock, which may fall when all of them work. The fastest
/// iteration counts, since a mean also measures interruptions.
template <class Saturate>
void add_peak(const std::string& name, const Settings& settings, const char* unit, Saturate saturate) {
  for (int threads : settings.threads) {
    const auto run = [saturate, unit](benchmark::State& state) {
      double best = 0;
      for ([[maybe_unused]] auto _ : state) {
        const auto start = std::chrono::steady_clock::now();
        const double operations = saturate();
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        best = std::max(best, operations * 1e-9 / seconds.count());
      }
      state.counters[unit] = best;  // the sum of all threads is shown
    };
    benchmark::RegisterBenchmark(("machine/" + name).c_str(), run)
        ->Threads(threads)
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  }
}

/// Reads `bytes` of memory again and again.
void add_reading(const std::string& level, std::size_t bytes, const Settings& settings) {
  for (int threads : settings.threads) {
    add_benchmark(with_threads("machine/read-" + level, threads), settings, [=] {
      // So much for one call that waking the threads does not count.
      constexpr std::size_t kLeastBytes = std::size_t{16} << 20;
      const auto memory = std::make_shared<std::vector<double>>(bytes / sizeof(double), 1.0);
      const std::vector<const void*> blocks((kLeastBytes + bytes - 1) / bytes, memory->data());
      Subject subject;
      subject.threads = threads;
      subject.work.bytes = double(blocks.size()) * double(bytes);
      subject.call = [=] {
        benchmark::DoNotOptimize(
            probes::read_memory(blocks.data(), int(blocks.size()), memory->size() * sizeof(double), threads));
      };
      return subject;
    });
  }
}

}  // namespace

void add_machine(const Settings& settings) {
  constexpr Index kRounds = 1000;  // some 10 us
  const std::pair<const char*, DType> types[] = {{"f32", DType::f32}, {"f64", DType::f64}, {"bf16", DType::bf16}};
  for (const auto& [name, dtype] : types)
    add_peak(std::string("fma-") + name, settings, "GFLOP/s",
             [dtype = dtype] { return probes::multiply_add(dtype, kRounds); });
#ifdef MHA_BENCH_INT8_PEAK
  if (__builtin_cpu_supports("avx512vnni"))
    add_peak("fma-int8", settings, "GOP/s", [] { return saturate_int8(8 * kRounds); });
#endif

  // Half of a level 2 that each thread has to itself; of a last cache, which strangers may share, a quarter, if that is
  // beyond level 2; four times the last cache.
  const std::size_t level2 = cache_bytes(2), last = last_cache_bytes();
  if (level2 > 0) add_reading("L2", level2 / 2, settings);
  if (cache_bytes(3) / 4 >= 4 * level2 && level2 > 0) add_reading("L3", cache_bytes(3) / 4, settings);
  add_reading("DRAM", 4 * last, settings);
}

}  // namespace mha::bench

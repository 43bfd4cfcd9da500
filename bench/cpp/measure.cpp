#include "measure.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "probes.hpp"
#include "saturate.hpp"

namespace mha::bench {
namespace {

bool failed = false;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// GB/s of reading the blocks of the subject, and nothing else, for a few milliseconds.
double measure_bandwidth(const Subject& subject, double seconds) {
  double bytes = 0;
  const Clock::time_point start = Clock::now();
  do {
    benchmark::DoNotOptimize(
        probes::read_memory(subject.blocks.data(), int(subject.blocks.size()), subject.block_bytes, subject.threads));
    bytes += double(subject.blocks.size()) * double(subject.block_bytes);
  } while (seconds_since(start) < seconds);
  return bytes / seconds_since(start) * 1e-9;
}

void time_subject(benchmark::State& state, const Subject& subject, bool is_smoke) {
  const double peak_seconds = is_smoke ? 0 : 0.01;  // five chunks of the loop, of which the fastest counts
  // Idle threads of OpenMP spin on for some milliseconds after a call, and would take the time of this one.
  if (!is_smoke) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const Work& work = subject.work;
  double peak = work.flops > 0 ? measure_peak(subject.product, peak_seconds) : 0;
  subject.call();  // warms up
  const Clock::time_point start = Clock::now();
  for ([[maybe_unused]] auto _ : state) subject.call();
  const double seconds = seconds_since(start) / double(state.iterations());

  // Plain numbers: Google Benchmark would show its own rates, a fraction among them, as so much "/s".
  auto& counters = state.counters;
  if (work.bytes > 0) counters["GB/s"] = work.bytes * 1e-9 / seconds;
  if (work.flops > 0) {
    // On both sides of what it is held against, since a clock may fall meanwhile.
    peak = std::max(peak, measure_peak(subject.product, peak_seconds));
    counters["GFLOP/s"] = work.flops * 1e-9 / seconds;
    if (peak > 0) {
      counters["of_peak"] = work.flops * 1e-9 / seconds / (peak * subject.threads);
      counters["peak"] = peak;
    }
    counters["flops"] = work.flops;
  }
  if (!subject.blocks.empty()) {
    const double bandwidth = measure_bandwidth(subject, peak_seconds);
    counters["of_bandwidth"] = work.read * 1e-9 / seconds / bandwidth;
    counters["bandwidth"] = bandwidth;
  }
}

}  // namespace

double measure_peak(DType product, double seconds) {
  if (product != DType::int8) return probes::measure_fma_gflops(product, seconds);
  double best = 0;
#ifdef MHA_BENCH_INT8_PEAK
  if (!__builtin_cpu_supports("avx512vnni")) return 0;
  constexpr long kRounds = 200000;
  const Clock::time_point start = Clock::now();
  do {  // chunks of about a millisecond, of which the fastest counts, as in probes::measure_fma_gflops()
    const Clock::time_point chunk = Clock::now();
    best = std::max(best, saturate_int8(kRounds) * 1e-9 / seconds_since(chunk));
  } while (seconds_since(start) < seconds);
#endif
  return best;
}

void add_benchmark(const std::string& name, const Settings& settings, std::function<Subject()> make) {
  // Google Benchmark calls the function several times for each repetition; repetitions of all benchmarks alternate.
  auto kept = std::make_shared<std::optional<Subject>>();
  const auto run = [kept, make = std::move(make), is_smoke = settings.is_smoke](benchmark::State& state) {
    try {
      if (!*kept) {
        Subject subject = make();
        subject.call();
        if (subject.check) subject.check();
        *kept = std::move(subject);
      }
      time_subject(state, **kept, is_smoke);
    } catch (const std::exception& error) {
      failed = true;
      state.SkipWithError(error.what());
    }
  };
  benchmark::RegisterBenchmark(name.c_str(), run)->UseRealTime()->Unit(benchmark::kMicrosecond);
}

bool has_failed() { return failed; }

std::string with_threads(const std::string& name, int threads) { return name + "/threads:" + std::to_string(threads); }

std::size_t cache_bytes(int level) {
  for (const auto& cache : benchmark::CPUInfo::Get().caches)
    if (cache.level == level && cache.type != "Instruction") return std::size_t(cache.size);
  return 0;
}

std::size_t last_cache_bytes() {
  for (int level = 4; level > 0; --level)
    if (const std::size_t bytes = cache_bytes(level)) return bytes;
  return std::size_t{32} << 20;
}

}  // namespace mha::bench

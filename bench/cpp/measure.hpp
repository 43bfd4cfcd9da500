// How a call is timed, and what its time is held against.
#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "mha/tensor_view.hpp"

namespace mha::bench {

/// What the command line asks for.
struct Settings {
  std::vector<int> threads = {1, 2};
  bool is_smoke = false;  // run everything that takes no seconds, measure next to nothing

  bool wants(double flops) const { return !is_smoke || flops < 2e10; }
};

/// What one call does. Zero: not worth a rate.
struct Work {
  double flops = 0;
  double bytes = 0;  // to be read or written at least once
  double read = 0;   // of the blocks of the subject
};

/// Something to be timed.
struct Subject {
  DType product = DType::f32;  // what is multiplied, and so which peak it is held against
  int threads = 1;
  Work work = {};
  std::function<void()> call;
  /// Throws if what call() computed is wrong; empty: cannot be told. Once, before anything is timed.
  std::function<void()> check = {};
  /// Memory that calls have to read, work.read bytes in each call: to read it and do nothing else is their yardstick.
  std::vector<const void*> blocks = {};
  std::size_t block_bytes = 0;
};

/// GFLOP/s of one core that does nothing but multiply and add, measured for so long: of the active instruction set; of
/// int8 in GOP/s and of the processor, 0 if it has no instruction for that.
double measure_peak(DType product, double seconds);

/// Registers a benchmark of the name. `make` puts the subject together; it is called when the benchmark is first run,
/// so that those that a filter leaves out take neither time nor memory.
void add_benchmark(const std::string& name, const Settings& settings, std::function<Subject()> make);

/// Whether some benchmark did not run to its end, or computed something wrong.
bool has_failed();

/// "case/threads:2"
std::string with_threads(const std::string& name, int threads);

/// Of the largest cache that the first core sees; 32 MiB where the system does not tell.
std::size_t last_cache_bytes();
/// Of the cache of a level; 0 where there is none, or the system does not tell.
std::size_t cache_bytes(int level);

/// The list of benchmarks, one function for each file.
void add_machine(const Settings& settings);
void add_attention(const Settings& settings);
void add_layers(const Settings& settings);

}  // namespace mha::bench

// mha_bench: what this machine can do, and what the library makes of it, in one process. README.md in the folder above
// holds the protocol.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <sstream>
#include <stdexcept>

#include "measure.hpp"
#include "mha/mha.hpp"

namespace mha::bench {
namespace {

constexpr const char* kUsage =
    "mha_bench [--isa=NAME] [--threads=N,N] [--smoke] and the flags of Google Benchmark, among them\n"
    "  --benchmark_filter=REGEX        only these; --benchmark_list_tests prints their names\n"
    "  --benchmark_out=FILE            every repetition as JSON, for mha_native_bench.compare\n"
    "  --benchmark_repetitions=N       default: 9, of 0.05 s each, in turns\n"
    "  --isa=NAME                      instruction set of the library; default: its own choice\n"
    "  --threads=N,N                   default: 1,2\n"
    "  --smoke                         run everything, measure next to nothing";

std::vector<int> parse_threads(const std::string& text) {
  std::vector<int> counts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    char* end = nullptr;
    const long count = std::strtol(part.c_str(), &end, 10);
    if (*end != '\0' || count < 1 || count > 4096)
      throw std::invalid_argument("--threads: expected numbers of 1 or more; got " + text);
    counts.push_back(int(count));
  }
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  if (counts.empty()) throw std::invalid_argument("--threads: expected a number");
  return counts;
}

int run(int argc, char** argv) {
  Settings settings;
  std::vector<char*> flags;
  // In turns: a slower minute of the machine meets all benchmarks alike. What the user says comes later, and wins.
  static char defaults[][56] = {"--benchmark_enable_random_interleaving=true", "--benchmark_repetitions=9",
                                "--benchmark_min_time=0.05", "--benchmark_display_aggregates_only=true",
                                "--benchmark_counters_tabular=true"};
  static char smoke[][56] = {"--benchmark_repetitions=1", "--benchmark_min_time=0.0001",
                             "--benchmark_display_aggregates_only=false"};
  flags.push_back(argv[0]);
  for (char* flag : defaults) flags.push_back(flag);
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    // --name=value, or the value as the next argument.
    const auto value_of = [&](const std::string& name) {
      if (argument != name) return argument.substr(name.size() + 1);
      if (i + 1 == argc) throw std::invalid_argument(name + ": expected a value");
      return std::string(argv[++i]);
    };
    const auto is = [&](const std::string& name) { return argument == name || argument.rfind(name + "=", 0) == 0; };
    if (is("--isa")) {
      set_isa(value_of("--isa").c_str());
    } else if (is("--threads")) {
      settings.threads = parse_threads(value_of("--threads"));
    } else if (argument == "--smoke") {
      settings.is_smoke = true;
      for (char* flag : smoke) flags.push_back(flag);
    } else if (argument == "--help") {
      std::puts(kUsage);
      return 0;
    } else {
      flags.push_back(argv[i]);
    }
  }

  int count = int(flags.size());
  benchmark::Initialize(&count, flags.data());
  if (benchmark::ReportUnrecognizedArguments(count, flags.data())) return 2;
  benchmark::AddCustomContext("mha_native", MHA_VERSION);
  benchmark::AddCustomContext("isa", active_isa());
  benchmark::AddCustomContext("isa_reason", active_isa_reason());
  benchmark::AddCustomContext("compiler", MHA_COMPILER);
  add_machine(settings);
  add_attention(settings);
  add_layers(settings);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return has_failed() ? 1 : 0;
}

}  // namespace
}  // namespace mha::bench

int main(int argc, char** argv) {
  try {
    return mha::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mha_bench: %s\n", error.what());
    return 2;
  }
}

// The fuzzer without libFuzzer: bytes from a generator with a seed, until there were so many calls or seconds.
//
//   mha_fuzz [--seed N] [--calls N] [--seconds N]
//
// What it finds it prints, with the arguments that repeat it: --seed of the round, --calls 1. With MHA_FUZZ_TRACE set
// it prints those before each round, so that the last of them belong to a crash.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "../cpp/allocator.hpp"
#include "calls.hpp"

namespace {

// Most calls read fewer; behind the last byte every choice is the first one.
constexpr std::size_t kBytes = 400;

// The longest calls take a hundredth of that under sanitizers. What takes longer does not end.
constexpr unsigned kSecondsOfRound = 60;

volatile std::sig_atomic_t round_seed = 0;

/// Ends the program in a round that does not end.
void report_round(int) {
  char text[64];
  const int length = std::snprintf(text, sizeof text, "does not end: --seed %d --calls 1\n", int(round_seed));
  if (write(STDERR_FILENO, text, std::size_t(length)) < 0) std::abort();
  std::_Exit(1);
}

long option(int argc, char** argv, const char* name, long otherwise) {
  for (int i = 1; i + 1 < argc; ++i)
    if (std::strcmp(argv[i], name) == 0) return std::atol(argv[i + 1]);
  return otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  const long first = option(argc, argv, "--seed", 1), calls = option(argc, argv, "--calls", 20000);
  const long seconds = option(argc, argv, "--seconds", 3600);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  mha::testing::refuse_allocations_above(std::size_t{256} << 20);
  std::signal(SIGALRM, &report_round);
  const bool traces = std::getenv("MHA_FUZZ_TRACE") != nullptr;
  mha::fuzz::Tally tally;
  long seed = first, findings = 0;
  for (; tally.calls < calls && std::chrono::steady_clock::now() < end; ++seed) {
    std::mt19937 generator(static_cast<unsigned>(seed));
    std::uint8_t bytes[kBytes];
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(generator());
    mha::fuzz::Choices choices(bytes, kBytes);
    if (traces) std::fprintf(stderr, "--seed %ld --calls 1\n", seed);
    round_seed = static_cast<std::sig_atomic_t>(seed);
    alarm(kSecondsOfRound);
    try {
      mha::fuzz::fuzz(choices, tally);
    } catch (const mha::fuzz::Finding& finding) {
      std::printf("--seed %ld --calls 1: %s\n", seed, finding.what());
      ++findings;
    }
  }
  std::printf("%ld calls of mha.h, %ld of them accepted, seeds %ld to %ld, %ld findings\n", tally.calls, tally.accepted,
              first, seed - 1, findings);
  return findings == 0 ? 0 : 1;
}

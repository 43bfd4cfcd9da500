#include "probes.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>

#include "loops.hpp"
#include "mha/errors.hpp"
#include "mha/runtime.hpp"
#include "platform/parallel.hpp"
#include "views/describe.hpp"

namespace mha::probes {
namespace {

/// The loops of the active instruction set.
const Loops& active_loops() {
  const char* const isa = active_isa();
#define MHA_ISA(name, required) \
  if (std::strcmp(isa, #name) == 0) return loops_##name();
#include "isa_list.inc"
#undef MHA_ISA
  throw std::logic_error(std::string("no probes were built for ") + isa);
}

// Long enough for the hardware to see a stream, and short enough that no thread waits for the last one.
constexpr Index kPieceBytes = Index{256} * 1024;

/// The shared state of the tasks of read_memory(): `pieces` of them read a block.
struct Reading {
  std::uint64_t (*read_words)(const void* memory, Index count);
  const void* const* blocks;
  Index bytes, pieces;
  mutable std::atomic<std::uint64_t> result{0};
};

void read_piece(const void* context, Index task, int) {
  const auto& reading = *static_cast<const Reading*>(context);
  const Index first = task % reading.pieces * kPieceBytes;
  const char* piece = static_cast<const char*>(reading.blocks[task / reading.pieces]) + first;
  const Index length = std::min<Index>(kPieceBytes, reading.bytes - first), words = length / 8;
  std::uint64_t last = 0;
  std::memcpy(&last, piece + words * 8, static_cast<std::size_t>(length - words * 8));
  reading.result.fetch_xor(last ^ reading.read_words(piece, words), std::memory_order_relaxed);
}

}  // namespace

double multiply_add(DType dtype, Index rounds) { return active_loops().multiply_add[static_cast<int>(dtype)](rounds); }

double measure_fma_gflops(DType dtype, double seconds) {
  if (static_cast<int>(dtype) >= kNumDTypes)
    throw DTypeError(std::string("measure_fma_gflops dtype: expected a floating-point type; got ") + name_of(dtype));
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  // A chunk is long enough for the clock, and short enough that some chunks are not interrupted.
  constexpr double kChunkSeconds = 2e-3;
  const Clock::time_point begin = Clock::now();
  Index rounds = 1000;
  double best = 0;
  do {
    const Clock::time_point start = Clock::now();
    const double flops = multiply_add(dtype, rounds);
    const double elapsed = seconds_since(start);
    if (elapsed < kChunkSeconds)
      rounds *= 2;
    else
      best = std::max(best, flops / elapsed);
  } while (best == 0 || seconds_since(begin) < seconds);
  return best * 1e-9;
}

std::uint64_t read_memory(const void* const* blocks, int count, std::size_t bytes, int threads) {
  const auto size = static_cast<Index>(bytes);
  const Reading reading{active_loops().read_words, blocks, size, (size + kPieceBytes - 1) / kPieceBytes};
  const Phase phase{count * reading.pieces, &read_piece, &reading};
  run_phases(&phase, 1, threads);
  return reading.result;
}

}  // namespace mha::probes

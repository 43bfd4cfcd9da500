// Cuts the rows of a product into strips that fill the registers, and calls the function of each strip through a table.
#pragma once

#include "kernels/kernel_table.hpp"
#include "kernels/vectors/eigen.hpp"

namespace mha::MHA_ISA {
namespace {

/// Vectors side by side in a tile of a single row of a projection: eight accumulators, or as many as a panel is wide.
/// So it reads memory in the order of addresses: 0.97 of the rate of pure reading on a Zen 3, and 0.55 in strips of two
/// vectors, which take one cache line of four from each row of a panel.
constexpr int kRowVectors = kPanelBytes / (kLanes<float> * 4) < 8 ? int(kPanelBytes) / (kLanes<float> * 4) : 8;

/// Rows of memory that are read soon and should be prefetched. That costs 1.5 % (T = 128) if they are in the caches
/// already, and saves 20 to 40 % if they are in memory: docs/decisions/0003.
struct Upcoming {
  const void* data = nullptr;
  Index row = 0, rows = 0, bytes = 0;  // bytes between rows; number; bytes of each
  // Then rows at addresses of their own: `lone_bytes` of each from byte `offset` on.
  const void* const* lone_rows = nullptr;
  Index lone_count = 0, offset = 0, lone_bytes = 0;

  // In line: GCC 12 finds that a function which only prefetches has no effects, and drops the calls of it.

  /// The share of the steps [from, to) of `steps`.
  MHA_INLINE void prefetch_share(Index from, Index to, Index steps) const {
    if (rows > 0) prefetch(rows * from / steps, rows * to / steps);
    if (lone_count == 0) return;
    for (Index r = lone_count * from / steps; r < lone_count * to / steps; ++r)
      for (Index at = offset; at < offset + lone_bytes; at += 64)
        __builtin_prefetch(static_cast<const char*>(lone_rows[r]) + at);
  }
  MHA_INLINE void prefetch(Index from, Index to) const {
    for (Index r = from; r < to; ++r)
      for (Index at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(data) + r * row + at);
  }
};

/// The `beside` argument, called as beside(piece, pieces) between pieces of work, of a kernel with no other work to do.
constexpr auto kNothingBeside = [](Index, Index) {};

/// The functions that compute the strips of a product. `Strip<Products, M, N>::run` computes M rows that are N vectors
/// wide. It is instantiated for every M up to Tile::rows(N) and for N = 1, 2, ... kVectors, or for kLeastVectors and
/// its doubles, and for kMostVectors.
///
/// A call splits `rows` into strips of nearly equal height, none above Tile::rows(n): 32 rows become 6+6+5+5+5+5, not
/// 6+6+6+6+6+2, since two rows have too few accumulators to hide the latency of a multiply-add. Before each strip its
/// share of `upcoming` is prefetched: so many requests at once would fill the queue to memory. If `first` is given, the
/// first strip is computed by its functions: those prefetch the panel, which the other strips find in level 2.
/// A tile wider than kVectors reads memory in order, and the processor looks ahead by itself. `after(row, height)` is
/// called when a strip has been computed, whose results are in level 1.
template <template <class, int, int> class Strip, class Products, class Arguments, int kLeastVectors = 1,
          int kMostVectors = kVectors>
struct StripTable {
  using Tile = typename Products::Tile;
  using Function = void (*)(const Arguments&, Index first_row);
  Function strips[kMostVectors][Tile::kMostRows];

  constexpr StripTable() : strips{} { fill<kLeastVectors>(); }

  void operator()(int n, Index rows, const Arguments& arguments, const Upcoming& upcoming = {}) const {
    run(n, rows, arguments, upcoming, nullptr, [](Index, Index) {});
  }

  template <class After>
  void run(int n, Index rows, const Arguments& arguments, const Upcoming& upcoming,
           const Function (*first)[Tile::kMostRows], After after) const {
    if (rows == 0) return;
    const Index count = (rows + Tile::rows(n) - 1) / Tile::rows(n), least = rows / count, higher = rows % count;
    for (Index strip = 0, row = 0; strip < count; ++strip) {
      const Index height = least + (strip < higher);
      upcoming.prefetch_share(strip, strip + 1, count);
      (strip == 0 && first && n <= kVectors ? first : strips)[n - 1][height - 1](arguments, row);
      after(row, height);
      row += height;
    }
  }

 private:
  template <int N, int M = 1>
  constexpr void fill() {
    strips[N - 1][M - 1] = &Strip<Products, M, N>::run;
    if constexpr (M < Tile::rows(N))
      fill<N, M + 1>();
    else if constexpr (N < kVectors)
      fill<kLeastVectors == 1 ? N + 1 : 2 * N>();
    else if constexpr (N < kMostVectors)
      fill<kMostVectors>();
  }
};

}  // namespace
}  // namespace mha::MHA_ISA

// Cuts the rows of a product into strips that fill the registers, and calls the function of each strip through a table.
#pragma once

#include "kernels/vectors/eigen.hpp"

namespace mha::MHA_ISA {
namespace {

/// Rows of memory that are read soon and should be prefetched. That costs 1.5 % (T = 128) if they are in the caches
/// already, and saves 20 to 40 % if they are in memory: docs/decisions/0003.
struct Upcoming {
  const void* data = nullptr;
  Index row = 0, rows = 0, bytes = 0;  // bytes between rows; number; bytes of each

  void prefetch(Index from, Index to) const {
    for (Index r = from; r < to; ++r)
      for (Index at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(data) + r * row + at);
  }
};

/// The functions that compute the strips of a product. `Strip<Products, M, N>::run` computes M rows that are N vectors
/// wide. It is instantiated for every M up to Tile::rows(N) and for N = 1, 2, ... kVectors, or for kLeastVectors and
/// its doubles.
///
/// A call splits `rows` into strips of nearly equal height, none above Tile::rows(n): 32 rows become 6+6+5+5+5+5, not
/// 6+6+6+6+6+2, since two rows have too few accumulators to hide the latency of a multiply-add. Before each strip its
/// share of `upcoming` is prefetched: so many requests at once would fill the queue to memory. If `first` is given, the
/// first strip is computed by its functions: those prefetch the panel, which the other strips find in level 2.
template <template <class, int, int> class Strip, class Products, class Arguments, int kLeastVectors = 1>
struct StripTable {
  using Tile = typename Products::Tile;
  using Function = void (*)(const Arguments&, Index first_row);
  using Functions = Function[kVectors][Tile::kMostRows];
  Functions strips;

  constexpr StripTable() : strips{} { fill<kLeastVectors>(); }

  void operator()(int n, Index rows, const Arguments& arguments, const Upcoming& upcoming = {},
                  const Functions* first = nullptr) const {
    if (rows == 0) return;
    const Index count = (rows + Tile::rows(n) - 1) / Tile::rows(n), least = rows / count, higher = rows % count;
    for (Index strip = 0, row = 0; strip < count; ++strip) {
      const Index height = least + (strip < higher);
      if (upcoming.rows > 0) upcoming.prefetch(upcoming.rows * strip / count, upcoming.rows * (strip + 1) / count);
      (strip == 0 && first ? *first : strips)[n - 1][height - 1](arguments, row);
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
  }
};

}  // namespace
}  // namespace mha::MHA_ISA

// How the rows of a product are cut into strips that fill the registers, and the functions that compute each strip.
#pragma once

#include "kernels/vectors/eigen.hpp"

namespace mha::MHA_ISA {
namespace {

/// Rows of memory that will be read soon. Prefetching costs a little when they are near already (1.5 % at T = 128) and
/// wins a lot when they are not (20 to 40 % from memory): docs/decisions/0003.
struct Upcoming {
  const void* data = nullptr;
  Index row = 0, rows = 0, bytes = 0;  // bytes between rows; number; bytes of each

  void prefetch(Index from, Index to) const {
    for (Index r = from; r < to; ++r)
      for (Index at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(data) + r * row + at);
  }
};

/// A strip function computes M rows of a tile that is N vectors wide. `Strip<Products, M, N>::run` is instantiated for every
/// M up to Tile::rows(N) and every N, or kLeastVectors and its doubles, and called through a table.
///
/// Splits `rows` into strips of nearly equal height, none above Tile::rows(n): 32 rows become 6+6+5+5+5+5, not
/// 6+6+6+6+6+2, since a tile of two rows has too few accumulators to hide the latency of a multiply-add. Before each
/// strip its share of `upcoming` is prefetched: spread out, the requests never fill the queue to memory. The first strip,
/// which finds B wherever it was, has functions of its own if `first` is given.
template <template <class, int, int> class Strip, class Products, class Arguments, int kLeastVectors = 1>
struct StripTable {
  using Tile = typename Products::Tile;
  using Function = void (*)(const Arguments&, Index first_row);
  using Functions = Function[kVectors][8];
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

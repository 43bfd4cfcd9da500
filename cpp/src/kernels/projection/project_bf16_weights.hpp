// Projections of f32 rows with weights in bfloat16: half the bytes to read, which is what few rows wait for.
//
// A bfloat16 is the upper half of an f32, so a shift or a mask makes one of it, on processors that know nothing of the
// format. From there on all is as in project_tile.hpp, in the same order: the bits of the result are those of f32 weights
// that were rounded to bfloat16.
#pragma once

#include "kernels/projection/project_tile.hpp"
#include "kernels/projection/weight_strips.hpp"
#include "kernels/vectors/integer_vectors.hpp"

namespace mha::MHA_ISA {
namespace {

/// multiply_tile from a start of 0, where a row of B holds two features of each column, the first one in the lower half.
/// Each vector of B is loaded for either half: 24 accumulators and 4 vectors leave no registers to keep it in.
template <int M, int N, int kAhead, class Finish>
MHA_INLINE void multiply_halves(Index depth, const float* a, Index a_row, Index a_step, const std::byte* b,
                                Finish finish) {
  using P = Packet<float>;
  P c[M][N];
  MHA_UNROLL
  for (int i = 0; i < M; ++i) {
    MHA_UNROLL
    for (int j = 0; j < N; ++j) c[i][j] = pset1<P>(0.0f);
  }
  const auto add_feature = [&](auto half) MHA_INLINE_LAMBDA {
    P bk[N];
    MHA_UNROLL
    for (int j = 0; j < N; ++j) bk[j] = P(half(load_vector<Bits>(b + j * Index(sizeof(P)))));
    MHA_UNROLL
    for (int i = 0; i < M; ++i) {
      const P aik = pset1<P>(a[i * a_row]);
      MHA_UNROLL
      for (int j = 0; j < N; ++j) c[i][j] = pmadd(aik, bk[j], c[i][j]);
    }
    a += a_step;
  };
  const auto lower = [](const Bits& words) MHA_INLINE_LAMBDA { return words << 16; };
  const auto upper = [](const Bits& words) MHA_INLINE_LAMBDA { return words & 0xffff0000u; };
  for (Index k = 0; k < depth / 2; ++k) {
    if constexpr (kAhead > 0) {
      MHA_UNROLL
      for (int j = 0; j < N * int(sizeof(P)); j += kVectorBytes)
        __builtin_prefetch(b + Index{kAhead} * kPanelBytes + j);
    }
    add_feature(lower);
    // Keeps the compiler from mixing the two, for which 16 registers do not suffice: 0.77 of the rate. With 32 they do.
    if constexpr (kVectors == 2) asm volatile("" ::: "memory");
    add_feature(upper);
    b += kPanelBytes;
  }
  if (depth % 2) add_feature(lower);
  MHA_UNROLL
  for (int i = 0; i < M; ++i) {
    MHA_UNROLL
    for (int j = 0; j < N; ++j) finish(i, j, c[i][j]);
  }
}

template <int M, int N, int kAhead>
struct Bf16WeightsStrip {
  static void run(const WeightStrip& g, Index row) {
    using P = Packet<float>;
    constexpr Index L = kLanes<float>;
    const ProjectionTile& tile = *g.tile;
    const float* const bias = g.row_of_columns(tile.bias, 0);
    const auto out = [&](int i, int j) MHA_INLINE_LAMBDA { return g.out[j] + (row + i) * g.out_row; };
    // The blocks and the chains of project_tile() and multiply_long_tile(), rounded at the same places. The sums so far
    // wait where the result goes.
    for (Index block = 0; block < tile.in_features; block += kDepth) {
      const Index depth = tile.in_features - block < kDepth ? tile.in_features - block : kDepth;
      alignas(kVectorBytes) float sums[L * M * N];
      for (Index k = 0; k < depth; k += kChain) {
        const bool is_last = k + kChain >= depth, is_only = depth <= kChain;
        multiply_halves<M, N, kAhead>(
            is_last ? depth - k : kChain,
            static_cast<const float*>(tile.x) + row * tile.x_row + (block + k) * tile.x_step, tile.x_row, tile.x_step,
            g.panel() + (block + k) / 2 * kPanelBytes, [&](int i, int j, P c) MHA_INLINE_LAMBDA {
              float* const sum = sums + (i * N + j) * L;
              if (!is_only) c = padd(k == 0 ? pset1<P>(0.0f) : pload<P>(sum), c);
              if (is_last)
                pstoreu(out(i, j), padd(block == 0 ? pload<P>(bias + j * L) : ploadu<P>(out(i, j)), c));
              else
                pstore(sum, c);
            });
      }
    }
    if (tile.activation != Activation::none) activate<float>(tile.activation, g.out, N, row, M, g.out_row);
  }
};

template <class, int M, int N>
using Bf16WeightsRows = Bf16WeightsStrip<M, N, 0>;
template <class, int M, int N>
using Bf16WeightsFirstRows = Bf16WeightsStrip<M, N, panel_rows_ahead(M)>;

inline void project_bf16_weights(const ProjectionTile& tile, void* scratch) {
  static constexpr WeightStripTable<Bf16WeightsRows> strips;
  static constexpr WeightStripTable<Bf16WeightsFirstRows> first;
  project_narrow(tile, scratch, strips, first);
}

}  // namespace
}  // namespace mha::MHA_ISA

// Products of numbers and bf16 weights, which are widened in registers.
//
// A bfloat16 is the upper half of an f32, so a shift or a mask converts it to f32, on processors without instructions
// for the format. Every sum has the terms and the order of PacketProducts<float>, so the bits are the same as with f32
// weights that were rounded to bfloat16.
#pragma once

#include "kernels/kernel_table.hpp"
#include "kernels/products/packet_products.hpp"
#include "kernels/vectors/integer_vectors.hpp"

namespace mha::MHA_ISA {
namespace {

struct WidenedTile {
  static constexpr int rows(int n) { return PacketProducts<float>::Tile::rows(n); }
  static constexpr int kMostRows = PacketProducts<float>::Tile::kMostRows;

  /// PacketTile::multiply from a start of 0, where a row of the panel holds two features of each column, the first one
  /// in the lower half. Each vector of the panel is loaded for either half: 24 accumulators and 4 vectors leave no
  /// registers to keep it in.
  template <int M, int N, int kAhead, class Finish>
  MHA_INLINE static void multiply(Index depth, const float* a, Index a_row, Index a_step, const std::byte* b,
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
      // Keeps the compiler from mixing the two, for which 16 registers do not suffice: 0.77 of the rate. With 32 they
      // do.
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
};

struct WidenedProducts {
  using Operand = float;
  using Sum = float;
  using Tile = WidenedTile;

  static constexpr Index kPartialSumTerms = PacketProducts<float>::kPartialSumTerms;
};

}  // namespace
}  // namespace mha::MHA_ISA

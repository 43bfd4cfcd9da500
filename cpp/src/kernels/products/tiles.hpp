// Tile registers: eight matrices of up to 16 rows of 64 bytes, and the instructions that multiply them. MHA_TILES
// (cpp/cmake/isa.cmake) chooses `Tiles`: the registers of the processor (Intel AMX), or a model of them, bit for bit,
// with which kernels written for tiles run on processors that have none. Without it there are no tiles.
//
//   configure(rows)     tiles 0 to 5 have `rows` rows, tiles 6 and 7 have 16, all of 64 bytes; their numbers are undefined
//   release             the registers are given back; to be configured again before any of the others
//   zero, load, store   rows `row_bytes` apart, at any address
//   multiply_bf16       C[m][n] += sum over k of A[m][k] B[k][n], pairs of bf16 to f32
//   multiply_bytes      the same of fours of bytes to int32: A without signs, B with them
//
// C and A are tiles of 0 to 5, B is tile 6 or 7, which holds [16 operands][16 columns].
//
// TDPBF16PS adds to an element of C the sum of two chains: of the 16 first elements of the pairs and of the 16 second
// ones, each 16 fused multiply-adds from 0, in order. It rounds to nearest, ties to even, takes subnormal numbers as 0
// and makes 0 of subnormal results, in every floating-point state (docs/numerics.md, docs/decisions/0021). The model
// follows the state of the thread, which is the same while the library computes: platform/floating_point_state.hpp.
#pragma once

#include "kernels/vectors/elements.hpp"

#ifdef MHA_TILES

namespace mha::MHA_ISA {
namespace {

constexpr int kTileRows = 16, kTileBytes = 64;
/// Operands of four bytes in a row of a tile, and numbers of a row of C.
constexpr Index kTileColumns = kTileBytes / 4;

/// The operand of LDTILECFG: palette 1, and for each tile the bytes of a row and the rows.
struct alignas(kTileBytes) TileConfiguration {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};

  explicit TileConfiguration(int count) {
    for (int tile = 0; tile < 8; ++tile) {
      row_bytes[tile] = kTileBytes;
      rows[tile] = std::uint8_t(tile < 6 ? count : kTileRows);
    }
  }
};
static_assert(sizeof(TileConfiguration) == kTileBytes);

/// Instructions of our own: the intrinsics of GCC 12 do not declare the memory that they read. _tile_loadconfig names 8
/// of 64 bytes and _tile_loadd none, and the compiler drops stores that they need.
struct HardwareTiles {
  static constexpr std::int64_t (*kTimesConfigured)() = nullptr;  // nobody counts

  static void configure(int rows) {
    const TileConfiguration configuration(rows);
    asm volatile("ldtilecfg %0" ::"m"(configuration) : "memory");
  }
  static void release() { asm volatile("tilerelease" ::: "memory"); }
  template <int kTile>
  MHA_INLINE static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
  }
  template <int kTile>
  MHA_INLINE static void load(const void* from, Index row_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(row_bytes), "i"(kTile) : "memory");
  }
  template <int kTile>
  MHA_INLINE static void store(void* to, Index row_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(row_bytes), "i"(kTile) : "memory");
  }
  template <int kC, int kA, int kB>
  MHA_INLINE static void multiply_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
  template <int kC, int kA, int kB>
  MHA_INLINE static void multiply_bytes() {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
  }
};

/// The registers of the model, for each thread. Use of tiles that are not configured ends the program, as an exception
/// of the processor would.
struct ModelRegisters {
  alignas(kTileBytes) unsigned char bytes[8][kTileRows][kTileBytes];
  int rows[8];
  std::int64_t times_configured;
};
thread_local ModelRegisters model_registers;

struct ModelTiles {
  static std::int64_t times_configured() { return model_registers.times_configured; }
  static constexpr std::int64_t (*kTimesConfigured)() = &times_configured;

  static void configure(int rows) {
    const TileConfiguration configuration(rows);
    ++model_registers.times_configured;
    for (int tile = 0; tile < 8; ++tile) {
      model_registers.rows[tile] = configuration.rows[tile];
      __builtin_memset(model_registers.bytes[tile], 0, sizeof model_registers.bytes[tile]);
    }
  }
  static void release() { __builtin_memset(model_registers.rows, 0, sizeof model_registers.rows); }
  template <int kTile>
  static void zero() {
    __builtin_memset(model_registers.bytes[kTile], 0, sizeof model_registers.bytes[kTile]);
    rows_of(kTile);
  }
  template <int kTile>
  static void load(const void* from, Index row_bytes) {
    for (int r = 0; r < rows_of(kTile); ++r)
      __builtin_memcpy(model_registers.bytes[kTile][r], static_cast<const char*>(from) + r * row_bytes, kTileBytes);
  }
  template <int kTile>
  static void store(void* to, Index row_bytes) {
    for (int r = 0; r < rows_of(kTile); ++r)
      __builtin_memcpy(static_cast<char*>(to) + r * row_bytes, model_registers.bytes[kTile][r], kTileBytes);
  }
  template <int kC, int kA, int kB>
  static void multiply_bf16() {
    multiply_pairs(kC, kA, kB);
  }
  template <int kC, int kA, int kB>
  static void multiply_bytes() {
    multiply_fours(kC, kA, kB);
  }

 private:
  static int rows_of(int tile) {
    if (model_registers.rows[tile] == 0) __builtin_trap();
    return model_registers.rows[tile];
  }

  static int rows_of_product(int c, int a, int b) {
    if (rows_of(c) != rows_of(a) || rows_of(b) != kTileRows) __builtin_trap();
    return rows_of(c);
  }

  static __attribute__((noinline)) void multiply_pairs(int c, int a, int b) {
    using P = Packet<float>;
    constexpr Index L = kLanes<float>;
    constexpr std::uint32_t kUpper = 0xffff0000u;
    for (int m = 0; m < rows_of_product(c, a, b); ++m) {
      std::uint32_t pairs[kTileColumns];
      __builtin_memcpy(pairs, model_registers.bytes[a][m], sizeof pairs);
      for (Index n = 0; n < kTileColumns; n += L) {
        P first = pset1<P>(0.0f), second = first;
        for (Index k = 0; k < kTileRows; ++k) {
          const Bits row = load_vector<Bits>(model_registers.bytes[b][k] + 4 * n);
          first = pmadd(P(Bits{} + (pairs[k] << 16)), P(row << 16), first);
          second = pmadd(P(Bits{} + (pairs[k] & kUpper)), P(row & kUpper), second);
        }
        void* const sum = model_registers.bytes[c][m] + 4 * n;
        const P result = padd(load_vector<P>(sum), padd(first, second));
        __builtin_memcpy(sum, &result, sizeof result);
      }
    }
  }

  static __attribute__((noinline)) void multiply_fours(int c, int a, int b) {
    for (int m = 0; m < rows_of_product(c, a, b); ++m) {
      std::uint32_t sums[kTileColumns];  // which wrap around, as the instruction's do
      __builtin_memcpy(sums, model_registers.bytes[c][m], sizeof sums);
      for (int k = 0; k < kTileBytes; ++k) {
        const int x = model_registers.bytes[a][m][k];
        for (Index n = 0; n < kTileColumns; ++n)
          sums[n] += std::uint32_t(x * std::int8_t(model_registers.bytes[b][k / 4][4 * n + k % 4]));
      }
      __builtin_memcpy(model_registers.bytes[c][m], sums, sizeof sums);
    }
  }
};

using Tiles = MHA_TILES;

/// Made where products follow, and not in a thread or a kernel call that may have none, such as decode: to configure
/// the registers and to release them takes 225 to 375 cycles on Sapphire Rapids, and the other thread of the core is
/// slower meanwhile. Tile registers are the callee's to overwrite, so a caller that has tiles of its own saved them.
struct TileState {
  /// For products of so many rows: 16 and more are whole tiles.
  explicit TileState(Index rows = kTileRows) { Tiles::configure(rows < kTileRows ? int(rows) : kTileRows); }
  ~TileState() { Tiles::release(); }
  TileState(const TileState&) = delete;
  TileState& operator=(const TileState&) = delete;
};

/// Within a TileState of whole tiles: products of `rows` rows, if these are fewer.
class FewTileRows {
 public:
  explicit FewTileRows(Index rows) : are_few_(rows < kTileRows) {
    if (are_few_) Tiles::configure(int(rows));
  }
  ~FewTileRows() {
    if (are_few_) Tiles::configure(kTileRows);
  }
  FewTileRows(const FewTileRows&) = delete;
  FewTileRows& operator=(const FewTileRows&) = delete;

 private:
  bool are_few_;
};

}  // namespace
}  // namespace mha::MHA_ISA

#endif

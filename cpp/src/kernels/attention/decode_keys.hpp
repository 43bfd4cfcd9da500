// S = Q K^T of decode: keys lie in the lanes of the scores, so K is transposed in registers.
//
// Of keys of int8 a word of four neighbours is transposed at a time, which takes a quarter of the shuffles. Then each
// of the four bytes becomes a number, and is multiplied by the scale of its key: the number that an f32 cache would
// hold. So there are about 4 instructions for each vector of numbers before the multiply-add. They limit one thread,
// memory does not. Three measures keep them few:
//
//  - The upper two bytes are shifted to the sign and converted. The lower two take no shift: where the number that they
//    are put into begins with 2^23 or 2^15, they stand at its ones, and with the sign bit turned over they count from
//    -128, so one subtraction is left. Shifts and shuffles share two ports of most processors; masks have four.
//  - Products of a key wait for one another, as their order is fixed. kChains sums side by side hide that. The transposed
//    words of so many vectors do not fit the registers, so they are stored on the way: 1 KB with AVX2, in level 1.
//  - Vectors of keys that are computed side by side share the broadcast queries.
#pragma once

#include "kernels/attention/read_ahead.hpp"
#include "kernels/vectors/transpose.hpp"

namespace mha::MHA_ISA {
namespace {

template <class S>
struct DecodeKeys {
  using Operand = typename OperandsOf<S>::Operand;
  Index keys, depth;       // depth: operands of the head dimension
  StoredRows rows;         // from the first key on
  const Operand* queries;  // [rows][depth]
  Compute<S>* scores;      // [rows][kSpanKeys], at the first key
  const RowStream& stream;
  Index first;  // row of the stream that the first key is
  Index head_dim;
};

/// Vectors of keys that are computed side by side for m rows. A sum waits four cycles for its own last multiply-add, in
/// which two units could do eight. With 32 registers the 64 shuffles of a vector of keys take as long as its sums wait;
/// with 16 there are 24 shuffles for 32 cycles.
constexpr int key_vectors(int m) { return m == 1 || (kVectors < 4 && m <= 4) ? 2 : 1; }

/// Scores of `keys` keys, whole vectors of them, against M rows. K is transposed in registers, kLanes x kLanes operands
/// at a time, and stored on the way where they and the sums do not fit the registers. The sum over the head dimension
/// has the order of PacketTile::multiply_long.
template <class S, int M>
void score_key_lanes(const DecodeKeys<S>& g) {
  using T = Compute<S>;
  using Operands = OperandsOf<S>;
  using Products = typename Operands::Products;
  using P = Packet<T>;
  constexpr Index L = kLanes<T>;
  constexpr Index kQuad = L < 4 ? L : 4;  // rows that share a pointer: there are not enough registers for one each
  constexpr int kBytes = L * L * Operands::kElements * sizeof(S), kLines = kBytes < 64 ? 1 : kBytes / 64;
  const Index row = g.rows.row / Index(sizeof(S));
  constexpr int G = key_vectors(M);
  using Sums = typename Products::Sums;
  constexpr Index kRegisters = kVectors == 4 ? 32 : 16, kSumBytes = Index{G} * M * Index(sizeof(Sums));
  constexpr bool kStores = kSumBytes + L * Index(sizeof(P)) >= kRegisters * Index(sizeof(P));  // and a broadcast query
  ReadAhead ahead(g.stream, g.first);
  for (Index key = 0; key < g.keys; key += G * L) {
    const int groups = key + G * L <= g.keys ? G : 1;
    const S* quads[G][L / kQuad];
    MHA_UNROLL
    for (int i = 0; i < G; ++i) {
      MHA_UNROLL
      for (Index k = 0; k < L; k += kQuad)
        quads[i][k / kQuad] = static_cast<const S*>(g.rows.data) + (key + (i < groups ? i : 0) * L + k) * row;
    }
    P total[G][M];
    MHA_UNROLL
    for (int i = 0; i < G * M; ++i) total[i / M][i % M] = pset1<P>(T(0));
    const typename Products::Operand* query = g.queries;
    for (Index begin = 0; begin < g.depth; begin += Products::kPartialSumTerms) {
      const Index end = begin + Products::kPartialSumTerms < g.depth ? begin + Products::kPartialSumTerms : g.depth;
      Sums sum[G][M];
      MHA_UNROLL
      for (int i = 0; i < G * M; ++i) sum[i / M][i % M] = Products::zero();
      for (Index d = begin; d < end; d += L, query += L) {
        [[maybe_unused]] alignas(kVectorBytes) T transposed[G][L][L];
        MHA_UNROLL
        for (int i = 0; i < G; ++i) {
          PacketBlock<P, L> block;
          MHA_UNROLL
          for (Index k = 0; k < L; ++k) block.packet[k] = Operands::load(quads[i][k / kQuad] + k % kQuad * row);
          MHA_UNROLL
          for (const S*& quad : quads[i]) quad += L * Operands::kElements;
          transpose(block);
          if constexpr (kStores) {
            MHA_UNROLL
            for (Index k = 0; k < L; ++k) pstore(transposed[i][k], block.packet[k]);
          } else {
            // Keeps the compiler from holding broadcast queries in registers for both vectors: none are left.
            if (G > 1) asm("" : "+r"(query));
            MHA_UNROLL
            for (Index k = 0; k < L; ++k) {
              MHA_UNROLL
              for (int m = 0; m < M; ++m)
                sum[i][m] =
                    Products::multiply_add(block.packet[k], Products::broadcast(query + m * g.depth + k), sum[i][m]);
            }
          }
          ahead.lines(kLines);
        }
        if constexpr (kStores) {
          asm("" ::: "memory");  // or the compiler keeps them in registers, and moves the sums to memory
          MHA_UNROLL
          for (Index k = 0; k < L; ++k) {
            P keys[G];
            MHA_UNROLL
            for (int i = 0; i < G; ++i) keys[i] = pload<P>(transposed[i][k]);
            MHA_UNROLL
            for (int m = 0; m < M; ++m) {
              const auto factor = Products::broadcast(query + m * g.depth + k);
              MHA_UNROLL
              for (int i = 0; i < G; ++i) sum[i][m] = Products::multiply_add(keys[i], factor, sum[i][m]);
            }
          }
        }
      }
      MHA_UNROLL
      for (int i = 0; i < G * M; ++i)
        total[i / M][i % M] = padd(total[i / M][i % M], Products::total(sum[i / M][i % M]));
    }
    for (int i = 0; i < groups; ++i) {
      MHA_UNROLL
      for (int m = 0; m < M; ++m) pstore(g.scores + m * kSpanKeys + key + i * L, total[i][m]);
    }
  }
}

/// Bytes of a row of int8 that are transposed at a time: a vector of words.
constexpr Index kInt8Chunk = kPacketBytes;

/// Words [words of a chunk][keys] of a vector of keys.
using Int8Words = std::uint32_t[kLanes<float>][kLanes<float>];

/// For the columns from `first` to the end of the rows, fewer than a chunk; zeros follow.
__attribute__((noinline)) inline void transpose_last_words(const StoredRows& rows, Index first, Index columns,
                                                           Int8Words& words) {
  constexpr Index L = kLanes<float>;
  for (Index k = 0; k < L; ++k)
    for (Index r = 0; r < L; ++r) {
      words[k][r] = 0;
      const Index column = first + 4 * k, left = columns - column;
      if (left > 0)
        __builtin_memcpy(&words[k][r], static_cast<const char*>(rows.data) + r * rows.row + column,
                         std::size_t(left < 4 ? left : 4));
    }
}

MHA_INLINE void transpose_words(const StoredRows& rows, Index first, Int8Words& words) {
  constexpr Index L = kLanes<float>;
  PacketBlock<Packet<float>, L> block;
  MHA_UNROLL
  for (Index r = 0; r < L; ++r)
    block.packet[r] = load_vector<Packet<float>>(static_cast<const char*>(rows.data) + r * rows.row + first);
  transpose(block);
  MHA_UNROLL
  for (Index k = 0; k < L; ++k) pstore(reinterpret_cast<float*>(words[k]), block.packet[k]);
}

/// Byte 0, 1, 2 or 3 of each word as a number; inlined, with a constant.
MHA_INLINE Packet<float> number_of_byte(const Bits& words, int byte) {
  if (byte == 0)  // 2^23 + 128 + byte, whose last bit is worth 1
    return Packet<float>(Floats((words & 0xffu) ^ 0x4b000080u) - 8388736.0f);
  if (byte == 1)  // 2^15 + 128 + byte, whose bit 8 is worth 1
    return Packet<float>(Floats((words & 0xff00u) ^ 0x47008000u) - 32896.0f);
  return Packet<float>(__builtin_convertvector(Ints(words << (24 - 8 * byte)) >> 24, Floats));
}

/// Scores of keys of int8 against M rows of queries, whose operands from head_dim to `depth`, a multiple of kInt8Chunk,
/// are 0.
template <int M>
void score_int8_key_lanes(const DecodeKeys<std::int8_t>& g) {
  using P = Packet<float>;
  constexpr Index L = kLanes<float>, kTerms = PacketProducts<float>::kPartialSumTerms;
  static_assert(kTerms % kInt8Chunk == 0);
  constexpr int kChains = 4, G = kChains / M;  // sums side by side; vectors of keys at a time
  ReadAhead ahead(g.stream, g.first);
  for (Index key = 0; key < g.keys; key += G * L) {
    StoredRows rows[G];
    P scale[G], total[G][M];
    MHA_UNROLL
    for (int i = 0; i < G; ++i) {
      const Index at = key + i * L < g.keys ? key + i * L : key;  // where there are none left, some are computed twice
      rows[i] = {static_cast<const char*>(g.rows.data) + at * g.rows.row, g.rows.row, nullptr};
      scale[i] = ploadu<P>(g.rows.scale + at);
      MHA_UNROLL
      for (P& sum : total[i]) sum = pset1<P>(0.0f);
    }
    const float* query = g.queries;
    for (Index begin = 0; begin < g.depth; begin += kTerms) {
      const Index end = begin + kTerms < g.depth ? begin + kTerms : g.depth;
      P sum[G][M];
      MHA_UNROLL
      for (int i = 0; i < G * M; ++i) sum[i / M][i % M] = pset1<P>(0.0f);
      for (Index d = begin; d < end; d += kInt8Chunk) {
        alignas(kVectorBytes) Int8Words words[G];
        for (int i = 0; i < G; ++i) {
          if (d + kInt8Chunk <= g.head_dim)
            transpose_words(rows[i], d, words[i]);
          else
            transpose_last_words(rows[i], d, g.head_dim, words[i]);
          if (key + i * L < g.keys) ahead.lines(L * kInt8Chunk < 64 ? 1 : L * kInt8Chunk / 64);
        }
        for (Index k = 0; k < L; ++k, query += 4) {
          MHA_UNROLL
          for (int byte = 0; byte < 4; ++byte) {
            P number[G];
            MHA_UNROLL
            for (int i = 0; i < G; ++i)
              number[i] = pmul(number_of_byte(load_vector<Bits>(words[i][k]), byte), scale[i]);
            MHA_UNROLL
            for (int m = 0; m < M; ++m) {
              const P factor = pset1<P>(query[m * g.depth + byte]);
              MHA_UNROLL
              for (int i = 0; i < G; ++i) sum[i][m] = pmadd(number[i], factor, sum[i][m]);
            }
          }
        }
      }
      MHA_UNROLL
      for (int i = 0; i < G * M; ++i) total[i / M][i % M] = padd(total[i / M][i % M], sum[i / M][i % M]);
    }
    for (int i = 0; i < G && key + i * L < g.keys; ++i) {
      MHA_UNROLL
      for (int m = 0; m < M; ++m) pstore(g.scores + m * kSpanKeys + key + i * L, total[i][m]);
    }
  }
}

}  // namespace
}  // namespace mha::MHA_ISA

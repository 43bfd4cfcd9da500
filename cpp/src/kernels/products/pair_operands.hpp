// Elements of bf16 as pairs: neighbours in the direction of a sum, which the instructions for bf16 multiply two at a
// time. Other files multiply the pairs (pair_products.hpp, tile_products.hpp).
#pragma once

#include "kernels/vectors/elements.hpp"
#include "kernels/vectors/transpose.hpp"

namespace mha::MHA_ISA {
namespace {

/// Neighbouring elements of a sum: along the head dimension, or two keys.
struct Pair {
  BFloat16 first, second;
};

/// 2 kLanes columns of two rows, pair by pair.
MHA_INLINE void pair_columns(const BFloat16* first, const BFloat16* second, Packet<float>& low, Packet<float>& high) {
#ifdef __AVX512BW__
  const __m512i lanes = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37,
                                         5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i a = _mm512_loadu_si512(first), b = _mm512_loadu_si512(second);
  low = _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, lanes, b));
  high = _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, _mm512_add_epi16(lanes, _mm512_set1_epi16(16)), b));
#else
  low = Packet<float>(load_words(first) | load_words(second) << 16);
  high = Packet<float>(load_words(first + kLanes<float>) | load_words(second + kLanes<float>) << 16);
#endif
}

/// In each lane the first half of one and the second half of the other.
MHA_INLINE Packet<float> join_halves(const Packet<float>& first, const Packet<float>& second) {
#ifdef __AVX512BW__
  return _mm512_castsi512_ps(
      _mm512_mask_blend_epi16(0xaaaaaaaaU, _mm512_castps_si512(first), _mm512_castps_si512(second)));
#else
  return Packet<float>((Bits(first) & 0xffffu) | (Bits(second) & 0xffff0000u));
#endif
}

/// Neighbouring lanes become pairs, rounded.
MHA_INLINE void store_pairs(Pair* to, const Packet<float>& x) {
#ifdef __AVX512BF16__
  _mm256_store_si256(reinterpret_cast<__m256i*>(to), __m256i(_mm512_cvtneps_pbh(x)));
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  const bfloat16x4_t pairs = vcvt_bf16_f32(x);
  __builtin_memcpy(to, &pairs, sizeof pairs);
#else
  store_packet(&to->first, x);
#endif
}

/// In each lane the pair of two numbers, rounded.
MHA_INLINE Packet<float> pair_up(const Packet<float>& first, const Packet<float>& second) {
#ifdef __AVX512BF16__
  const __m512i lanes = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_castsi512_ps(_mm512_permutexvar_epi16(lanes, __m512i(_mm512_cvtne2ps_pbh(second, first))));
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  return Packet<float>(vzip1q_u16(uint16x8_t(vcvtq_low_bf16_f32(first)), uint16x8_t(vcvtq_low_bf16_f32(second))));
#else
  return Packet<float>(round_to_bf16(first) | round_to_bf16(second) << 16);
#endif
}

/// store_transposed() of numbers that are rounded to bf16. Two rows of the tile become pairs first: half as much to
/// transpose, and to store.
inline void store_transposed_pairs(const float* tile, Index width, const Packet<float>& factor, BFloat16* const* rows,
                                   Index count, Index columns, Index step) {
  using P = Packet<float>;
  constexpr Index L = kLanes<float>;
  const auto number = [&](Index c)
                          MHA_INLINE_LAMBDA { return pmadd(pload<P>(tile + c * width), factor, pset1<P>(0.0f)); };
  Index c = 0;
  for (; step == 1 && c + 2 * L <= columns; c += 2 * L) {
    PacketBlock<P, L> block;
    MHA_UNROLL
    for (Index r = 0; r < L; ++r) block.packet[r] = pair_up(number(c + 2 * r), number(c + 2 * r + 1));
    transpose(block);
    MHA_UNROLL
    for (Index r = 0; r < L; ++r)
      if (r < count) __builtin_memcpy(rows[r] + c, &block.packet[r], sizeof(P));
  }
  store_transposed<BFloat16>(tile + c * width, width, factor, rows, count, c, columns - c, step);
}

/// The common part of all kinds of products of pairs: see kinds.hpp.
struct PairVectors {
  using Operand = Pair;
  using PanelOperand = Pair;
  using Vector = Packet<float>;
  using Sum = float;

  static constexpr Index kElements = 2;

  MHA_INLINE static Packet<float> load(const Pair* from) {
    return pload<Packet<float>>(reinterpret_cast<const float*>(from));
  }
  MHA_INLINE static void store(Pair* to, const Packet<float>& operands) {
    pstore(reinterpret_cast<float*>(to), operands);
  }
  MHA_INLINE static Packet<float> broadcast(const Pair* from) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, from, sizeof bits);
    return Packet<float>(Bits{} + bits);
  }
};

/// Elements of bf16 as pairs. Sums begin a new partial sum at multiples of `kTogether` elements, and where there are
/// fewer left, zeros follow: those belong together.
template <class Kind, Index kTogether>
struct PairOperands {
  using T = float;
  using Products = Kind;
  using Operand = Pair;
  static constexpr Index kElements = Products::kElements;
  static constexpr Index kGroup = kTogether;
  static constexpr bool kJoins = true;
  static constexpr bool kConverts = true;

  static constexpr bool lie_ready(Index row, Index step, Index columns) {
    return step == 1 && row % 2 == 0 && columns % kGroup == 0;
  }
  static constexpr Index count(Index elements) { return (elements + kGroup - 1) / kGroup * (kGroup / kElements); }
  MHA_INLINE static Packet<float> load(const BFloat16* from) { return ploadu<Packet<float>>(words(from)); }
  /// A missing element of a pair is 0.
  MHA_INLINE static Pair load_one(const BFloat16* from, Index step, Index left) {
    return {left > 0 ? *from : BFloat16{0}, left > 1 ? from[step] : BFloat16{0}};
  }
  MHA_INLINE static void load_columns(const BFloat16* row, const BFloat16* second, Packet<float>* columns) {
    pair_columns(row, second, columns[0], columns[1]);
  }
  /// Not inlined: in the middle of a kernel the compiler keeps pointers and constants of this loop in memory, and it
  /// takes twice as long.
  __attribute__((noinline)) static void join_rows(const BFloat16* from, Index row, Index step, Index rows,
                                                  Index columns, Pair* to, Index to_row) {
    constexpr Index L = kLanes<float>;
    const Index whole = step == 1 ? columns - columns % (2 * L) : 0;
    for (Index r = 0; r < rows; r += 2, from += 2 * row, to += to_row) {
      const bool has_second = r + 1 < rows;
      const BFloat16* const second = has_second ? from + row : kZeros<BFloat16, 2 * L>;
      for (Index c = 0; c < whole; c += 2 * L) {
        Packet<float> low, high;
        pair_columns(from + c, second + (has_second ? c : 0), low, high);
        Products::store(to + c, low);
        Products::store(to + c + L, high);
      }
      for (Index c = whole; c < columns; ++c) to[c] = {from[c * step], has_second ? second[c * step] : BFloat16{0}};
    }
  }

 private:
  static const float* words(const void* from) { return static_cast<const float*>(from); }
};

/// Numbers as pairs, each rounded to bf16.
template <class Kind, Index kTogether>
struct RoundedPairOperands : PairOperands<Kind, kTogether> {
  MHA_INLINE static Packet<float> load(const float* from) {
#ifdef __AVX512BF16__
    return _mm512_castsi512_ps(
        __m512i(_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + kLanes<float>), _mm512_loadu_ps(from))));
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    return Packet<float>(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(ploadu<Packet<float>>(from)),
                                             ploadu<Packet<float>>(from + kLanes<float>)));
#else
    alignas(kVectorBytes) Pair pairs[kLanes<float>];
    store_packet(&pairs->first, ploadu<Packet<float>>(from));
    store_packet(&pairs[kLanes<float> / 2].first, ploadu<Packet<float>>(from + kLanes<float>));
    return Kind::load(pairs);
#endif
  }
  MHA_INLINE static Pair load_one(const float* from, Index step, Index left) {
    alignas(kVectorBytes) float numbers[2 * kLanes<float>] = {left > 0 ? *from : 0.0f, left > 1 ? from[step] : 0.0f};
    alignas(kVectorBytes) Pair pairs[kLanes<float>];
    Kind::store(pairs, load(numbers));
    return pairs[0];
  }
};

}  // namespace
}  // namespace mha::MHA_ISA

// What a multiply-add takes: operands. An operand is one number, or a pair of bf16 where VDPBF16PS multiplies two pairs and
// adds both products to an f32 sum, at twice the rate.
//
// The instruction rounds each product into the sum (in an order that the processor fixes) and takes subnormal numbers
// as 0: Intel, "Architecture Instruction Set Extensions Programming Reference", 319433-040, VDPBF16PS. Every kernel of
// this instruction set uses it, with the same pairs, so that a row has the same bits in all of them.
#pragma once

#include "kernels/vectors/elements.hpp"

namespace mha::MHA_ISA {
namespace {

/// Neighbouring elements of a sum: along the head dimension, or two keys.
struct Pair {
  BFloat16 first, second;
};

template <class Operand>
struct SumType {
  using type = Operand;
  static constexpr int kProducts = 1;
};
template <>
struct SumType<Pair> {
  using type = float;
  static constexpr int kProducts = 2;
};

/// What products of operands are added up in. As many operands as there are such sums lie in the lanes of a vector.
template <class Operand>
using Sum = typename SumType<Operand>::type;

template <class T>
MHA_INLINE Packet<T> load_operands(const T* from) {
  return pload<Packet<T>>(from);
}
template <class T>
MHA_INLINE Packet<T> broadcast_operand(const T* from) {
  return pset1<Packet<T>>(*from);
}
template <class T>
MHA_INLINE Packet<T> multiply_add(const T*, const Packet<T>& a, const Packet<T>& b, const Packet<T>& c) {
  return pmadd(a, b, c);
}

template <class T>
MHA_INLINE void store_operands(T* to, const Packet<T>& operands) {
  pstore(to, operands);
}

/// Elements of type S as numbers: converted, if they are not numbers already.
template <class S>
struct NumberOperands {
  using T = Compute<S>;
  using Operand = T;
  static constexpr Index kElements = 1;
  static constexpr bool kJoins = false;                      // an operand is of several elements
  static constexpr bool kConverts = sizeof(S) != sizeof(T);  // else every element is an operand as it lies

  /// Whether rows of `columns` elements, `row` and `step` apart, are operands as they lie.
  static constexpr bool lie_ready(Index, Index, Index) { return !kConverts; }
  /// Units of `elements` elements.
  static constexpr Index count(Index elements) { return elements; }
  /// kLanes operands of elements that lie next to each other, at any address.
  MHA_INLINE static Packet<T> load(const S* from) { return load_packet(from); }
  /// The operand of `left` or more elements, `step` apart.
  MHA_INLINE static Operand load_one(const S* from, Index, Index) { return load_element(from); }
};

/// How elements of type S become operands.
template <class S>
struct OperandsOf : NumberOperands<S> {};

/// What stands for columns that are not there, or that must not be seen.
template <class S, Index kCount>
alignas(kVectorBytes) constexpr S kZeros[kCount] = {};

/// How numbers become operands of the kind that elements of type S become: queries of a tile that is_wide.
template <class S>
struct OperandsOfNumbers : NumberOperands<Compute<S>> {};

/// Rows of operands.
template <class Operand>
struct OperandRows {
  const Operand* data;
  Index row, step;
};

/// Units from one row to the next where rows are converted: whole vectors.
template <class S>
constexpr Index operand_row(Index columns) {
  constexpr Index L = kLanes<Compute<S>>;
  return (OperandsOf<S>::count(columns) + L - 1) / L * L;
}

/// `to` [operand_row(columns)], aligned to vectors.
template <class S>
void convert_row(const S* from, Index step, Index columns, typename OperandsOf<S>::Operand* to) {
  using Operands = OperandsOf<S>;
  constexpr Index L = kLanes<Compute<S>>;
  Index c = 0;
  if (step == 1)
    for (; (c + L) * Operands::kElements <= columns; c += L)
      store_operands(to + c, Operands::load(from + c * Operands::kElements));
  for (; c < Operands::count(columns); ++c) {
    const Index at = c * Operands::kElements;
    to[c] = Operands::load_one(from + at * step, step, columns - at);
  }
}

#ifdef __AVX512BF16__
MHA_INLINE Packet<float> load_operands(const Pair* from) { return _mm512_load_ps(from); }
MHA_INLINE void store_operands(Pair* to, const Packet<float>& operands) { _mm512_store_ps(to, operands); }
MHA_INLINE Packet<float> broadcast_operand(const Pair* from) {
  int bits;
  __builtin_memcpy(&bits, from, sizeof bits);
  return _mm512_castsi512_ps(_mm512_set1_epi32(bits));
}
MHA_INLINE Packet<float> multiply_add(const Pair*, const Packet<float>& a, const Packet<float>& b,
                                      const Packet<float>& c) {
  return _mm512_dpbf16_ps(c, __m512bh(a), __m512bh(b));
}

template <>
struct OperandsOf<BFloat16> {
  using T = float;
  using Operand = Pair;
  static constexpr Index kElements = 2;
  static constexpr bool kJoins = true;
  static constexpr bool kConverts = true;

  static constexpr bool lie_ready(Index row, Index step, Index columns) {
    return step == 1 && row % 2 == 0 && columns % 2 == 0;
  }
  static constexpr Index count(Index elements) { return (elements + 1) / 2; }
  MHA_INLINE static Packet<T> load(const BFloat16* from) { return _mm512_loadu_ps(from); }
  /// Of a single element the other one is 0.
  MHA_INLINE static Operand load_one(const BFloat16* from, Index step, Index left) {
    return {*from, left > 1 ? from[step] : BFloat16{0}};
  }
};

template <>
struct OperandsOfNumbers<BFloat16> : OperandsOf<BFloat16> {
  MHA_INLINE static Packet<T> load(const float* from) {
    return _mm512_castsi512_ps(
        __m512i(_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + kLanes<float>), _mm512_loadu_ps(from))));
  }
  MHA_INLINE static Operand load_one(const float* from, Index step, Index left) {
    alignas(kVectorBytes) float numbers[2 * kLanes<float>] = {*from, left > 1 ? from[step] : 0.0f};
    alignas(kVectorBytes) Operand operands[kLanes<float>];
    store_operands(operands, load(numbers));
    return operands[0];
  }
};

/// 2 kLanes columns of two rows, pair by pair.
MHA_INLINE void pair_columns(const BFloat16* first, const BFloat16* second, Packet<float>& low, Packet<float>& high) {
  const __m512i lanes = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37,
                                         5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i a = _mm512_loadu_si512(first), b = _mm512_loadu_si512(second);
  low = _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, lanes, b));
  high = _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, _mm512_add_epi16(lanes, _mm512_set1_epi16(16)), b));
}

/// Pairs of one row and the next, null if there is none, column by column; `to` as for convert_row().
inline void pair_rows(const BFloat16* first, const BFloat16* second, Index step, Index columns, Pair* to) {
  constexpr Index L = kLanes<float>;
  Index c = 0;
  if (step == 1)
    for (; c + 2 * L <= columns; c += 2 * L) {
      Packet<float> low, high;
      pair_columns(first + c, second ? second + c : kZeros<BFloat16, 2 * L>, low, high);
      store_operands(to + c, low);
      store_operands(to + c + L, high);
    }
  for (; c < columns; ++c) to[c] = {first[c * step], second ? second[c * step] : BFloat16{0}};
}

/// In each lane the first half of one and the second half of the other.
MHA_INLINE Packet<float> join_halves(const Packet<float>& first, const Packet<float>& second) {
  return _mm512_castsi512_ps(
      _mm512_mask_blend_epi16(0xaaaaaaaaU, _mm512_castps_si512(first), _mm512_castps_si512(second)));
}

/// Neighbouring lanes become pairs, rounded.
MHA_INLINE void store_pairs(Pair* to, const Packet<float>& x) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(to), __m256i(_mm512_cvtneps_pbh(x)));
}

/// In each lane the pair of two numbers, rounded.
MHA_INLINE Packet<float> pair_up(const Packet<float>& first, const Packet<float>& second) {
  const __m512i lanes = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_castsi512_ps(_mm512_permutexvar_epi16(lanes, __m512i(_mm512_cvtne2ps_pbh(second, first))));
}
#endif

}  // namespace
}  // namespace mha::MHA_ISA

// 64 bits for each lane of a tile, and selections by them: one bit of every lane at a time. Bits of a lane are the bits
// of a row of booleans in memory, so nothing is transposed.
#pragma once

#include <stdint.h>

#include "kernels/vectors/eigen.hpp"

namespace mha::MHA_ISA {
namespace {

template <class T>
struct WordOf;
template <>
struct WordOf<float> {
  using type = uint32_t;
  using vector = type __attribute__((vector_size(sizeof(Packet<float>))));
};
template <>
struct WordOf<double> {
  using type = uint64_t;
  using vector = type __attribute__((vector_size(sizeof(Packet<double>))));
};

/// An integer as wide as a T, and a vector of them as wide as Packet<T>.
template <class T>
using Word = typename WordOf<T>::type;
template <class T>
using Words = typename WordOf<T>::vector;

/// Lane by lane `yes` if `words` has the bit that `bit` has, else `no`.
MHA_INLINE Packet<float> select_by_bit(const Words<float>& words, const Words<float>& bit, const Packet<float>& yes,
                                       const Packet<float>& no) {
#ifdef EIGEN_VECTORIZE_AVX512
  return _mm512_mask_mov_ps(no, _mm512_test_epi32_mask(__m512i(words), __m512i(bit)), yes);
#else
  return pselect(Packet<float>((words & bit) == bit), yes, no);
#endif
}
MHA_INLINE Packet<double> select_by_bit(const Words<double>& words, const Words<double>& bit, const Packet<double>& yes,
                                        const Packet<double>& no) {
#ifdef EIGEN_VECTORIZE_AVX512
  return _mm512_mask_mov_pd(no, _mm512_test_epi64_mask(__m512i(words), __m512i(bit)), yes);
#else
  return pselect(Packet<double>((words & bit) == bit), yes, no);
#endif
}

/// Bit i is set where entry i of `size` booleans is true, at most 64 of them, `step` apart. Any other value than 0 is
/// true, as for NumPy.
MHA_INLINE uint64_t bits_of(const unsigned char* booleans, Index size, Index step) {
  uint64_t bits = 0;
  Index i = 0;
#ifdef __AVX512BW__
  if (step == 1) {
    const __m512i entries =
        size == 64 ? _mm512_loadu_si512(booleans) : _mm512_maskz_loadu_epi8(~uint64_t{0} >> (64 - size), booleans);
    return _mm512_test_epi8_mask(entries, entries);
  }
#else
  if (step == 1)
    for (; i + 8 <= size; i += 8) {
      constexpr uint64_t kUpper = 0x8080808080808080u;
      uint64_t eight;
      __builtin_memcpy(&eight, booleans + i, 8);
      eight = (((eight & ~kUpper) + ~kUpper) | eight) & kUpper;  // the upper bit of each byte that is not 0
      bits |= ((eight >> 7) * 0x0102040810204080u >> 56) << i;
    }
#endif
  for (; i < size; ++i) bits |= uint64_t{booleans[i * step] != 0} << i;
  return bits;
}

/// The bits of `kCount` lanes.
template <class T, Index kCount>
class LaneBits {
 public:
  static constexpr Index kBits = 8 * sizeof(T), kParts = 64 / kBits;

  void set(Index lane, uint64_t bits) {
    MHA_UNROLL
    for (Index part = 0; part < kParts; ++part) words_[part][lane] = Word<T>(bits >> (part % kParts * kBits));
  }
  uint64_t of(Index lane) const {
    uint64_t bits = 0;
    for (Index part = 0; part < kParts; ++part) bits |= uint64_t{words_[part][lane]} << (part * kBits);
    return bits;
  }

  /// Calls visit(i, select) for the bits i of [first, last) in N vectors of lanes from `lane` on: select(n, yes, no) is
  /// `yes` in the lanes of vector n that have the bit, else `no`.
  template <int N, class Visit>
  MHA_INLINE void for_each(Index lane, Index first, Index last, Visit visit) const {
    using P = Packet<T>;
    for (Index i = first; i < last;) {
      const Index part = i / kBits, edge = (part + 1) * kBits, end = edge < last ? edge : last;
      Words<T> words[N];
      MHA_UNROLL
      for (Index n = 0; n < N; ++n) __builtin_memcpy(&words[n], words_[part] + lane + n * kLanes<T>, sizeof words[n]);
      for (Words<T> bit = Words<T>{} + (Word<T>(1) << i % kBits); i < end; ++i, bit += bit)
        visit(i, [&](Index n, const P& yes, const P& no)
                     MHA_INLINE_LAMBDA { return select_by_bit(words[n], bit, yes, no); });
    }
  }

 private:
  alignas(kVectorBytes) Word<T> words_[kParts][kCount];
};

}  // namespace
}  // namespace mha::MHA_ISA

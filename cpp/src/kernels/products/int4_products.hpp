// Weights of four bits: a code of -8 to 7 times the multiplier of its group of 16 input features, 0 to 15. The product is
// an integer of 8 bits, so sums are those of int8 weights.
//
// A word of a panel holds the codes of eight features of one column: the lower halves of its bytes are features 0 to 3,
// the upper ones features 4 to 7. Two words are a group. Eight groups are preceded by a word of their multipliers.
#pragma once

#include "kernels/products/byte_products.hpp"

namespace mha::MHA_ISA {
namespace {

/// Codes of eight features of a vector of columns, times 2^kCodeBits, as products read them.
struct Codes {
  ByteProducts::Vector low, high;
};

using Halves = std::uint16_t __attribute__((vector_size(kPacketBytes)));
using Bytes = std::uint8_t __attribute__((vector_size(kPacketBytes)));

#if defined(MHA_VNNI) || defined(__ARM_FEATURE_DOTPROD) || defined(MHA_TILES)
/// In the upper half of a byte a code has its sign without any work.
constexpr int kCodeBits = 4;

MHA_INLINE Codes codes_of(const Bits& words) {
  constexpr std::uint32_t kUpper = 0xf0f0f0f0;
  return {Ints(words << 4 & kUpper), Ints(words & kUpper)};
}
#else
constexpr int kCodeBits = 0;

MHA_INLINE Codes codes_of(const Bits& words) {
  const Halves halves = Halves(words);
  return {{Shorts(halves << 12) >> 12, Shorts(halves << 4) >> 12}, {Shorts(halves << 8) >> 12, Shorts(halves) >> 12}};
}
#endif

/// sum + the products of a group times its multiplier.
MHA_INLINE Ints add_group(const Ints& sum, const Ints& of_group, const Ints& multiplier) {
  const Ints products = of_group >> kCodeBits;
#if defined(__AVX512VNNI__)  // 16 * 8 * 255 fits 16 bits
  return Ints(_mm512_dpwssd_epi32(__m512i(sum), __m512i(products), __m512i(multiplier)));
#elif defined(MHA_VNNI)
  return Ints(_mm256_dpwssd_avx_epi32(__m256i(sum), __m256i(products), __m256i(multiplier)));
#else
  return sum + products * multiplier;
#endif
}

/// The multipliers of group `group` of the eight whose words these are.
MHA_INLINE Bits multipliers_of(const Bits& words, Index group) { return words << int(28 - 4 * group) >> 28; }

/// Multipliers as int8 weights are made with them.
struct Factors {
  Halves halves;  // in both halves of a word
  Bytes eights;   // times 8, in all bytes

  MHA_INLINE explicit Factors(const Bits& multipliers) {
    const Bits both = multipliers | multipliers << 16;
    halves = Halves(both);
    eights = Bytes((both | both << 8) << 3);
  }
};

/// The int8 weights of features 0 to 3, or, of words that are shifted by 4, of features 4 to 7. The words are
/// exclusive-ored with kCodesFromZero, so that codes are 0 to 15.
constexpr std::uint32_t kCodesFromZero = 0x88888888;
MHA_INLINE Ints int8_weights(const Bits& words, const Factors& factors) {
  const Halves even = Halves(words & 0x000f000fu) * factors.halves, odd = Halves(words & 0x0f000f00u) * factors.halves;
  return Ints(Bytes(even | odd) - factors.eights);
}

/// Two register tiles side by side, the sums of a group and of all: half as high as the other tiles.
struct Int4Products {
  using Vector = Ints;
  struct Tile {
    static constexpr int rows(int n) { return n > kVectors ? 1 : 2; }
    static constexpr int kMostRows = 2;
  };
};

}  // namespace
}  // namespace mha::MHA_ISA

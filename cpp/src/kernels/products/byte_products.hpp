// Products of quantized rows and int8 weights: VPDPBUSD or SDOT where the instruction set has one of them, tiles
// (tile_blocks.hpp), and exact stand-ins.
//
// Four features are multiplied at a time. A word of a panel holds the weights of four features of one column, and a
// quantized row holds its features four by four as the instructions want them. multiply_add() adds the four products of
// every column to its sum. All sums are exact in 32 bits, so instruction sets differ in nothing but time.
#pragma once

#include "kernels/products/packet_tile.hpp"
#include "kernels/vectors/integer_vectors.hpp"

namespace mha::MHA_ISA {
namespace {

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define MHA_VNNI
#endif

/// a0 b0 + a1 b1 for each pair.
MHA_INLINE Ints multiply_pairs(const Shorts& a, const Shorts& b) {
#if defined(EIGEN_VECTORIZE_AVX512)
  return Ints(_mm512_madd_epi16(__m512i(a), __m512i(b)));
#elif defined(EIGEN_VECTORIZE_AVX2)
  return Ints(_mm256_madd_epi16(__m256i(a), __m256i(b)));
#elif defined(EIGEN_VECTORIZE_SSE2)
  return Ints(_mm_madd_epi16(__m128i(a), __m128i(b)));
#else
  const Bits x = Bits(a), y = Bits(b);
  return (Ints(x << 16) >> 16) * (Ints(y << 16) >> 16) + (Ints(x) >> 16) * (Ints(y) >> 16);
#endif
}

#if defined(MHA_VNNI) || defined(__ARM_FEATURE_DOTPROD) || defined(MHA_TILES)

struct ByteProducts {
  using Operand = unsigned char;      // a quarter of four features of a row
  using PanelOperand = std::int32_t;  // the weights of four features of one column
  using Vector = Ints;
  using Sum = std::int32_t;
  using Sums = Ints;
  using Tile = PacketTile<ByteProducts>;

  static constexpr Index kElements = 4;

  // VPDPBUSD takes bytes without signs from the rows, SDOT bytes with them: integers to which the row's offset has
  // been added, after which the least is kLeastByte. Minus the offset times the sum of the weights takes that away
  // again. (Sums may wrap around on the way, and come out right.) The excess of outliers is added
  // there, too.
  static constexpr int kFeatureBytes = 1;
  static constexpr bool kHasOffset = true;
#ifdef __ARM_FEATURE_DOTPROD
  static constexpr std::int32_t kLeastByte = -128;
#else
  static constexpr std::int32_t kLeastByte = 0;
#endif

  MHA_INLINE static Vector load(const PanelOperand* from) { return load_vector<Vector>(from); }
  MHA_INLINE static Vector broadcast(const Operand* from) {
    std::int32_t four;
    __builtin_memcpy(&four, from, sizeof four);
    return Ints{} + four;
  }
  MHA_INLINE static Sums multiply_add(const Vector& x, const Vector& w, const Sums& sum) {
#if defined(__AVX512VNNI__)
    return Ints(_mm512_dpbusd_epi32(__m512i(sum), __m512i(x), __m512i(w)));
#elif defined(MHA_VNNI)
    return Ints(_mm256_dpbusd_avx_epi32(__m256i(sum), __m256i(x), __m256i(w)));
#elif defined(__ARM_FEATURE_DOTPROD)
    return Ints(vdotq_s32(int32x4_t(sum), int8x16_t(x), int8x16_t(w)));
#else
    const Shorts even = Shorts(Bits(x) & 0x00ff00ffu), odd = Shorts(Bits(x) >> 8 & 0x00ff00ffu);
    return sum + multiply_pairs(even, (Shorts(w) << 8) >> 8) + multiply_pairs(odd, Shorts(w) >> 8);
#endif
  }

  /// A vector of quantized features, one in each word, as operands.
  MHA_INLINE static void store_features(unsigned char* to, const Bits& words) {
    using Bytes = std::uint8_t __attribute__((vector_size(kLanes<float>)));
    const Bytes bytes = __builtin_convertvector(words, Bytes);  // the lowest of each word
    __builtin_memcpy(to, &bytes, sizeof bytes);
  }
  /// Whether a word is larger than the part that store_features() keeps.
  MHA_INLINE static bool exceed_bytes(const Bits& words) {
    const Bits excess = (words - kLeastByte) & ~std::uint32_t{0xff};
#ifdef EIGEN_VECTORIZE_AVX512
    return _mm512_test_epi32_mask(__m512i(excess), __m512i(excess)) != 0;
#elif defined(__ARM_FEATURE_DOTPROD)
    return vmaxvq_u32(uint32x4_t(excess)) != 0;
#else
    return _mm256_testz_si256(__m256i(excess), __m256i(excess)) == 0;
#endif
  }
};

#else

// Products of 16-bit integers, two of which are added up at a time. VPMADDUBSW would take bytes, but it saturates. A
// row holds 16-bit integers, of four features the first and the third, then the second and the fourth: the pairs that
// are made of a word of weights by one shift or two.
struct ByteProducts {
  using Operand = unsigned char;
  using PanelOperand = std::int32_t;
  struct Vector {
    Shorts even, odd;  // features 0 and 2, 1 and 3
  };
  using Sum = std::int32_t;
  using Sums = Ints;
  using Tile = PacketTile<ByteProducts>;

  static constexpr Index kElements = 4;
  static constexpr int kFeatureBytes = 2;
  static constexpr bool kHasOffset = false;
  static constexpr std::int32_t kLeastByte = 0;

  MHA_INLINE static Vector load(const PanelOperand* from) {
    using Halves = std::uint16_t __attribute__((vector_size(kPacketBytes)));
    const Halves halves = load_vector<Halves>(from);
    return {Shorts(halves << 8) >> 8, Shorts(halves) >> 8};
  }
  MHA_INLINE static Vector broadcast(const Operand* from) {
    std::int32_t pairs[2];
    __builtin_memcpy(pairs, from, sizeof pairs);
    return {Shorts(Ints{} + pairs[0]), Shorts(Ints{} + pairs[1])};
  }
  MHA_INLINE static Sums multiply_add(const Vector& x, const Vector& w, const Sums& sum) {
    return sum + multiply_pairs(x.even, w.even) + multiply_pairs(x.odd, w.odd);
  }

  /// A vector of quantized features, one in each word, as operands.
  MHA_INLINE static void store_features(unsigned char* to, const Bits& words) {
    constexpr std::uint64_t kLow = 0x0000ffff0000ffff;  // of a pair of words
    std::uint64_t pairs[kLanes<float> / 2], fours[kLanes<float> / 4];
    __builtin_memcpy(pairs, &words, sizeof words);
    for (Index i = 0; i < kLanes<float> / 4; ++i) fours[i] = (pairs[2 * i] & kLow) | (pairs[2 * i + 1] & kLow) << 16;
    __builtin_memcpy(to, fours, sizeof fours);
  }
  MHA_INLINE static bool exceed_bytes(const Bits&) { return false; }  // outliers fit 16 bits
};

/// The same of two neighbours, where panels hold 16-bit integers too: nothing is widened between the products.
struct ShortProducts {
  using Operand = unsigned char;      // a quarter of two features of a row
  using PanelOperand = std::int32_t;  // two features of one column
  using Vector = Shorts;
  using Sum = std::int32_t;
  using Sums = Ints;
  using Tile = PacketTile<ShortProducts>;

  static constexpr Index kElements = 2;

  MHA_INLINE static Vector load(const PanelOperand* from) { return load_vector<Vector>(from); }
  MHA_INLINE static Vector broadcast(const Operand* from) {
    std::int32_t two;
    __builtin_memcpy(&two, from, sizeof two);
    return Vector(Ints{} + two);
  }
  MHA_INLINE static Sums multiply_add(const Vector& x, const Vector& w, const Sums& sum) {
    return sum + multiply_pairs(x, w);
  }
};

#endif

}  // namespace
}  // namespace mha::MHA_ISA

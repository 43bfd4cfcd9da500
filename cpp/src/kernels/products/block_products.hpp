// Products of weights in blocks and rows of bytes: codes of a panel (BlockPanel) as operands of VPDPBUSD, VPMADDUBSW or
// SDOT, and their sums.
//
// A code stands for a weight minus an offset, times a scale. Codes are bytes without a sign, which VPDPBUSD and
// VPMADDUBSW take as the one factor; rows are bytes with a sign, -127 to 127. The offset of the codes times the sum of
// the features of the row is subtracted at the start, so that sums are exact integers, the same on every instruction set.
#pragma once

#include "kernels/kernel_table.hpp"
#include "kernels/products/byte_products.hpp"
#include "kernels/vectors/elements.hpp"

namespace mha::MHA_ISA {
namespace {

/// Bytes with a sign that instructions without a factor of that kind need: such codes have an offset of 128 then.
#if defined(MHA_VNNI)
constexpr std::int32_t kByteOffset = 128;
#else
constexpr std::int32_t kByteOffset = 0;
#endif

#if !defined(MHA_VNNI) && !defined(__ARM_FEATURE_DOTPROD) && defined(EIGEN_VECTORIZE_SSE2)
#define MHA_PRODUCTS_IN_SHORTS
#endif

/// Sums of products of codes up to kMostCode, or of bytes with a sign if that is 128, with the bytes of a row.
template <int kMostCode>
struct CodeSums {
  Ints total;
#ifdef MHA_PRODUCTS_IN_SHORTS
  // VPMADDUBSW adds two products in 16 bits. So many words of four codes are added there before they are widened.
  static constexpr int kWords = 0x7fff / (2 * 127 * kMostCode);
  static constexpr bool kWidensAtOnce = kWords < 2;
  Shorts part;
#else
  static constexpr int kWords = 8;
#endif
  /// Whether the sums of 16 or of 32 features need not be widened before.
  static constexpr bool kTakesHalf = kWords >= 4, kTakesAll = kWords >= 8;

  MHA_INLINE void start(std::int32_t first) { total = Ints{} + first; }
  MHA_INLINE void start_part() {
#ifdef MHA_PRODUCTS_IN_SHORTS
    part = Shorts{};
#endif
  }
  MHA_INLINE void end_part() {
#ifdef MHA_PRODUCTS_IN_SHORTS
    if constexpr (!kWidensAtOnce) total += multiply_pairs(part, Shorts{} + 1);
#endif
  }
  /// Adds four products in each lane.
  MHA_INLINE void add(const Ints& codes, const Ints& x) {
#if defined(__AVX512VNNI__)
    // GCC 12 would copy and spill sums that pass through the intrinsic.
    asm("vpdpbusd %2, %1, %0" : "+v"(total) : "v"(codes), "v"(x));
#elif defined(MHA_VNNI)
    total = Ints(_mm256_dpbusd_avx_epi32(__m256i(total), __m256i(codes), __m256i(x)));
#elif defined(__ARM_FEATURE_DOTPROD)
    total = Ints(vdotq_s32(int32x4_t(total), int8x16_t(codes), int8x16_t(x)));
#elif defined(MHA_PRODUCTS_IN_SHORTS)
    if constexpr (kMostCode == 128)
      total += multiply_pairs(multiply_bytes(magnitudes(codes), with_signs(x, codes)), Shorts{} + 1);
    else if constexpr (kWidensAtOnce)
      total += multiply_pairs(multiply_bytes(codes, x), Shorts{} + 1);
    else
      part += multiply_bytes(codes, x);
#elif defined(__ARM_NEON)
    // Two products fit 16 bits.
    const int16x8_t low = vmull_s8(vget_low_s8(int8x16_t(codes)), vget_low_s8(int8x16_t(x)));
    const int16x8_t high = vmull_s8(vget_high_s8(int8x16_t(codes)), vget_high_s8(int8x16_t(x)));
    total = Ints(vpadalq_s16(int32x4_t(total), vpaddq_s16(low, high)));
#else
    const Shorts even = Shorts(codes << 8) >> 8, odd = Shorts(codes) >> 8;
    total += multiply_pairs(even, Shorts(x << 8) >> 8) + multiply_pairs(odd, Shorts(x) >> 8);
#endif
  }

#ifdef MHA_PRODUCTS_IN_SHORTS
 private:
  MHA_INLINE static Shorts multiply_bytes(const Ints& codes, const Ints& x) {
#if defined(EIGEN_VECTORIZE_AVX512)
    return Shorts(_mm512_maddubs_epi16(__m512i(codes), __m512i(x)));
#elif defined(EIGEN_VECTORIZE_AVX2)
    return Shorts(_mm256_maddubs_epi16(__m256i(codes), __m256i(x)));
#else
    return Shorts(_mm_maddubs_epi16(__m128i(codes), __m128i(x)));
#endif
  }
  MHA_INLINE static Ints magnitudes(const Ints& codes) {
#if defined(EIGEN_VECTORIZE_AVX512)
    return Ints(_mm512_abs_epi8(__m512i(codes)));
#elif defined(EIGEN_VECTORIZE_AVX2)
    return Ints(_mm256_abs_epi8(__m256i(codes)));
#else
    return Ints(_mm_abs_epi8(__m128i(codes)));
#endif
  }
  /// x with the signs of codes: minus x where a code is below 0.
  MHA_INLINE static Ints with_signs(const Ints& x, const Ints& codes) {
#if defined(EIGEN_VECTORIZE_AVX512)
    const __mmask64 is_negative = _mm512_movepi8_mask(__m512i(codes));
    return Ints(_mm512_mask_sub_epi8(__m512i(x), is_negative, _mm512_setzero_si512(), __m512i(x)));
#elif defined(EIGEN_VECTORIZE_AVX2)
    return Ints(_mm256_sign_epi8(__m256i(x), __m256i(codes)));
#else
    return Ints(_mm_sign_epi8(__m128i(x), __m128i(codes)));
#endif
  }
#endif
};

/// Bytes of a table of 16 at the indices of `codes`, all below 16.
MHA_INLINE Bits look_up(const std::uint8_t* table, const Bits& codes) {
#if defined(EIGEN_VECTORIZE_AVX512)
  const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
  return Bits(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes), __m512i(codes)));
#elif defined(EIGEN_VECTORIZE_AVX2)
  const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(table));
  return Bits(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), __m256i(codes)));
#elif defined(EIGEN_VECTORIZE_SSE2)
  return Bits(_mm_shuffle_epi8(_mm_load_si128(reinterpret_cast<const __m128i*>(table)), __m128i(codes)));
#elif defined(__ARM_NEON)
  return Bits(vqtbl1q_u8(vld1q_u8(table), uint8x16_t(codes)));
#else
  std::uint8_t bytes[kPacketBytes];
  __builtin_memcpy(bytes, &codes, sizeof bytes);
  for (std::uint8_t& byte : bytes) byte = table[byte];
  return load_vector<Bits>(bytes);
#endif
}

// Each of the following loads eight features: pair `pair`, 0 or 1, of half `half` of kCodeFeatures features, whose codes
// begin at `codes`, at a vector of columns. `low` gets the first four features.

/// Four bits.
struct NibbleCodes {
  static constexpr int kMostCode = 15;
  MHA_INLINE static void load(const unsigned char* codes, int half, int pair, Bits* low, Bits* high) {
    const Bits both = load_vector<Bits>(codes + Index{2 * half + pair} * kPanelBytes);
    *low = both & 0x0f0f0f0f;
    *high = both >> 4 & 0x0f0f0f0f;
  }
};

/// Four bits, and kBits more.
template <int kBits>
struct HighBitCodes {
  static constexpr int kMostCode = (16 << kBits) - 1;
  MHA_INLINE static void load(const unsigned char* codes, int half, int pair, Bits* low, Bits* high) {
    constexpr std::uint32_t kMask = 0x10101010u * ((1u << kBits) - 1);
    NibbleCodes::load(codes, half, pair, low, high);
    // The bits of the first word, which are to lie at place 4, lie there or at place 0.
    const Bits row = load_vector<Bits>(codes + Index{kBits == 1 ? 4 : 4 + half} * kPanelBytes);
    const Bits bits = kBits == 1 ? row << (4 - 4 * half) >> 2 * pair : pair == 0 ? row << 4 : row;
    *low |= bits & kMask;
    *high |= bits >> kBits & kMask;
  }
};

/// Bytes, which a panel holds with an offset of 128.
struct ByteCodes {
  static constexpr int kMostCode = 128;
  MHA_INLINE static void load(const unsigned char* codes, int half, int pair, Bits* low, Bits* high) {
    constexpr std::uint32_t kFlip = kByteOffset == 128 ? 0 : 0x80808080;
    *low = load_vector<Bits>(codes + Index{4 * half + 2 * pair} * kPanelBytes) ^ kFlip;
    *high = load_vector<Bits>(codes + Index{4 * half + 2 * pair + 1} * kPanelBytes) ^ kFlip;
  }
};

/// Four bits that are places of a table.
template <class Table>
struct TableCodes {
  static constexpr int kMostCode = Table::kMostCode;
  MHA_INLINE static void load(const unsigned char* codes, int half, int pair, Bits* low, Bits* high) {
    NibbleCodes::load(codes, half, pair, low, high);
    *low = look_up(Table::kBytes, *low);
    *high = look_up(Table::kBytes, *high);
  }
};
constexpr std::uint8_t code_of_byte(int value) { return static_cast<std::uint8_t>(value + kByteOffset); }
struct Iq4NlTable {
  static constexpr int kMostCode = 128, kOffset = kByteOffset;
  alignas(16) static constexpr std::uint8_t kBytes[16] = {
      code_of_byte(-127), code_of_byte(-104), code_of_byte(-83), code_of_byte(-65),
      code_of_byte(-49),  code_of_byte(-35),  code_of_byte(-22), code_of_byte(-10),
      code_of_byte(1),    code_of_byte(13),   code_of_byte(25),  code_of_byte(38),
      code_of_byte(53),   code_of_byte(69),   code_of_byte(89),  code_of_byte(113)};
};
struct Mxfp4Table {
  static constexpr int kMostCode = 24, kOffset = 12;
  alignas(16) static constexpr std::uint8_t kBytes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
};

/// Bytes with a sign as integers, a vector of lanes.
MHA_INLINE Ints load_signed_bytes(const unsigned char* from) {
#if defined(EIGEN_VECTORIZE_AVX512)
  return Ints(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(EIGEN_VECTORIZE_AVX2)
  return Ints(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#elif defined(EIGEN_VECTORIZE_SSE4_1)
  return Ints(_mm_cvtepi8_epi32(_mm_loadu_si32(from)));
#else
  using Bytes = std::int8_t __attribute__((vector_size(kPacketBytes / 4)));
  return __builtin_convertvector(load_vector<Bytes>(from), Ints);
#endif
}
/// The same as integers of 16 bits, two in each lane.
MHA_INLINE Shorts load_pairs_of_bytes(const unsigned char* from) {
#if defined(EIGEN_VECTORIZE_AVX512)
  return Shorts(_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#elif defined(EIGEN_VECTORIZE_AVX2)
  return Shorts(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(EIGEN_VECTORIZE_SSE4_1)
  return Shorts(_mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
  using Bytes = std::int8_t __attribute__((vector_size(kPacketBytes / 2)));
  return __builtin_convertvector(load_vector<Bytes>(from), Shorts);
#endif
}

}  // namespace
}  // namespace mha::MHA_ISA

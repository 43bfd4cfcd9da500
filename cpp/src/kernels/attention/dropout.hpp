// Dropout: which weights of a block stay, from the seed of the call and their position alone.
//
// Source: Philox4x32-10 of Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", 2011. It is a
// function of a counter and a key, so a weight has the same fate in any tile, on any instruction set, with any number of
// threads, and in the backward pass, and nothing is stored. Four words come from one counter: they serve four neighbouring
// keys of one query. Queries lie in the lanes, as everywhere (softmax_tile.hpp), so the ten rounds are plain vector
// operations: two products of 32 by 32 bits each. That is 2 to 3 cycles for a weight with AVX-512; the products of
// attention take 4 at D = 64.
#pragma once

#include <cstdint>

#include "kernels/kernel_table.hpp"
#include "kernels/vectors/integer_vectors.hpp"

namespace mha::MHA_ISA {
namespace {

/// Neighbouring keys whose words come from one counter.
constexpr Index kDropoutKeys = 4;

/// The halves of the 64-bit products of each lane with `factor`. With vector instructions from the even and the odd
/// lanes apart, whose products fill the lanes of 64 bits.
MHA_INLINE void multiply_wide(const Bits& x, std::uint32_t factor, Bits& low, Bits& high) {
#if defined(__AVX512F__)
  const __m512i a = __m512i(x), f = _mm512_set1_epi32(int(factor));
  const __m512i even = _mm512_mul_epu32(a, f), odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), f);
  low = Bits(_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32)));
  high = Bits(_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd));
#elif defined(__AVX2__)
  const __m256i a = __m256i(x), f = _mm256_set1_epi32(int(factor));
  const __m256i even = _mm256_mul_epu32(a, f), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), f);
  low = Bits(_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa));
  high = Bits(_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa));
#else
  for (Index i = 0; i < kLanes<float>; ++i) {
    const std::uint64_t product = std::uint64_t(x[i]) * factor;
    low[i] = std::uint32_t(product);
    high[i] = std::uint32_t(product >> 32);
  }
#endif
}

/// Which weights of kLanes<float> neighbouring rows of a tile stay.
class KeptWeights {
 public:
  /// All bits set in the lanes whose weight stays; of four keys.
  using Masks = Bits[kDropoutKeys];

  /// Rows of the tile from `first_row` on. In lanes without a row the result means nothing.
  KeptWeights(const AttentionTile& tile, Index first_row)
      : below_(Bits{} + tile.dropout_below),
        seed_{std::uint32_t(tile.dropout_seed), std::uint32_t(tile.dropout_seed >> 32)} {
    for (Index i = 0; i < kLanes<float>; ++i) {
      const Index row = first_row + i < tile.rows ? first_row + i : tile.rows - 1;
      position_[i] = std::uint32_t(std::uint64_t(tile.position[row]));
      stream_[i] = std::uint32_t(tile.dropout_stream[row]);
      stream_high_[i] = std::uint32_t(tile.dropout_stream[row] >> 32);
    }
  }

  /// Of the keys [key, key + 4); `key` is a multiple of 4.
  MHA_INLINE void of_keys(Index key, Masks& masks) const {
    Bits a = Bits{} + std::uint32_t(std::uint64_t(key / kDropoutKeys)), b = position_, c = stream_, d = stream_high_;
    std::uint32_t one = seed_[0], two = seed_[1];
    MHA_UNROLL
    for (int round = 0; round < 10; ++round, one += 0x9E3779B9u, two += 0xBB67AE85u) {
      Bits low_a, high_a, low_c, high_c;
      multiply_wide(a, 0xD2511F53u, low_a, high_a);
      multiply_wide(c, 0xCD9E8D57u, low_c, high_c);
      a = high_c ^ b ^ one;
      c = high_a ^ d ^ two;
      b = low_c;
      d = low_a;
    }
    masks[0] = Bits(a >= below_);
    masks[1] = Bits(b >= below_);
    masks[2] = Bits(c >= below_);
    masks[3] = Bits(d >= below_);
  }

 private:
  Bits below_, position_, stream_, stream_high_;
  std::uint32_t seed_[2];
};

/// Clears the weights of four keys where they do not stay, [key][width].
inline void keep(float* weights, Index width, const KeptWeights::Masks& masks) {
  for (const Bits& mask : masks) {
    pstore(weights, Packet<float>(Bits(pload<Packet<float>>(weights)) & mask));
    weights += width;
  }
}
inline void keep(double* weights, Index width, const KeptWeights::Masks& masks) {
  for (const Bits& mask : masks) {
    for (Index i = 0; i < kLanes<float>; ++i)
      if (mask[i] == 0) weights[i] = 0;
    weights += width;
  }
}
/// The same of pairs of keys, [pair][width].
template <class Pair>
void keep(Pair* pairs, Index width, const KeptWeights::Masks& masks) {
  for (Index k = 0; k < kDropoutKeys; k += 2, pairs += width) {
    float* const at = reinterpret_cast<float*>(pairs);
    const Bits kept = (masks[k] & 0xffffu) | (masks[k + 1] & 0xffff0000u);
    pstore(at, Packet<float>(Bits(pload<Packet<float>>(at)) & kept));
  }
}

}  // namespace
}  // namespace mha::MHA_ISA

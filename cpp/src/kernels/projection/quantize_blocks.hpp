// Quantizes rows of f32 to 8-bit integers block by block, for projections with weights in blocks: x = q * scale, with a
// scale for each 32 or each 256 features.
//
//   m = the largest magnitude of the block, or kLeastQuantizedMax if that is larger
//   scale = m / 127   and   q = rint(x * (127 / m)), ties to even
//
// Numerics: each operation is rounded by itself, so all instruction sets give the same bits. A block that holds an
// infinity or a NaN gets the scale NaN.
#pragma once

#include "kernels/kernel_table.hpp"
#include "kernels/vectors/integer_vectors.hpp"

namespace mha::MHA_ISA {
namespace {

/// What a product reads of a block of a row in addition to its integers.
template <int kFeatures>
struct RowBlock;
template <>
struct RowBlock<32> {
  float scale;
  std::int32_t sum;  // of the integers
  float scaled_sum;  // scale times the sum, rounded
};
template <>
struct RowBlock<256> {
  float scale;
  std::int16_t sums_of_16[16], sums_of_32[8];  // of the integers of parts
};

/// Bytes of a row: its integers, then its blocks.
template <int kFeatures>
constexpr Index block_row_bytes(Index in_features) {
  const Index bytes = in_features + in_features / kFeatures * Index(sizeof(RowBlock<kFeatures>));
  return (bytes + kVectorBytes - 1) / kVectorBytes * kVectorBytes;
}
template <int kFeatures>
std::size_t block_rows_bytes(Index rows, Index in_features) {
  return std::size_t(rows * block_row_bytes<kFeatures>(in_features));
}

/// Quantizes 16 features to `out`, and returns the sum of their integers.
MHA_INLINE std::int32_t quantize_sixteen(const float* x, float factor, std::int8_t* out) {
  // Adding 1.5 * 2^23 rounds a number to an integer, which is then in the lower bits.
  constexpr float kRounds = 12582912.0f;
  using Bytes = std::int8_t __attribute__((vector_size(kLanes<float>)));
  Ints sums = {};
  MHA_UNROLL
  for (Index k = 0; k < 16; k += kLanes<float>) {
    const Ints integers = Ints(load_vector<Floats>(x + k) * factor + kRounds) - 0x4b400000;
    const Bytes bytes = __builtin_convertvector(integers, Bytes);
    __builtin_memcpy(out + k, &bytes, sizeof bytes);
    sums += integers;
  }
  return sum_of_lanes(sums);
}

/// Quantizes a block to `out`, calls take(part, sum) with the sum of each 16 integers, and returns the scale.
template <int kFeatures, class Take>
MHA_INLINE float quantize_block(const float* x, std::int8_t* out, Take take) {
  Ints largest = {};
  for (Index k = 0; k < kFeatures; k += kLanes<float>) {
    const Ints magnitude = Ints(load_vector<Bits>(x + k) & 0x7fffffff);
    largest = magnitude > largest ? magnitude : largest;
  }
#ifdef EIGEN_VECTORIZE_AVX512
  const std::int32_t bits = _mm512_reduce_max_epi32(__m512i(largest));
#else
  std::int32_t bits = 0;
  for (int i = 0; i < kLanes<float>; ++i) bits = largest[i] > bits ? largest[i] : bits;
#endif
  float most;
  __builtin_memcpy(&most, &bits, sizeof most);
  most = most > kLeastQuantizedMax ? most : kLeastQuantizedMax;
  const bool is_finite = bits < 0x7f800000;
  const float factor = is_finite ? 127.0f / most : 0.0f;
  for (Index part = 0; part < kFeatures / 16; ++part)
    take(part, quantize_sixteen(x + 16 * part, factor, out + 16 * part));
  return is_finite ? most / 127.0f : __builtin_nanf("");
}

template <int kFeatures>
void quantize_blocks(ProjectionTile& tile, void* memory) {
  const Index out_row = block_row_bytes<kFeatures>(tile.in_features);
  for (Index r = 0; r < tile.rows; ++r) {
    const float* const x = static_cast<const float*>(tile.x) + r * tile.x_row;
    auto* const out = static_cast<std::int8_t*>(memory) + r * out_row;
    auto* const blocks = reinterpret_cast<RowBlock<kFeatures>*>(out + tile.in_features);
    for (Index b = 0; b < tile.in_features / kFeatures; ++b) {
      float copied[kFeatures];
      const float* from = x + b * kFeatures * tile.x_step;
      if (tile.x_step != 1) {
        for (Index k = 0; k < kFeatures; ++k) copied[k] = from[k * tile.x_step];
        from = copied;
      }
      RowBlock<kFeatures>& block = blocks[b];
      if constexpr (kFeatures == 32) {
        block.sum = 0;
        block.scale = quantize_block<kFeatures>(from, out + b * kFeatures,
                                                [&](Index, std::int32_t sum) MHA_INLINE_LAMBDA { block.sum += sum; });
        block.scaled_sum = block.scale * float(block.sum);
      } else {
        block.scale =
            quantize_block<kFeatures>(from, out + b * kFeatures, [&](Index part, std::int32_t sum) MHA_INLINE_LAMBDA {
              block.sums_of_16[part] = std::int16_t(sum);
              block.sums_of_32[part / 2] = std::int16_t(part % 2 == 0 ? sum : block.sums_of_32[part / 2] + sum);
            });
      }
    }
  }
  tile.x = memory;
  tile.x_row = out_row;
}

}  // namespace
}  // namespace mha::MHA_ISA

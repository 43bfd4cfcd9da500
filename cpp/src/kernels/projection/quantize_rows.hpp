// Quantizes rows of f32 to 8-bit integers, for projections with int8 weights: x = q * scale, with one scale for each
// row.
//
// The row and 0 lie in [lo, hi]. With m = hi / 2 - lo / 2, or kLeastQuantizedMax if that is larger,
//   scale = m / 127   and   q = rint(x * (127 / m)), ties to even.
// So there are at most 255 steps from the least q to the largest one. Where all numbers of a row have one sign, as
// after an activation, all these steps are on that side of 0.
//
// Numerics: each operation is rounded by itself, so all instruction sets give the same bits. A row that holds an
// infinity or a NaN gets the scale NaN.
#pragma once

#include "kernels/kernel_table.hpp"
#include "kernels/products/byte_products.hpp"

namespace mha::MHA_ISA {
namespace {

/// Bytes of a quantized row, padded to whole vectors of features.
inline Index quantized_row_bytes(Index in_features) {
  constexpr Index L = kLanes<float>;
  return (in_features + L - 1) / L * L * ByteProducts::kFeatureBytes;
}

/// Calls visit(first feature, vector of features) for a row, the last vector filled up with zeros.
template <class Visit>
MHA_INLINE void for_each_vector_of_row(const float* x, Index step, Index count, Visit visit) {
  constexpr Index L = kLanes<float>;
  Index k = 0;
  if (step == 1)
    for (; k + L <= count; k += L) visit(k, load_vector<Floats>(x + k));
  for (; k < count; k += L) {
    float lanes[L] = {};
    for (Index i = 0; i < L && k + i < count; ++i) lanes[i] = x[(k + i) * step];
    visit(k, load_vector<Floats>(lanes));
  }
}

/// Bytes of the quantized rows and, behind them, their scales.
inline std::size_t quantized_bytes(Index rows, Index in_features) {
  return std::size_t(rows * (quantized_row_bytes(in_features) + Index(sizeof(QuantizedRow))));
}

inline void quantize_rows(ProjectionTile& tile, void* memory) {
  const Index out_row = quantized_row_bytes(tile.in_features);
  auto* const scales = reinterpret_cast<QuantizedRow*>(static_cast<unsigned char*>(memory) + tile.rows * out_row);
  for (Index r = 0; r < tile.rows; ++r) {
    const float* const x = static_cast<const float*>(tile.x) + r * tile.x_row;
    // Bits compared as signed integers give the largest positive number, as unsigned ones the most negative number. The
    // bits of a NaN are larger than those of infinity, so one NaN is always found.
    Ints largest = {};
    Bits least = {};
    for_each_vector_of_row(x, tile.x_step, tile.in_features, [&](Index, const Floats& lanes) MHA_INLINE_LAMBDA {
      const Ints number = Ints(lanes);
      largest = number > largest ? number : largest;
      least = Bits(number) > least ? Bits(number) : least;
    });
    std::int32_t high_bits = 0;
    std::uint32_t low_bits = 0x80000000;  // -0
    for (int i = 0; i < kLanes<float>; ++i) {
      high_bits = largest[i] > high_bits ? largest[i] : high_bits;
      low_bits = least[i] > low_bits ? least[i] : low_bits;
    }
    float high, low;
    __builtin_memcpy(&high, &high_bits, sizeof high);
    __builtin_memcpy(&low, &low_bits, sizeof low);
    const bool is_finite = high_bits < 0x7f800000 && low_bits < 0xff800000;
    const float range = 0.5f * high - 0.5f * low;
    const float most = range > kLeastQuantizedMax ? range : kLeastQuantizedMax;
    const float factor = is_finite ? 127.0f / most : 0.0f;
    scales[r].scale = is_finite ? most / 127.0f : __builtin_nanf("");

    // Adding 1.5 * 2^23 rounds a number to an integer, which is then in the lower bits.
    constexpr float kRounds = 12582912.0f;
    const auto integers = [factor](const Floats& lanes) MHA_INLINE_LAMBDA { return Bits(lanes * factor + kRounds); };
    const std::uint32_t offset = ByteProducts::kHasOffset && is_finite ? 0u - integers(Floats{} + low)[0] : 0u;
    scales[r].offset = std::int32_t(offset & 0xff);
    auto* const out = static_cast<unsigned char*>(memory) + r * out_row;
    for_each_vector_of_row(x, tile.x_step, tile.in_features, [&](Index k, const Floats& lanes) MHA_INLINE_LAMBDA {
      ByteProducts::store_features(out + k * ByteProducts::kFeatureBytes, integers(lanes) + offset);
    });
  }
  tile.x = memory;
  tile.x_row = out_row;
  tile.x_scales = scales;
}

}  // namespace
}  // namespace mha::MHA_ISA

// Rows of f32 to 8-bit integers, for weights that are.
//
// x = q * scale with one scale for each row: scale = m / 127 and q = rint(x * (127 / m)), ties to even, for the largest
// magnitude m of the row, or kLeastQuantizedMax if that is larger. Each step is one rounded operation, so all
// instruction sets agree in every bit. A row that holds what is not finite gets the scale NaN.
#pragma once

#include "int8_products.hpp"
#include "kernel_table.hpp"

namespace mha::MHA_ISA {

/// Bytes of a quantized row: whole vectors.
inline Index quantized_row_bytes(Index in_features) {
  constexpr Index L = kLanes<float>;
  return (in_features + L - 1) / L * L * kFeatureBytes;
}

/// visit(feature, vector of features) for a row, the last one filled up with zeros.
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

/// The rows, and behind them their scales.
inline std::size_t quantized_bytes(Index rows, Index in_features) {
  return std::size_t(rows * (quantized_row_bytes(in_features) + Index(sizeof(float))));
}

inline void quantize_rows(ProjectionTile& tile, void* memory) {
  const Index out_row = quantized_row_bytes(tile.in_features);
  auto* const scales = reinterpret_cast<float*>(static_cast<unsigned char*>(memory) + tile.rows * out_row);
  for (Index r = 0; r < tile.rows; ++r) {
    const float* const x = static_cast<const float*>(tile.x) + r * tile.x_row;
    // Without their signs, numbers are in the order of their bits, with NaN behind infinity: the largest is found
    // whatever else there is.
    Integers largest = {};
    for_each_vector_of_row(x, tile.x_step, tile.in_features, [&](Index, const Floats& lanes) MHA_INLINE_LAMBDA {
      const Integers size = Integers(lanes) & 0x7fffffff;
      largest = size > largest ? size : largest;
    });
    std::int32_t bits = 0;
    for (int i = 0; i < kLanes<float>; ++i) bits = largest[i] > bits ? largest[i] : bits;
    float most;
    __builtin_memcpy(&most, &bits, sizeof most);
    const bool is_finite = bits < 0x7f800000;
    if (most < kLeastQuantizedMax) most = kLeastQuantizedMax;
    const float factor = is_finite ? 127.0f / most : 0.0f;
    scales[r] = is_finite ? most / 127.0f : __builtin_nanf("");

    // Added to 1.5 * 2^23 a number is rounded to an integer, which the lower bits then hold.
    auto* const out = static_cast<unsigned char*>(memory) + r * out_row;
    for_each_vector_of_row(x, tile.x_step, tile.in_features, [&](Index k, const Floats& lanes) MHA_INLINE_LAMBDA {
      const Floats rounded = lanes * factor + (12582912.0f + kFeatureOffset);
      store_features(out + k * kFeatureBytes, Bits(rounded));
    });
  }
  tile.x = memory;
  tile.x_row = out_row;
  tile.x_scales = scales;
}

}  // namespace mha::MHA_ISA

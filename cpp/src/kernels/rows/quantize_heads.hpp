// Rows of f32 to integers of 8 bits with a scale each, as caches of int8 keep the keys and values of a head: a number
// becomes integer * scale.
//
//   scale = max |x| / 127,   integer = rint(x / scale), ties to even, from -127 to 127
//
// A row of zeros has the scale 0. So has one whose scale would be less than the smallest number, below 2^-142; somewhat
// larger ones have a scale of few digits, and are cut off at 127 of it.
//
// Numerics: each operation is rounded by itself, so all instruction sets give the same bits. 127 * scale is finite for
// every finite row. A row that holds an infinity has the scale infinity, and one with a NaN the scale NaN; its integers
// are 0, so that all its numbers are NaN.
#pragma once

#include "kernels/kernel_table.hpp"
#include "kernels/vectors/elements.hpp"

namespace mha::MHA_ISA {
namespace {

inline void quantize_heads(const QuantizeTile& tile) {
  constexpr Index L = kLanes<float>;
  constexpr float kMost = 127, kLargestScale = 0x1.020406p+121f;  // 127 times the next one is infinite
  for (Index r = 0; r < tile.rows; ++r) {
    const float* const x = tile.x + r * tile.x_row;
    // Magnitudes are in the order of their bits, and NaN is larger than infinity.
    Ints largest = {};
    for_each_vector_of_row(x, tile.x_step, tile.columns, [&](Index, const Floats& lanes) MHA_INLINE_LAMBDA {
      const Ints magnitude = Ints(lanes) & 0x7fffffff;
      largest = magnitude > largest ? magnitude : largest;
    });
    std::int32_t bits = 0;
    for (Index i = 0; i < L; ++i) bits = largest[i] > bits ? largest[i] : bits;
    float most;
    __builtin_memcpy(&most, &bits, sizeof most);
    const bool is_finite = bits < 0x7f800000;
    float scale = most / kMost;
    if (is_finite && scale > kLargestScale) scale = kLargestScale;
    tile.scales[r] = scale;

    const bool has_numbers = is_finite && scale > 0;
    std::int8_t* const out = tile.out + r * tile.out_row;
    for_each_vector_of_row(x, tile.x_step, tile.columns, [&](Index c, const Floats& lanes) MHA_INLINE_LAMBDA {
      std::int8_t integers[L] = {};
      if (has_numbers) {
        Floats steps = lanes / scale;
        steps = steps > kMost ? Floats{} + kMost : steps < -kMost ? Floats{} - kMost : steps;
        // Adding 1.5 * 2^23 rounds a number to an integer, which is then in the lower bits.
        const Ints words = Ints(steps + 12582912.0f);
        MHA_UNROLL
        for (Index i = 0; i < L; ++i) integers[i] = std::int8_t(words[i]);
      }
      __builtin_memcpy(out + c, integers, std::size_t(c + L <= tile.columns ? L : tile.columns - c));
    });
  }
}

}  // namespace
}  // namespace mha::MHA_ISA

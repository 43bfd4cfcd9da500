// Weights in fewer bits, as they are stored: docs/numerics.md says what is promised.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/kernel_table.hpp"

namespace mha {

/// The upper half of an f32, rounded to nearest, ties to even. NaN stays NaN.
inline std::uint16_t to_bf16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (std::isnan(value)) return static_cast<std::uint16_t>(bits >> 16 | 0x40);  // rounded, it could become infinity
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float from_bf16(std::uint16_t half) {
  const std::uint32_t bits = std::uint32_t{half} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// Of the weights of one output feature, or of a row: what `quantize` in the kernels does.
class Int8Scale {
 public:
  /// @param most the largest magnitude; not finite, if one of the numbers is not
  explicit Int8Scale(float most) {
    if (!std::isfinite(most)) return;
    most = std::fmax(most, kLeastQuantizedMax);
    value_ = most / 127;
    factor_ = 127 / most;
  }
  float value() const { return value_; }
  std::int8_t integer(float number) const {
    return factor_ == 0 ? std::int8_t{0} : static_cast<std::int8_t>(std::nearbyint(number * factor_));
  }

 private:
  float value_ = std::numeric_limits<float>::quiet_NaN(), factor_ = 0;
};

}  // namespace mha

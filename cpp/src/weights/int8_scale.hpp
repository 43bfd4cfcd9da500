// The integers that weights become: docs/numerics.md says what is promised.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/kernel_table.hpp"

namespace mha {

/// Of the weights of one output feature: symmetric, where that of a row (quantize_rows.hpp) has an offset.
class Int8Scale {
 public:
  /// @param most the largest magnitude; not finite, if one of the weights is not: then their product with any row is NaN
  explicit Int8Scale(float most) {
    if (!std::isfinite(most)) return;
    most = std::fmax(most, kLeastQuantizedMax);
    value_ = most / 127;
    factor_ = 127 / most;
  }
  float value() const { return value_; }
  std::int8_t integer(float weight) const {
    return factor_ == 0 ? std::int8_t{0} : static_cast<std::int8_t>(std::nearbyint(weight * factor_));
  }

 private:
  float value_ = std::numeric_limits<float>::quiet_NaN(), factor_ = 0;
};

}  // namespace mha

// The rule that turns float32 weights into int8. docs/numerics.md states it and its guarantees.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/kernel_table.hpp"

namespace mha {

/// The scale of the weights of one output feature. It is symmetric: 0 becomes 0. Rows have another rule, with an offset
/// (quantize_rows.hpp).
class Int8Scale {
 public:
  /// @param most the largest magnitude of the weights; infinite or NaN if one of them is, and then the scale is NaN,
  /// and
  ///             so is the product with any row
  explicit Int8Scale(float most) {
    if (!std::isfinite(most)) return;
    most = std::fmax(most, kLeastQuantizedMax);
    value_ = most / 127;
    factor_ = 127 / most;
  }
  /// The factor of the integers.
  float value() const { return value_; }
  std::int8_t integer(float weight) const {
    return factor_ == 0 ? std::int8_t{0} : static_cast<std::int8_t>(std::nearbyint(weight * factor_));
  }

 private:
  float value_ = std::numeric_limits<float>::quiet_NaN(), factor_ = 0;
};

}  // namespace mha

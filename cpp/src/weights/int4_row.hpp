// The rule that turns float32 weights of one output feature into four bits. docs/numerics.md states its error.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kernel_table.hpp"

namespace mha {

/// The weights of one output feature in three forms: numbers; integers of 8 bits, each a code of -8 to 7 times the
/// multiplier of its group, 0 to 15; and words as panels hold them (kernels/products/int4_products.hpp).
class Int4Row {
 public:
  explicit Int4Row(Index in_features);

  float* numbers() { return numbers_.data(); }
  std::int8_t* integers() { return integers_.data(); }
  std::uint32_t* words() { return words_.data(); }

  /// Numbers to integers: those with the least sum of squared errors that a search over scales and multipliers finds.
  ///
  /// @returns the scale of the integers; NaN if a number is not finite
  float quantize();

  /// Integers to words.
  ///
  /// @returns false if a group has no multiplier for its integers; the words are then undefined
  bool pack();

  /// Words to integers.
  void unpack();

 private:
  /// Chooses the multiplier and the codes of every group for a scale, or of one group in `between`. Returns the error,
  /// and the best scale for the integers that result.
  struct Choice {
    double error;
    float scale;
  };
  Choice choose(float scale, Index between);

  Index in_features_, groups_;
  std::vector<float> numbers_;                // of whole groups, filled up with zeros, as the integers
  std::vector<std::int8_t> integers_;         // of the choice with the least error
  std::vector<float> limits_;                 // of a group: the least step at which codes reach all of its numbers
  std::vector<unsigned char> chosen_, best_;  // multipliers
  std::vector<std::uint32_t> words_;
};

}  // namespace mha

// Positional encodings.
#pragma once

#include <cstdint>

#include "mha/errors.hpp"
#include "mha/export.h"
#include "mha/tensor_view.hpp"

namespace mha {

/// Sines and cosines of the position, one wavelength for each pair of features (Vaswani et al., "Attention Is All You
/// Need", 2017, section 3.5): feature 2 i of row t is the sine of (first_position + t) / 10000^(2 i / E), feature 2 i + 1
/// the cosine of the same angle. Computed in f64 and rounded once.
///
/// @param out            [T, E], any strides; an odd E ends with a sine
/// @param first_position of row 0: where a decoder goes on; first_position + T fits 64 bits
/// @throws std::invalid_argument, DTypeError
MHA_API void sinusoidal_positions(const MutableTensorView& out, std::int64_t first_position = 0);

}  // namespace mha

// Conversions between numbers and the 16-bit element types, which are storage only: for filling and reading tensors.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "mha/dtype.hpp"

namespace mha {

/// The number itself: every number of 16 bits is one of float.
inline float to_float(BFloat16 number) {
  const std::uint32_t bits = std::uint32_t{number.bits} << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

/// Likewise.
inline float to_float(Float16 number) {
  const int exponent = number.bits >> 10 & 31, fraction = number.bits & 1023;
  std::uint32_t bits;
  if (exponent == 0) {  // zero, or subnormal: a multiple of 2^-24, which is normal in float
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    std::memcpy(&bits, &magnitude, sizeof bits);
  } else {  // the bias of the exponent is 15 here and 127 there; 31 stands for infinity and NaN, as 255 does there
    bits = std::uint32_t(exponent == 31 ? 255 : exponent + 112) << 23 | std::uint32_t(fraction) << 13;
  }
  bits |= std::uint32_t{number.bits & 0x8000u} << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

namespace detail {

/// The bits of the nearest number of a 16-bit type that has `fraction_bits` bits after the point of its significand; of
/// two equally near numbers, the even one. A number that is too large becomes infinity; NaN stays NaN.
inline std::uint16_t round_to_16_bits(double number, int fraction_bits) {
  std::uint64_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  const std::uint64_t sign = bits >> 48 & 0x8000, magnitude = bits << 1 >> 1;
  const std::uint64_t infinity = 0x8000 - (std::uint64_t{1} << fraction_bits);
  if (magnitude > 0x7ff0000000000000) return static_cast<std::uint16_t>(sign | infinity | infinity >> 1);  // quiet

  // The number is significand * 2^(exponent - 52). Below the least normal number the spacing is constant.
  const int exponent = static_cast<int>(magnitude >> 52) - 1023, least = 2 - (1 << (14 - fraction_bits));
  const int shift = 52 - fraction_bits + (exponent < least ? least - exponent : 0);
  if (shift > 53) return static_cast<std::uint16_t>(sign);  // less than half of the smallest number
  const std::uint64_t significand = (magnitude & 0xfffffffffffff) | 0x10000000000000;
  const std::uint64_t below_half = (std::uint64_t{1} << (shift - 1)) - 1;
  const std::uint64_t rounded = (significand + below_half + (significand >> shift & 1)) >> shift;
  // The leading digit of a normal number counts as one more of the exponent, and so does a carry.
  const std::uint64_t field = exponent < least ? 0 : static_cast<std::uint64_t>(exponent - least);
  const std::uint64_t result = (field << fraction_bits) + rounded;
  return static_cast<std::uint16_t>(sign | (result < infinity ? result : infinity));
}

}  // namespace detail

/// The nearest number, ties to even; a float is converted exactly on the way.
inline Float16 to_float16(double number) { return {detail::round_to_16_bits(number, 10)}; }
inline BFloat16 to_bfloat16(double number) { return {detail::round_to_16_bits(number, 7)}; }

/// The number that any element is, and any element type's nearest to a number: for code that is generic in the type.
template <class T>
double to_double(T element) {
  if constexpr (std::is_arithmetic_v<T>)
    return static_cast<double>(element);
  else
    return double{to_float(element)};
}
template <class T>
T from_double(double number) {
  if constexpr (std::is_same_v<T, Float16>)
    return to_float16(number);
  else if constexpr (std::is_same_v<T, BFloat16>)
    return to_bfloat16(number);
  else
    return static_cast<T>(number);
}

}  // namespace mha

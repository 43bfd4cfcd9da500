// Conversions of the 16-bit types, against their definition: sign, exponent, significand.
#include "mha/half_precision.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace mha {
namespace {

struct Format {
  int fraction_bits, bias;
};
constexpr Format kFloat16 = {10, 15}, kBFloat16 = {7, 127};

// The number that the bits stand for.
double value_of(std::uint16_t bits, const Format& format) {
  const int exponent = (bits & 0x7fff) >> format.fraction_bits, fraction = bits & ((1 << format.fraction_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 2 * format.bias + 1)
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  const double significand = double(fraction) / (1 << format.fraction_bits) + (exponent > 0 ? 1 : 0);
  return sign * std::ldexp(significand, (exponent > 0 ? exponent : 1) - format.bias);
}

template <class T>
struct Half;
template <>
struct Half<Float16> {
  static constexpr Format kFormat = kFloat16;
  static Float16 from(double number) { return to_float16(number); }
};
template <>
struct Half<BFloat16> {
  static constexpr Format kFormat = kBFloat16;
  static BFloat16 from(double number) { return to_bfloat16(number); }
};

template <class T>
class HalfPrecision : public ::testing::Test {};
using Types = ::testing::Types<Float16, BFloat16>;
TYPED_TEST_SUITE(HalfPrecision, Types);

TYPED_TEST(HalfPrecision, EveryNumberIsReadAndWrittenBack) {
  for (int i = 0; i < 0x10000; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const double expected = value_of(bits, Half<TypeParam>::kFormat);
    const double number = to_float(TypeParam{bits});
    const TypeParam back = Half<TypeParam>::from(number);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(number)) << i;
      ASSERT_TRUE(std::isnan(to_float(back))) << i;
    } else {
      ASSERT_EQ(number, expected) << i;
      ASSERT_EQ(std::signbit(number), std::signbit(expected)) << i;
      ASSERT_EQ(back.bits, bits) << number;
    }
  }
}

TYPED_TEST(HalfPrecision, BetweenNeighboursTheNearerOneIsTakenAndOfTwoTheEvenOne) {
  const Format format = Half<TypeParam>::kFormat;
  const int infinity = (2 * format.bias + 1) << format.fraction_bits;
  for (int i = 0; i < infinity; ++i) {
    const auto bits = static_cast<std::uint16_t>(i), next = static_cast<std::uint16_t>(i + 1);
    const double low = value_of(bits, format);
    // Above the largest number: the number that would come next if there were one exponent more.
    const double high = i + 1 < infinity ? value_of(next, format) : std::ldexp(1, format.bias + 1);
    const double middle = (low + high) / 2;  // exact: a double has the digits to spare
    for (const double sign : {1.0, -1.0}) {
      const std::uint16_t sign_bit = sign < 0 ? 0x8000 : 0;
      const auto from = [&](double x) { return Half<TypeParam>::from(sign * x).bits ^ sign_bit; };
      ASSERT_EQ(from(middle), i % 2 == 0 ? bits : next) << sign * middle;
      ASSERT_EQ(from(std::nextafter(middle, 0)), bits) << sign * middle;
      ASSERT_EQ(from(std::nextafter(middle, high)), next) << sign * middle;
      ASSERT_EQ(from(std::nextafter(low, high)), bits) << sign * low;
    }
  }
}

TYPED_TEST(HalfPrecision, WhatIsOutOfRange) {
  const int infinity = (2 * Half<TypeParam>::kFormat.bias + 1) << Half<TypeParam>::kFormat.fraction_bits;
  EXPECT_EQ(Half<TypeParam>::from(1e300).bits, infinity);
  EXPECT_EQ(Half<TypeParam>::from(-std::numeric_limits<double>::infinity()).bits, infinity | 0x8000);
  EXPECT_EQ(Half<TypeParam>::from(std::numeric_limits<double>::denorm_min()).bits, 0);
  EXPECT_EQ(Half<TypeParam>::from(-1e-300).bits, 0x8000);
  EXPECT_TRUE(std::isnan(to_float(Half<TypeParam>::from(-std::numeric_limits<double>::quiet_NaN()))));
}

TEST(HalfPrecision, KnownBits) {
  EXPECT_EQ(to_float16(1).bits, 0x3c00);
  EXPECT_EQ(to_float16(-2).bits, 0xc000);
  EXPECT_EQ(to_float16(65504).bits, 0x7bff);
  EXPECT_EQ(to_float16(65520).bits, 0x7c00);
  EXPECT_EQ(to_float16(0x1p-24).bits, 0x0001);
  EXPECT_EQ(to_bfloat16(1).bits, 0x3f80);
  EXPECT_EQ(to_bfloat16(3.14159265).bits, 0x4049);
  EXPECT_EQ(to_bfloat16(0x1p-133).bits, 0x0001);
}

}  // namespace
}  // namespace mha

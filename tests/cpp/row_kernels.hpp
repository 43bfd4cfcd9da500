// Shared by the tests of kernels that compute rows: the table of each instruction set, random rows, comparison of bits.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "every_isa.hpp"
#include "mha/runtime.hpp"
#include "platform/dispatch.hpp"

namespace mha::testing {

template <class T>
constexpr T kNaN = std::numeric_limits<T>::quiet_NaN();
template <class T>
constexpr T kInf = std::numeric_limits<T>::infinity();
template <class T>
constexpr long double kEps = std::numeric_limits<T>::epsilon();

template <class T>
class RowKernelsOf : public ::testing::Test {
 protected:
  void TearDown() override { set_isa(nullptr); }

  /// Calls check(kernels) with the kernels of each instruction set that this machine runs.
  template <class Check>
  void on_every_isa(Check check) {
    testing::on_every_isa([&] { check(active_kernels().kernels[static_cast<int>(DTypeOf<T>::value)]); });
  }
};

/// Whether the bits are equal, except for the sign and payload of a NaN.
template <class T>
::testing::AssertionResult same_bits(const std::vector<T>& actual, const std::vector<T>& expected) {
  if (actual.size() != expected.size()) return ::testing::AssertionFailure() << "sizes differ";
  for (std::size_t i = 0; i < actual.size(); ++i)
    if (!(std::isnan(actual[i]) && std::isnan(expected[i])) && std::memcmp(&actual[i], &expected[i], sizeof(T)) != 0)
      return ::testing::AssertionFailure() << "element " << i << ": " << actual[i] << " instead of " << expected[i];
  return ::testing::AssertionSuccess();
}

template <class T>
std::vector<T> random(Index count, unsigned seed, double mean = 0) {
  std::vector<T> numbers(static_cast<std::size_t>(count));
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(mean, 1);
  for (T& number : numbers) number = static_cast<T>(normal(generator));
  return numbers;
}

}  // namespace mha::testing

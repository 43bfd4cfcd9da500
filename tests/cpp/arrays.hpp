// Arrays for the contract tests: random contents, strided layouts, and the comparison with the reference.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "mha/tensor_view.hpp"

namespace mha::testing {

/// A dense array that owns its memory.
template <class T>
class Array {
 public:
  Array(std::initializer_list<Index> shape, T value) : view_(static_cast<T*>(nullptr), shape) {
    Index size = 1;
    for (Index extent : shape) size *= extent;
    data_.assign(static_cast<std::size_t>(size), value);
    view_.data = data_.data();
  }
  Array(Array&&) = default;  // the elements stay where they are
  Array(const Array& other) : data_(other.data_), view_(other.view_) { view_.data = data_.data(); }

  /// Standard normal numbers; the same for the same seed.
  static Array random(std::initializer_list<Index> shape, unsigned seed) {
    Array array(shape, T(0));
    std::mt19937 generator(seed);
    std::normal_distribution<double> normal;
    for (T& element : array.data_) element = static_cast<T>(normal(generator));
    return array;
  }

  const MutableTensorView& view() const { return view_; }
  std::vector<T>& data() { return data_; }
  const std::vector<T>& data() const { return data_; }

 private:
  std::vector<T> data_;
  MutableTensorView view_;
};

template <class T>
Array<T> nans(std::initializer_list<Index> shape) {
  return Array<T>(shape, std::numeric_limits<T>::quiet_NaN());
}

/// The largest error of a result, relative to the largest magnitude that goes into it: for sums of `head_dim` and
/// `keys` terms whose rounding errors are random, and scores up to `score`. The Python tests derive a sharper bound for
/// each element. The tests here look for wrong elements, which are off by their own size.
template <class T>
double tolerance(Index head_dim, Index keys, double score) {
  const double eps = std::numeric_limits<T>::epsilon();
  return 4 * eps * (std::sqrt(static_cast<double>(head_dim)) * score + std::sqrt(static_cast<double>(keys)) + 1);
}

template <class T>
void expect_close(const std::vector<T>& actual, const std::vector<double>& expected, double bound) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double difference = std::abs(static_cast<double>(actual[i]) - expected[i]);
    const bool same_infinity = std::isinf(expected[i]) && static_cast<double>(actual[i]) == expected[i];
    ASSERT_TRUE(same_infinity || difference <= bound)
        << "element " << i << ": " << actual[i] << " instead of " << expected[i] << ", bound " << bound;
  }
}

/// The message of the `Error` that `call` throws, or "no error".
template <class Error, class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

inline void expect_words(const std::string& message, std::initializer_list<const char*> words) {
  for (const char* word : words)
    EXPECT_NE(message.find(word), std::string::npos) << '"' << word << "\" is not in: " << message;
}

}  // namespace mha::testing

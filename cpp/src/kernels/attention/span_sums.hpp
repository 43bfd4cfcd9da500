// The sums of a span, as the kernel for few rows keeps them: row after row. Other kernels hand theirs over in this
// form.
#pragma once

#include "kernels/kernel_table.hpp"
#include "kernels/products/kinds.hpp"

namespace mha::MHA_ISA {
namespace {

/// Length of an array with a number for each row: whole vectors.
template <class T>
constexpr Index kRowFactors = kVectorBytes / sizeof(T);

/// The sums of a span, or of all spans: for each row a maximum, a sum of weights and Dv weighted sums of values.
template <class T>
struct SpanSums {
  T *maximum, *sum, *out;

  explicit SpanSums(void* memory)
      : maximum(static_cast<T*>(memory)), sum(maximum + kRowFactors<T>), out(sum + kRowFactors<T>) {}
  static std::size_t bytes(Index value_dim) {
    const std::size_t size = sizeof(T) * std::size_t(kMaxDecodeRows * value_dim + 2 * kRowFactors<T>);
    return (size + kVectorBytes - 1) / kVectorBytes * kVectorBytes;
  }

  /// The sums of `rows` rows; the numbers after them are as for rows that see no key.
  void copy_totals(const T* maxima, const T* sums, Index rows) const {
    for (Index r = 0; r < kRowFactors<T>; ++r) {
      maximum[r] = r < rows ? maxima[r] : kLowest<T>;
      sum[r] = r < rows ? sums[r] : T(0);
    }
  }
};

}  // namespace
}  // namespace mha::MHA_ISA

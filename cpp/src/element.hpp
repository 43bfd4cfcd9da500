// Elements one by one, for the code around the kernels: as numbers, and rounded.
#pragma once

#include <type_traits>

#include "mha/half_precision.hpp"

namespace mha {

template <class T>
double number(T element) {
  if constexpr (std::is_arithmetic_v<T>)
    return static_cast<double>(element);
  else
    return double{to_float(element)};
}

/// Rounded once, to nearest even.
template <class T>
T rounded(double number) {
  if constexpr (std::is_same_v<T, Float16>)
    return to_float16(number);
  else if constexpr (std::is_same_v<T, BFloat16>)
    return to_bfloat16(number);
  else
    return static_cast<T>(number);
}

}  // namespace mha

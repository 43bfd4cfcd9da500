// Element types, expanded from dtypes.def.
#pragma once

#include <cstdint>

namespace mha {

/// IEEE 754 binary16: 5 bits of exponent, 11 of significand. Storage only.
struct Float16 {
  std::uint16_t bits;
};

/// The upper half of an IEEE 754 binary32: 8 bits of exponent, 8 of significand. Storage only.
struct BFloat16 {
  std::uint16_t bits;
};

/// Element type of a tensor. `boolean` is one byte, 0 or 1, and is accepted for masks only; `int8` for weights only.
enum class DType : unsigned char {
#define MHA_DTYPE(name, scalar, accumulator) name,
#include "mha/dtypes.def"
#undef MHA_DTYPE
  boolean,
  int8,
};

/// Number of element types that attention computes in: every DType below `boolean`.
constexpr int kNumDTypes = static_cast<int>(DType::boolean);

/// Bytes of one element.
constexpr int size_of(DType dtype) {
  switch (dtype) {
#define MHA_DTYPE(name, scalar, accumulator) \
  case DType::name:                          \
    return static_cast<int>(sizeof(scalar));
#include "mha/dtypes.def"
#undef MHA_DTYPE
    case DType::boolean:
    case DType::int8:
      return 1;
  }
  return 0;
}

/// The DType of a C++ element type; there is no value for a type that is not in the registry.
template <class T>
struct DTypeOf;
#define MHA_DTYPE(name, scalar, accumulator)    \
  template <>                                   \
  struct DTypeOf<scalar> {                      \
    static constexpr DType value = DType::name; \
  };
#include "mha/dtypes.def"
#undef MHA_DTYPE
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::boolean;
};
template <>
struct DTypeOf<std::int8_t> {
  static constexpr DType value = DType::int8;
};

/// The type that scores, sums and lse of `dtype` are computed in.
constexpr DType accumulator_of(DType dtype) {
  switch (dtype) {
#define MHA_DTYPE(name, scalar, accumulator) \
  case DType::name:                          \
    return DTypeOf<accumulator>::value;
#include "mha/dtypes.def"
#undef MHA_DTYPE
    case DType::boolean:
    case DType::int8:
      break;
  }
  return DType::boolean;
}

}  // namespace mha

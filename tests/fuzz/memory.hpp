// Memory in blocks of exactly as many bytes as an array has, so that AddressSanitizer sees one byte too far.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "choices.hpp"
#include "mha/mha.h"

namespace mha::fuzz {

/// One block of the heap, and what is in it before a call.
class Block {
 public:
  explicit Block(std::size_t bytes) : data_(static_cast<std::byte*>(std::malloc(bytes))), before_(bytes) {}

  std::byte* data() const { return data_.get(); }
  std::size_t size() const { return before_.size(); }
  std::vector<std::byte>& before() { return before_; }
  void restore() {
    if (size() > 0) std::memcpy(data(), before_.data(), size());
  }
  std::vector<std::byte> now() const { return {data(), data() + size()}; }

 private:
  struct Free {
    void operator()(std::byte* block) const { std::free(block); }
  };
  std::unique_ptr<std::byte, Free> data_;
  std::vector<std::byte> before_;
};

inline std::ptrdiff_t size_of(mha_dtype dtype) {
  switch (dtype) {
    case MHA_DTYPE_f64:
      return 8;
    case MHA_DTYPE_f16:
    case MHA_DTYPE_bf16:
      return 2;
    case MHA_DTYPE_boolean:
    case MHA_DTYPE_int8:
      return 1;
    default:
      return 4;
  }
}

/// Whether there are no elements. A tensor of rank 0 is one that is not given.
inline bool is_empty(const mha_tensor& t) {
  if (t.rank < 1 || t.rank > 4) return true;
  for (int axis = 0; axis < t.rank; ++axis)
    if (t.extents[axis] <= 0) return true;
  return false;
}

/// The bytes from the first to the last of the elements, counted from `data`; none if they are more than a fuzzer wants
/// to allocate or to look at.
struct Reach {
  std::ptrdiff_t begin, end;
};
inline std::optional<Reach> reach_of(const mha_tensor& t) {
  constexpr double kMost = 1 << 22;
  if (is_empty(t)) return Reach{0, 0};
  double begin = 0, end = 1, elements = 1;
  for (int axis = 0; axis < t.rank; ++axis) {
    if (t.strides[axis] != 0) elements *= double(t.extents[axis]);
    const double reach = double(t.extents[axis] - 1) * double(t.strides[axis]);
    (reach < 0 ? begin : end) += reach;
  }
  if (end - begin > kMost || elements > kMost) return std::nullopt;
  return Reach{std::ptrdiff_t(begin) * size_of(t.dtype), std::ptrdiff_t(end) * size_of(t.dtype)};
}

/// Calls visit(byte offset from data) for each element; once for those along an axis of stride 0, which are one.
template <class Visit>
void for_each_element(const mha_tensor& t, Visit visit) {
  if (is_empty(t)) return;
  std::ptrdiff_t at[4] = {};
  for (;;) {
    std::ptrdiff_t offset = 0;
    for (int axis = 0; axis < t.rank; ++axis) offset += at[axis] * t.strides[axis];
    visit(offset * size_of(t.dtype));
    int axis = t.rank - 1;
    while (axis >= 0 && (++at[axis] == t.extents[axis] || t.strides[axis] == 0)) at[axis--] = 0;
    if (axis < 0) return;
  }
}

/// Writes `bits`, a random number, as an element between 1/8 and 2, of either sign; of masks and integers any.
inline void write_element(std::byte* to, mha_dtype dtype, std::uint64_t bits) {
  const std::uint64_t sign = bits & 1, exponent = bits >> 1 & 3, digits = bits >> 3;
  const auto store = [to](auto word) { std::memcpy(to, &word, sizeof word); };
  switch (dtype) {
    case MHA_DTYPE_f64:
      return store(sign << 63 | (1020 + exponent) << 52 | (digits << 20 & ((std::uint64_t{1} << 52) - 1)));
    case MHA_DTYPE_f16:
      return store(std::uint16_t(sign << 15 | (12 + exponent) << 10 | (digits & 0x3ff)));
    case MHA_DTYPE_bf16:
      return store(std::uint16_t(sign << 15 | (124 + exponent) << 7 | (digits & 0x7f)));
    case MHA_DTYPE_boolean:
      return store(std::uint8_t((bits >> 4 & 3) != 0));
    case MHA_DTYPE_int8:
      return store(std::uint8_t(bits >> 4));
    default:
      return store(std::uint32_t(sign << 31 | (124 + exponent) << 23 | (digits & 0x7fffff)));
  }
}

enum class Kind { finite, minus_infinity, other };
/// What number an element is; masks and integers are finite.
inline Kind kind_of(const std::byte* from, mha_dtype dtype) {
  const auto look = [from](auto word, int digits, int exponents) {
    std::memcpy(&word, from, sizeof word);
    const std::uint64_t w = word, top = ((std::uint64_t{1} << exponents) - 1) << digits;
    if ((w & top) != top) return Kind::finite;
    return w == (top | std::uint64_t{1} << (digits + exponents)) ? Kind::minus_infinity : Kind::other;
  };
  switch (dtype) {
    case MHA_DTYPE_f64:
      return look(std::uint64_t{}, 52, 11);
    case MHA_DTYPE_f16:
      return look(std::uint16_t{}, 10, 5);
    case MHA_DTYPE_bf16:
      return look(std::uint16_t{}, 7, 8);
    case MHA_DTYPE_f32:
      return look(std::uint32_t{}, 23, 8);
    default:
      return Kind::finite;
  }
}

}  // namespace mha::fuzz

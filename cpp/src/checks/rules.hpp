// The rules that calls of several kinds share. An error message is one sentence: the function, the argument, the rule,
// and the given value.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <utility>

#include "mha/errors.hpp"
#include "mha/tensor_view.hpp"

namespace mha {

/// Views with the names that messages call them by.
using Named = std::initializer_list<std::pair<const char*, TensorView>>;

/// Throws std::invalid_argument "function: rule; got ..." with the shapes of `views`.
[[noreturn]] void fail(const char* function, const std::string& rule, Named views);

bool has_shape(const TensorView& view, std::initializer_list<Index> shape);

/// `value` is 0, or no nearer to 0 than the smallest normal number of `dtype`, f32 or f64. Products take smaller numbers
/// for 0: a norm would divide by it, and an option would not count.
inline bool is_zero_or_normal(double value, DType dtype) {
  // Compared as integers, which have the order of positive numbers: the state of a call (floating_point_state.hpp) takes
  // a subnormal number for 0.
  constexpr std::uint64_t kLeastDouble = std::uint64_t{1} << 52, kLeastFloat = std::uint64_t{1023 - 126} << 52;
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  bits <<= 1;  // without the sign
  return bits == 0 || bits >= 2 * (dtype == DType::f64 ? kLeastDouble : kLeastFloat);
}
/// The rule of is_zero_or_normal() in words, after "must be".
const char* zero_or_normal(DType dtype);

/// `view` describes memory that can be there: no negative extent, no size or stride beyond the address space, no null
/// pointer to elements. Every tensor passes this rule, on the way through the rules below where they are about it;
/// code after the checks multiplies extents and strides, and follows pointers, without looking again.
/// @throws std::invalid_argument
void check_tensor(const char* function, const char* name, const TensorView& view);

/// `view` has `least` to `most` axes, and passes check_tensor(). @throws std::invalid_argument
void check_rank(const char* function, const char* name, const TensorView& view, int least, int most, Named views);

/// `view` has the shape of `other`. @throws std::invalid_argument
void check_same_shape(const char* function, const char* name, const TensorView& view, const char* other_name,
                      const TensorView& other);

/// All views that are not empty have the floating-point dtype `expected`. @throws DTypeError
void check_dtypes(const char* function, DType expected, Named views);

/// An output passes check_tensor(), has an element of its own for each index, and shares no memory with an input.
/// @throws std::invalid_argument
void check_output(const char* function, const char* name, const MutableTensorView& out, Named inputs);

/// `out` has the shape of x, and is either x itself or overlaps it nowhere. @throws std::invalid_argument
void check_rows_output(const char* function, const TensorView& x, const MutableTensorView& out);

/// The same for an output that stored data is copied to, which must also have this dtype and shape. An empty view, for
/// data that nobody asked for, passes.
void check_copy(const char* function, const char* name, const MutableTensorView& out, DType dtype,
                std::initializer_list<Index> shape);

}  // namespace mha

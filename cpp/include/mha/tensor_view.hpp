// TensorView: the only array type of the public API. It borrows memory; it never owns or copies it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "mha/dtype.hpp"

namespace mha {

/// Sizes, strides and positions. Strides count elements, not bytes, and may be zero or negative.
using Index = std::ptrdiff_t;

/// Most axes that a tensor of this library has: [B, H, T, D].
constexpr int kMaxRank = 4;

/// a * b, or the largest Index if the product does not fit. No memory has so many elements: a tensor of such a size or
/// with such a stride is refused by whatever function it is given to.
constexpr Index saturated_product(Index a, Index b) {
  Index product = 0;
  return __builtin_mul_overflow(a, b, &product) ? PTRDIFF_MAX : product;
}

/// A strided, typed, borrowed array of up to four axes. `Pointer` is `const void*` (TensorView) or `void*`
/// (MutableTensorView). A default-constructed view is empty: "not given". One with elements must have a pointer.
template <class Pointer>
struct BasicTensorView {
  Pointer data = nullptr;
  DType dtype = DType::f32;
  int rank = 0;
  Index extents[kMaxRank] = {};
  Index strides[kMaxRank] = {};

  BasicTensorView() = default;

  /// A dense row-major array of the given element type.
  BasicTensorView(Pointer pointer, DType element, std::initializer_list<Index> shape) : data(pointer), dtype(element) {
    for (Index extent : shape)
      if (rank < kMaxRank) extents[rank++] = extent;
    Index stride = 1;
    for (int axis = rank - 1; axis >= 0; --axis) {
      strides[axis] = stride;
      stride = saturated_product(stride, extents[axis]);
    }
  }

  /// A strided array; `steps` in elements, one for each extent.
  BasicTensorView(Pointer pointer, DType element, std::initializer_list<Index> shape,
                  std::initializer_list<Index> steps)
      : BasicTensorView(pointer, element, shape) {
    int axis = 0;
    for (Index step : steps)
      if (axis < rank) strides[axis++] = step;
  }

  /// The same with the element type of the pointer: `TensorView(pointer, {B, H, T, D})`.
  template <class T>
  BasicTensorView(T* pointer, std::initializer_list<Index> shape)
      : BasicTensorView(pointer, DTypeOf<std::remove_const_t<T>>::value, shape) {}
  template <class T>
  BasicTensorView(T* pointer, std::initializer_list<Index> shape, std::initializer_list<Index> steps)
      : BasicTensorView(pointer, DTypeOf<std::remove_const_t<T>>::value, shape, steps) {}

  /// A writable view reads as a constant one.
  template <class Other, class = std::enable_if_t<std::is_convertible_v<Other, Pointer>>>
  BasicTensorView(const BasicTensorView<Other>& other) : data(other.data), dtype(other.dtype), rank(other.rank) {
    for (int axis = 0; axis < kMaxRank; ++axis) {
      extents[axis] = other.extents[axis];
      strides[axis] = other.strides[axis];
    }
  }

  /// Whether the view was given at all. A tensor with an extent of zero is given and has no elements.
  explicit operator bool() const { return rank > 0; }
};

using TensorView = BasicTensorView<const void*>;
using MutableTensorView = BasicTensorView<void*>;

}  // namespace mha

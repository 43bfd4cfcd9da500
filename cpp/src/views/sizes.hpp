// Sizes from the caller, and checks that keep their products within 64 bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mha/tensor_view.hpp"

namespace mha {

/// More bytes than any memory has: processors address 2^57. check_tensor() refuses views that would need more. Below
/// it, products of the extents of a view, and distances between its elements, fit 64 bits with room for the sum
/// of a few.
constexpr Index kMostBytes = Index{1} << 60;

/// `bytes` as a number to allocate memory by. They are multiplied and added up in double, where nothing wraps around.
/// @throws AllocationError if no memory has so many
std::size_t allocatable(double bytes);

/// Whether the view is given, and no extent is 0.
bool has_elements(const TensorView& view);

/// Whether the elements have at most kMostBytes, and so has the way from the first to the last one along each axis. An
/// extent of 0 counts as 1: the product of any of the extents is bounded, also in a view that has no elements.
bool is_addressable(const TensorView& view);

/// Whether that is plain at a glance, as it is of nearly every tensor: with 2^14 along each of 4 axes, and strides of
/// 2^40, there are 2^59 bytes at most, in elements of 8. No extent is negative then.
inline bool is_plainly_addressable(const TensorView& view) {
  std::uint64_t extents = 0, strides = 0;
  for (int axis = 0; axis < view.rank; ++axis) {
    const Index stride = view.strides[axis];
    extents |= static_cast<std::uint64_t>(view.extents[axis]);
    strides |= static_cast<std::uint64_t>(stride < 0 ? ~stride : stride);
  }
  return extents >> 14 == 0 && strides >> 40 == 0;
}

/// Bytes from one index of an axis to the next; 0 if there is only one, whatever the stride is.
inline Index byte_stride(const TensorView& view, int axis) {
  return view.extents[axis] > 1 ? view.strides[axis] * size_of(view.dtype) : 0;
}

}  // namespace mha

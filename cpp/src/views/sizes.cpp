#include "views/sizes.hpp"

#include <algorithm>

#include "mha/errors.hpp"

namespace mha {

std::size_t allocatable(double bytes) {
  if (bytes > double(kMostBytes)) throw AllocationError(static_cast<std::size_t>(-1));
  return static_cast<std::size_t>(bytes);
}

bool has_elements(const TensorView& view) {
  return view && std::find(view.extents, view.extents + view.rank, 0) == view.extents + view.rank;
}

bool is_addressable(const TensorView& view) {
  const Index size = size_of(view.dtype);
  Index bytes = size;
  for (int axis = 0; axis < view.rank; ++axis) {
    const Index extent = std::max<Index>(view.extents[axis], 1);
    const Index reach = saturated_product(saturated_product(extent - 1, view.strides[axis]), size);
    if (reach < -kMostBytes || reach > kMostBytes) return false;
    bytes = saturated_product(bytes, extent);
  }
  return bytes <= kMostBytes;
}

}  // namespace mha

#include "views/copy_elements.hpp"

#include <cstring>

#include "views/leading_axes.hpp"
#include "views/sizes.hpp"

namespace mha {

void copy_elements(const TensorView& from, const MutableTensorView& to) {
  if (!has_elements(from)) return;
  TensorView x = from;
  MutableTensorView y = to;
  add_leading_axes(x, kMaxRank);
  add_leading_axes(y, kMaxRank);
  const Index size = size_of(from.dtype);
  const auto at = [size](auto* data, const Index* strides, Index i, Index j, Index k) {
    return data + (i * strides[0] + j * strides[1] + k * strides[2]) * size;
  };
  for (Index i = 0; i < x.extents[0]; ++i)
    for (Index j = 0; j < x.extents[1]; ++j)
      for (Index k = 0; k < x.extents[2]; ++k) {
        const std::byte* source = at(static_cast<const std::byte*>(x.data), x.strides, i, j, k);
        std::byte* target = at(static_cast<std::byte*>(y.data), y.strides, i, j, k);
        if (x.strides[3] == 1 && y.strides[3] == 1) {
          std::memcpy(target, source, static_cast<std::size_t>(x.extents[3] * size));
          continue;
        }
        for (Index e = 0; e < x.extents[3]; ++e)
          std::memcpy(target + e * y.strides[3] * size, source + e * x.strides[3] * size,
                      static_cast<std::size_t>(size));
      }
}

}  // namespace mha

// A tensor below the watershed: an address and strides, no type and no extents.
#pragma once

#include <cstddef>

#include "mha/tensor_view.hpp"

namespace mha {

/// Up to four axes [batch, head, row, element]. Axes that broadcast have stride 0.
template <class Byte>
struct Strided {
  Byte* data;
  Index batch, head, row;  // bytes
  Index step;              // elements, along the last axis

  Byte* at(Index b, Index h, Index r) const { return data + b * batch + h * head + r * row; }
};
using Input = Strided<const std::byte>;
using Output = Strided<std::byte>;

}  // namespace mha

// Leading axes of length 1 for views that have fewer axes than the code that reads them expects.
#pragma once

#include "mha/tensor_view.hpp"

namespace mha {

/// Adds axes of length 1 before the first axis until the view has `rank` axes; leaves an empty view as it is.
template <class View>
void add_leading_axes(View& view, int rank) {
  while (view && view.rank < rank) {
    for (int axis = view.rank; axis > 0; --axis) {
      view.extents[axis] = view.extents[axis - 1];
      view.strides[axis] = view.strides[axis - 1];
    }
    view.extents[0] = 1;
    view.strides[0] = 0;
    ++view.rank;
  }
}

}  // namespace mha

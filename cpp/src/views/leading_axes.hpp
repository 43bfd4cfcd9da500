// Views of fewer axes than a rule speaks of.
#pragma once

#include "mha/tensor_view.hpp"

namespace mha {

/// Missing leading axes have length 1.
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

#include "memory_overlap.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <numeric>

namespace mha {
namespace {

/// The axes of more than one element in rising order of stride; returns how many there are.
int sort_axes(const TensorView& view, int* axes) {
  int count = 0;
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.extents[axis] <= 1) continue;
    int place = count++;
    for (; place > 0 && std::abs(view.strides[axes[place - 1]]) > std::abs(view.strides[axis]); --place)
      axes[place] = axes[place - 1];
    axes[place] = axis;
  }
  return count;
}

bool is_empty(const TensorView& view) {
  return std::find(view.extents, view.extents + view.rank, 0) != view.extents + view.rank;
}

/// A view as bytes: where it begins and ends, and as a run of contiguous bytes repeated at strides.
struct Extent {
  std::intptr_t begin, end;  // [begin, end)
  Index run;                 // contiguous bytes at each place
  Index step;                // every place is a multiple of this away from begin; 0: one place only
};

Extent extent_of(const TensorView& view) {
  const Index size = size_of(view.dtype);
  Extent extent{reinterpret_cast<std::intptr_t>(view.data), 0, size, 0};
  extent.end = extent.begin + size;
  int axes[kMaxRank];
  const int count = sort_axes(view, axes);
  for (int i = 0; i < count; ++i) {
    const Index extra = view.extents[axes[i]] - 1, stride = view.strides[axes[i]] * size;
    (stride < 0 ? extent.begin : extent.end) += extra * stride;
    if (extent.step == 0 && std::abs(stride) == extent.run)
      extent.run += extra * extent.run;
    else
      extent.step = std::gcd(extent.step, stride);
  }
  return extent;
}

}  // namespace

bool may_overlap(const TensorView& a, const TensorView& b) {
  if (!a || !b || is_empty(a) || is_empty(b)) return false;
  const Extent p = extent_of(a), q = extent_of(b);
  if (p.end <= q.begin || q.end <= p.begin) return false;
  // Both repeat at multiples of `step`: seen modulo it, two runs either meet everywhere or nowhere.
  const Index step = std::gcd(p.step, q.step);
  if (step == 0) return true;
  const Index apart = ((q.begin - p.begin) % step + step) % step;  // from p's run to q's next one
  return apart < p.run || step - apart < q.run;
}

bool may_overlap_itself(const TensorView& view) {
  if (is_empty(view)) return false;
  // Each axis must step over all that those of smaller stride reach.
  int axes[kMaxRank];
  const int count = sort_axes(view, axes);
  Index reach = 1;
  for (int i = 0; i < count; ++i) {
    const Index stride = std::abs(view.strides[axes[i]]);
    if (stride < reach) return true;
    reach += (view.extents[axes[i]] - 1) * stride;
  }
  return false;
}

}  // namespace mha

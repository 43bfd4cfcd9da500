#include "memory_overlap.hpp"

#include <cstdint>
#include <cstdlib>
#include <numeric>

namespace mha {
namespace {

/// A view as bytes: where it begins and ends, and as a run of contiguous bytes repeated at strides.
struct Extent {
  std::intptr_t begin, end;  // [begin, end)
  Index run;                 // contiguous bytes at each place
  Index step;                // every place is a multiple of this away from begin; 0: one place only
  bool empty;
};

Extent extent_of(const TensorView& view) {
  const Index size = size_of(view.dtype);
  Extent extent{reinterpret_cast<std::intptr_t>(view.data), 0, size, 0, false};
  std::intptr_t highest = extent.begin;
  bool contiguous = true;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    const Index count = view.extents[axis], stride = view.strides[axis] * size;
    if (count == 0) extent.empty = true;
    if (count <= 1) continue;
    (stride < 0 ? extent.begin : highest) += (count - 1) * stride;
    contiguous = contiguous && stride == extent.run;
    if (contiguous)
      extent.run *= count;
    else
      extent.step = std::gcd(extent.step, stride);
  }
  extent.end = highest + size;
  return extent;
}

}  // namespace

bool may_overlap(const TensorView& a, const TensorView& b) {
  if (!a || !b) return false;
  const Extent p = extent_of(a), q = extent_of(b);
  if (p.empty || q.empty || p.end <= q.begin || q.end <= p.begin) return false;
  // Both repeat at multiples of `step`: seen modulo it, two runs either meet everywhere or nowhere.
  const Index step = std::gcd(p.step, q.step);
  if (step == 0) return true;
  const Index apart = ((q.begin - p.begin) % step + step) % step;  // from p's run to q's next one
  return apart < p.run || step - apart < q.run;
}

bool may_overlap_itself(const TensorView& view) {
  // Axes in order of stride: each must step over all that the smaller ones reach.
  int axes[kMaxRank], count = 0;
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.extents[axis] == 0) return false;
    if (view.extents[axis] == 1) continue;
    int place = count++;
    for (; place > 0 && std::abs(view.strides[axes[place - 1]]) > std::abs(view.strides[axis]); --place)
      axes[place] = axes[place - 1];
    axes[place] = axis;
  }
  Index reach = 1;
  for (int i = 0; i < count; ++i) {
    const Index stride = std::abs(view.strides[axes[i]]);
    if (stride < reach) return true;
    reach += (view.extents[axes[i]] - 1) * stride;
  }
  return false;
}

}  // namespace mha

#include "views/memory_overlap.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <numeric>

#include "views/sizes.hpp"

namespace mha {
namespace {

/// Writes to `axes` the axes with more than one element, in rising order of stride. Returns how many these are.
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

/// The bytes of a view lie in [begin, end).
struct ByteRange {
  std::intptr_t begin, end;
};

ByteRange range_of(const TensorView& view) {
  const Index size = size_of(view.dtype);
  ByteRange range{reinterpret_cast<std::intptr_t>(view.data), reinterpret_cast<std::intptr_t>(view.data) + size};
  for (int axis = 0; axis < view.rank; ++axis) {
    const Index reach = (view.extents[axis] - 1) * view.strides[axis] * size;
    (reach < 0 ? range.begin : range.end) += reach;
  }
  return range;
}

/// A run of contiguous bytes repeated at strides.
struct Pattern {
  Index run;   // contiguous bytes at each place
  Index step;  // every place is a multiple of this away from the beginning; 0: one place only
};

Pattern pattern_of(const TensorView& view) {
  const Index size = size_of(view.dtype);
  Pattern pattern{size, 0};
  int axes[kMaxRank];
  const int count = sort_axes(view, axes);
  for (int i = 0; i < count; ++i) {
    const Index extra = view.extents[axes[i]] - 1, stride = view.strides[axes[i]] * size;
    if (pattern.step == 0 && std::abs(stride) == pattern.run)
      pattern.run += extra * pattern.run;
    else
      pattern.step = std::gcd(pattern.step, stride);
  }
  return pattern;
}

}  // namespace

bool may_overlap(const TensorView& a, const TensorView& b) {
  if (!has_elements(a) || !has_elements(b)) return false;
  const ByteRange p = range_of(a), q = range_of(b);
  if (p.end <= q.begin || q.end <= p.begin) return false;  // nearly always; the rest takes longer
  const Pattern in_p = pattern_of(a), in_q = pattern_of(b);
  // Both patterns repeat at multiples of `step`. So the addresses modulo `step` tell whether a run of one meets a run
  // of the other.
  const Index step = std::gcd(in_p.step, in_q.step);
  if (step == 0) return true;
  const Index apart = ((q.begin - p.begin) % step + step) % step;  // bytes from a run of p to the next run of q
  return apart < in_p.run || step - apart < in_q.run;
}

bool may_overlap_itself(const TensorView& view) {
  if (!has_elements(view)) return false;
  // The stride of each axis must be larger than the distance that all axes of smaller stride reach together.
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

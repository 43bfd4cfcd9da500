// Tasks of elementwise calls: runs of neighbouring elements of rows, the same of each tensor.
#pragma once

#include <algorithm>

#include "mha/tensor_view.hpp"

namespace mha {

/// Elements of one row that lie next to each other.
struct ElementRun {
  Index row, column, count;
};

/// The runs of a call over tensors [..., E] of one shape.
class ElementRuns {
 public:
  explicit ElementRuns(const TensorView& x) : columns_(x.extents[x.rank - 1]) {
    for (int axis = 0; axis < x.rank - 1; ++axis) rows_ *= x.extents[axis];
  }

  double elements() const { return double(rows_) * double(columns_); }
  Index tasks() const { return (rows_ * columns_ + kTaskElements - 1) / kTaskElements; }

  /// Calls visit(ElementRun) for the runs of a task, in order. Tasks have the same elements on any number of threads.
  template <class Visit>
  void for_each_run(Index task, Visit visit) const {
    const Index last = std::min((task + 1) * kTaskElements, rows_ * columns_);
    for (Index i = task * kTaskElements, count = 0; i < last; i += count) {
      const Index column = i % columns_;
      count = std::min(columns_ - column, last - i);
      visit(ElementRun{i / columns_, column, count});
    }
  }

 private:
  /// 64 KiB of f32 in each tensor: the time of a task is large against the time of taking it.
  static constexpr Index kTaskElements = 16384;

  Index rows_ = 1, columns_;
};

/// A tensor of the call as rows [N, E] of neighbouring elements; without data, if it is not given.
struct Operand {
  std::byte* data;
  Index row_bytes, size;

  std::byte* at(const ElementRun& run) const { return data ? data + run.row * row_bytes + run.column * size : nullptr; }
};

/// Of rows that are only read, too, where the kernel reads them.
inline Operand operand(const TensorView& rows) {
  return {static_cast<std::byte*>(const_cast<void*>(rows.data)), rows.strides[0] * size_of(rows.dtype),
          size_of(rows.dtype)};
}

}  // namespace mha

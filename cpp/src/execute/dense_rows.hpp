// Rows of any strides as dense ones.
#pragma once

#include "mha/tensor_view.hpp"
#include "platform/layout.hpp"

namespace mha {

/// Evenly spaced rows, [N, E], with the axes of `view`.
template <class Matrix, class View>
Matrix with_axes_of(Matrix rows, const View& view) {
  Index stride = rows.strides[0];
  rows.rank = view.rank;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    rows.extents[axis] = view.extents[axis];
    rows.strides[axis] = axis == view.rank - 1 ? 1 : stride;
    if (axis < view.rank - 1) stride *= view.extents[axis];
  }
  return rows;
}

/// A tensor [..., E] that a call reads, as [N, E] with evenly spaced rows of neighbouring elements: the caller's memory
/// where it is like that, else a copy. An empty view stays empty.
class DenseInput {
 public:
  DenseInput(const TensorView& view, Layout& layout);
  /// Copies, where that is needed, and returns the rows.
  TensorView gather(std::byte* memory) const;
  /// Of a tensor that the call has changed, `view`: takes the rows to their places, if they are elsewhere.
  void scatter(const MutableTensorView& view, std::byte* memory) const;

 private:
  TensorView given_, rows_;
  std::size_t at_ = 0;
};

/// The same of a tensor that a call writes.
class DenseOutput {
 public:
  DenseOutput(const MutableTensorView& view, Layout& layout);
  MutableTensorView rows(std::byte* memory) const;
  /// Takes the results to their places, if they are elsewhere.
  void scatter(std::byte* memory) const;

 private:
  MutableTensorView given_, rows_;
  bool is_apart_ = false;
  std::size_t at_ = 0;
};

/// The input and output of a block, [..., E] each, as [N, E] with evenly spaced rows of neighbouring elements: the
/// caller's memory where it is like that, else a copy.
class DenseRows {
 public:
  /// @param out of the shape of x, and may be x; if it is not written `in_place`, its rows may have other features
  /// @param in_place the results are right if out is x: then a copy of x lies where they will
  DenseRows(const TensorView& x, const MutableTensorView& out, bool in_place, Layout& layout);

  /// Brings x together, if that is needed.
  void gather(std::byte* memory);
  /// Takes the results to their places, if they are elsewhere.
  void scatter() const;

  TensorView x() const { return x_; }
  MutableTensorView out() const { return out_; }
  Index count() const { return out_.extents[0]; }

 private:
  TensorView given_x_, x_;
  MutableTensorView given_out_, out_;
  bool in_place_;
  std::size_t x_at_ = 0, out_at_ = 0;  // copies
};

}  // namespace mha

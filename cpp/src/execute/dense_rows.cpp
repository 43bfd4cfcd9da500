#include "execute/dense_rows.hpp"

#include "views/copy_elements.hpp"

namespace mha {
namespace {

/// [N, E] over the same memory, without data if there is none like that.
template <class View>
View as_rows(const View& view) {
  const int last = view.rank - 1;
  Index count = 1, row = 0;
  bool is_even = view.extents[last] <= 1 || view.strides[last] == 1;
  for (int axis = last - 1; axis >= 0; --axis) {
    if (view.extents[axis] == 1) continue;
    if (count == 1)
      row = view.strides[axis];
    else
      is_even = is_even && view.strides[axis] == count * row;
    count *= view.extents[axis];
  }
  if (count <= 1) row = view.extents[last];
  // A step of 0 between rows would be taken for "no rows".
  return {is_even && row > 0 ? view.data : nullptr, view.dtype, {count, view.extents[last]}, {row, 1}};
}

std::size_t take(const TensorView& rows, Layout& layout) {
  return layout.take(double(rows.extents[0]) * double(rows.extents[1]) * size_of(rows.dtype));
}

MutableTensorView dense(std::byte* memory, const TensorView& rows) {
  return {memory, rows.dtype, {rows.extents[0], rows.extents[1]}};
}

}  // namespace

DenseInput::DenseInput(const TensorView& view, Layout& layout) : given_(view) {
  if (!view) return;
  rows_ = as_rows(view);
  if (!rows_.data) at_ = take(rows_, layout);
}

TensorView DenseInput::gather(std::byte* memory) const {
  if (!given_ || rows_.data) return rows_;
  const MutableTensorView copy = dense(memory + at_, rows_);
  copy_elements(given_, with_axes_of(copy, given_));
  return copy;
}

void DenseInput::scatter(const MutableTensorView& view, std::byte* memory) const {
  if (!rows_.data) copy_elements(with_axes_of(TensorView(dense(memory + at_, rows_)), view), view);
}

DenseOutput::DenseOutput(const MutableTensorView& view, Layout& layout) : given_(view) {
  if (!view) return;
  rows_ = as_rows(view);
  is_apart_ = !rows_.data;
  if (is_apart_) at_ = take(rows_, layout);
}

MutableTensorView DenseOutput::rows(std::byte* memory) const { return is_apart_ ? dense(memory + at_, rows_) : rows_; }

void DenseOutput::scatter(std::byte* memory) const {
  const TensorView results = rows(memory);
  if (is_apart_) copy_elements(with_axes_of(results, given_), given_);
}

DenseRows::DenseRows(const TensorView& x, const MutableTensorView& out, bool in_place, Layout& layout)
    : given_x_(x), x_(as_rows(x)), given_out_(out), out_(as_rows(out)), in_place_(in_place) {
  if (!out_.data) {
    out_ = dense(nullptr, out_);
    out_at_ = take(out_, layout);
  }
  if (!x_.data && !in_place) x_at_ = take(x_, layout);
}

void DenseRows::gather(std::byte* memory) {
  if (!out_.data) out_.data = memory + out_at_;
  if (x_.data) return;
  const MutableTensorView copy = in_place_ ? out_ : dense(memory + x_at_, x_);
  copy_elements(given_x_, with_axes_of(copy, given_x_));
  x_ = copy;
}

void DenseRows::scatter() const {
  const TensorView result = out_;
  if (out_.data != given_out_.data) copy_elements(with_axes_of(result, given_out_), given_out_);
}

}  // namespace mha

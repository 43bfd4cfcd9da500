// Views of Eigen's matrices, for programs that use Eigen 3.4 to 5. All of it is compiled there: the library shows no
// type of Eigen, and mha.hpp does not include this file.
#pragma once

#include <type_traits>
#include <utility>

#include <Eigen/Core>

#include "mha/tensor_view.hpp"

namespace mha {

/// Whether `Matrix` is one of Eigen's: a matrix, an array, a Map, a Ref, a block.
template <class Matrix>
constexpr bool kIsEigen = std::is_base_of_v<Eigen::EigenBase<std::decay_t<Matrix>>, std::decay_t<Matrix>>;

/// MutableTensorView if the elements of `Matrix` may be written to, else TensorView.
template <class Matrix>
using ViewOf = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(std::declval<Matrix&>().data())>>,
                                  TensorView, MutableTensorView>;

/// A view [rows, columns] of a matrix, or [size] of a vector, where it lies; whatever its strides, which are fastest if
/// rows are (`Eigen::RowMajor`). The matrix must outlive the view: a temporary one is refused, a temporary Map is not.
template <class Matrix, class = std::enable_if_t<kIsEigen<Matrix>>>
ViewOf<Matrix> view(Matrix&& matrix) {
  using Plain = std::decay_t<Matrix>;
  static_assert(Plain::Flags & Eigen::DirectAccessBit, "an expression has no elements in memory: evaluate it first");
  static_assert(std::is_lvalue_reference_v<Matrix> || !std::is_base_of_v<Eigen::PlainObjectBase<Plain>, Plain>,
                "the view would outlive the matrix");
  if constexpr (Plain::IsVectorAtCompileTime)
    return {matrix.data(), {matrix.size()}, {matrix.innerStride()}};
  else
    return {matrix.data(), {matrix.rows(), matrix.cols()}, {matrix.rowStride(), matrix.colStride()}};
}

/// A view [heads, rows, columns / heads] of a matrix that has the columns of all heads, one after another, like the
/// result of a projection. `heads` must divide the columns.
template <class Matrix, class = std::enable_if_t<kIsEigen<Matrix>>>
ViewOf<Matrix> view_heads(Matrix&& matrix, Index heads) {
  static_assert(!std::decay_t<Matrix>::IsVectorAtCompileTime, "a vector has no columns for heads");
  ViewOf<Matrix> all = view(std::forward<Matrix>(matrix));
  const Index columns = all.extents[1] / heads;
  return {all.data,
          all.dtype,
          {heads, all.extents[0], columns},
          {columns * all.strides[1], all.strides[0], all.strides[1]}};
}

}  // namespace mha

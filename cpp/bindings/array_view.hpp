// NumPy arrays to tensor views and back. No other file reads the fields of an array. This file checks all that a view
// cannot express: that it is an array, dtype, byte order, alignment, strides in whole elements. The rules about shapes
// and values are checked by the library.
#pragma once

#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include <mha/tensor_view.hpp>

#include <pybind11/pybind11.h>

#include "numpy_dtypes.hpp"

namespace mha::bindings {

namespace py = pybind11;

/// One array argument of a call; `array` is None if it was not given.
struct Argument {
  const char* name;
  py::handle array;
};

/// A new dense array whose elements are not set, and a view of it to write them.
struct NewArray {
  py::object array;
  MutableTensorView view;
};

/// Integers [rows, columns], one row after the other.
struct IntegerRows {
  std::vector<std::int64_t> values;
  Index columns;
};

/// The array arguments of one call. They are kept together because an error message about one of them shows them all.
/// They share one dtype, the call's: the dtype of the first array, or of the layer or cache that the call belongs
/// to. Methods take the position of an argument in the list, and throw py::type_error or py::value_error.
class ArrayArguments {
 public:
  template <class List>
  ArrayArguments(const char* function, const List& arguments)
      : function_(function),
        arguments_(std::data(arguments)),
        count_(static_cast<int>(std::size(arguments))),
        dtype_(dtype_of(0)),
        same_dtype_as_(arguments_[0].name) {}
  template <class List>
  ArrayArguments(const char* function, const List& arguments, DType layer_dtype, const char* owner = "the layer")
      : function_(function),
        arguments_(std::data(arguments)),
        count_(static_cast<int>(std::size(arguments))),
        dtype_(layer_dtype),
        same_dtype_as_(owner) {}

  bool given(int i) const { return !arguments_[i].array.is_none(); }

  /// A new array for a result of the call. A MemoryError shows the shapes of the arguments.
  NewArray new_array(DType dtype, int rank, const Index* extents) const;

  /// An array of the call's dtype with min_rank to max_rank axes.
  TensorView tensor(int i, int min_rank, int max_rank) const;
  /// The same, or an empty view if the argument was not given.
  TensorView optional_tensor(int i, int min_rank, int max_rank) const;
  /// An array of int8, whatever the call's dtype is.
  TensorView int8_tensor(int i, int min_rank, int max_rank) const;
  /// A mask of any rank up to kMaxRank: Boolean or, if `may_add`, of the call's dtype. A scalar becomes one axis of
  /// length 1. An empty view if the argument was not given.
  TensorView mask(int i, bool may_add) const;
  /// An array with min_rank to max_rank axes, of the dtype of scores and lse.
  TensorView scores(int i, int min_rank, int max_rank) const;
  /// The same, or one of the call's dtype.
  TensorView scores_or_tensor(int i, int min_rank, int max_rank) const;
  /// tensor() of an array that must be writable.
  MutableTensorView output(int i, int min_rank, int max_rank) const;
  /// A writable array with `rank` axes, of the dtype of scores.
  MutableTensorView score_output(int i, int rank) const;
  /// How many numbers an integer array of one axis has. They are not read: it may be a large array by mistake.
  Index count_integers(int i) const;
  /// An integer array [length] of any width, copied to int64. `rule` is the part of the message that gives the length.
  std::vector<std::int64_t> integers(int i, Index length,
                                     const char* rule = "must have one entry for each batch element") const;
  /// The same, of any length.
  std::vector<std::int64_t> integers(int i) const;
  /// An integer array [B, T] for rows [B, T, E], or [T], which then repeats for each batch element, likewise.
  std::vector<std::int64_t> integers_of_rows(int i, const TensorView& rows) const;
  /// The same, of any length but 0.
  std::vector<std::int64_t> offsets(int i) const;
  /// An integer array [rows, columns] with any number of columns, likewise.
  IntegerRows integer_rows(int i, Index rows) const;

 private:
  enum class Accept { call_dtype, score_dtype, score_or_call_dtype, int8, boolean, boolean_or_call_dtype };
  TensorView view(int i, Accept accept, int min_rank, int max_rank) const;
  MutableTensorView writable(int i, const TensorView& view) const;
  void check_integers(int i) const;
  /// The memory of an array that does not own it is there, if it belongs to a tensor.
  void check_owner(int i) const;
  std::vector<std::int64_t> copied_integers(int i) const;  // of an array of one or two axes
  DType dtype_of(int i) const;
  /// "function: rule; got", and the shapes of all arrays.
  std::string with_shapes(const std::string& rule) const;
  [[noreturn]] void type_error(int i, const std::string& rule) const;
  [[noreturn]] void shape_error(int i, const std::string& rule) const;

  const char* function_;
  const Argument* arguments_;
  int count_;
  DType dtype_;
  const char* same_dtype_as_;
};

/// Whether the object is a NumPy array.
bool is_array(py::handle object);

/// Whether the elements of an array over the memory of `owner` lie in the storage of `owner`, if that is a tensor of
/// torch: torch lets a program shrink a storage, and its tensors keep their shapes. True for other owners.
bool is_in_storage(py::handle array, py::handle owner);

NewArray new_array(DType dtype, int rank, const Index* extents);

/// `out`, which is argument `i` and has least_rank to most_rank axes. If it was not given, a new array with the shape
/// and dtype of `view`, but `last_extent` elements on the last axis.
NewArray output_or_new(const ArrayArguments& arrays, int i, py::handle out, int least_rank, int most_rank,
                       const TensorView& view, Index last_extent);

/// A new dense array of int64 whose elements are not set.
struct NewIntegers {
  py::object array;
  std::int64_t* data;
};
NewIntegers new_integers(int rank, const Index* extents);

/// A read-only array over the memory of `view`. The array keeps `owner`, which holds that memory, alive.
py::object array_over(const TensorView& view, py::handle owner);

}  // namespace mha::bindings

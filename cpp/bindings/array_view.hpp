// NumPy arrays <-> tensor views: the only place that looks inside an array. It checks what a view cannot express (kind,
// dtype, byte order, alignment, strides); what shapes and values must satisfy is for the library to check.
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

/// One array argument of a call; None stands for "not given".
struct Argument {
  const char* name;
  py::handle array;
};

/// The array arguments of one call, together because a message about one of them shows them all. They have one dtype:
/// that of the first, or that of the object they are given to. Methods take positions in the list, and throw
/// py::type_error or py::value_error.
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

  /// Of the call's dtype, with min_rank to max_rank axes.
  TensorView tensor(int i, int min_rank, int max_rank) const;
  /// tensor(), or an empty view if not given.
  TensorView optional_tensor(int i, int min_rank, int max_rank) const;
  /// Of int8, whatever the call's dtype.
  TensorView int8_tensor(int i, int min_rank, int max_rank) const;
  /// Boolean, or of the call's dtype if `may_add`; any rank up to kMaxRank, a scalar as one axis of extent one; an
  /// empty view if not given.
  TensorView mask(int i, bool may_add) const;
  /// One axis, of the dtype that scores have: that of lse.
  TensorView score_vector(int i) const;
  /// tensor(), and writable.
  MutableTensorView output(int i, int min_rank, int max_rank) const;
  /// Of the dtype that scores have, with `rank` axes, and writable.
  MutableTensorView score_output(int i, int rank) const;
  /// An integer array [length] of any width, as int64; `rule` says why of that length.
  std::vector<std::int64_t> integers(int i, Index length,
                                     const char* rule = "must have one entry for each batch element") const;
  /// The same of any length.
  std::vector<std::int64_t> integers(int i) const { return read_integers(i); }
  /// The same of any length but 0.
  std::vector<std::int64_t> offsets(int i) const;

 private:
  enum class Accept { call_dtype, score_dtype, int8, boolean, boolean_or_call_dtype };
  TensorView view(int i, Accept accept, int min_rank, int max_rank) const;
  MutableTensorView writable(int i, const TensorView& view) const;
  DType dtype_of(int i) const;
  std::vector<std::int64_t> read_integers(int i) const;
  [[noreturn]] void type_error(int i, const std::string& rule) const;
  [[noreturn]] void shape_error(int i, const std::string& rule) const;

  const char* function_;
  const Argument* arguments_;
  int count_;
  DType dtype_;
  const char* same_dtype_as_;
};

/// Whether Python passed a NumPy array.
bool is_array(py::handle object);

/// A new array, its elements not set, and the view to fill it through.
struct NewArray {
  py::object array;
  MutableTensorView view;
};
NewArray new_array(DType dtype, int rank, const Index* extents);

/// `out`, which is argument `i`, with least_rank to most_rank axes; or if it was not given a new array: the axes of
/// `view`, the last one of `last_extent`.
NewArray output_or_new(const ArrayArguments& arrays, int i, py::handle out, int least_rank, int most_rank,
                       const TensorView& view, Index last_extent);

/// A new array of int64, dense.
struct NewIntegers {
  py::object array;
  std::int64_t* data;
};
NewIntegers new_integers(int rank, const Index* extents);

/// A read-only array over the memory of `view`, which `owner` keeps alive.
py::object array_over(const TensorView& view, py::handle owner);

}  // namespace mha::bindings

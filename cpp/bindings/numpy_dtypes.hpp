// The element types of the core as NumPy has them. NumPy has no bfloat16: the package ml_dtypes adds one, whose number is
// known once it is loaded. Until then a type of ours takes its place, which only arrays have that the core made itself.
#pragma once

#include <string>

#include <mha/dtype.hpp>

#include <pybind11/pybind11.h>

namespace mha::bindings {

namespace py = pybind11;

constexpr int kNumpyHalf = 23;  // NPY_HALF, which pybind11 does not list

/// Sets `dtype` to what the numpy.dtype is, if it is one of the core's element types or bool.
bool find_dtype(py::handle numpy_dtype, DType* dtype);

/// Its name in messages: that of numpy.dtype.
std::string name_of(DType dtype);
/// The name of a numpy.dtype, or of what stands in for one.
std::string name_of_dtype(py::handle numpy_dtype);
/// "float32, float64, float16 or bfloat16"
std::string accepted_dtypes();

/// The numpy.dtype of an element type.
py::object numpy_dtype(DType dtype);

/// The numpy.dtype of bfloat16: that of ml_dtypes, which is loaded if it is there.
py::object bfloat16_dtype();

/// What `numpy.dtype(object)` says, as an element type of attention; loads ml_dtypes for "bfloat16". @throws
/// py::type_error
DType dtype_from(py::handle object);

}  // namespace mha::bindings

// The element types of the core as types of NumPy. NumPy has no bfloat16. The package ml_dtypes adds one, whose type
// number is known once that package is loaded. Until then a type of two bytes stands in for it, which only arrays that
// the core has made itself can have.
#pragma once

#include <string>

#include <mha/dtype.hpp>

#include <pybind11/pybind11.h>

namespace mha::bindings {

namespace py = pybind11;

constexpr int kNumpyHalf = 23;  // NPY_HALF, which pybind11 does not list

/// Sets `dtype` to the element type that a numpy.dtype stands for; false if the core has no such type.
bool find_dtype(py::handle numpy_dtype, DType* dtype);

/// The name of an element type in messages: str() of its numpy.dtype.
std::string name_of(DType dtype);
/// str() of a numpy.dtype, or the beginning of a long one; "bfloat16" for the type that stands in for it.
std::string name_of_dtype(py::handle numpy_dtype);
/// "float32, float64, float16 or bfloat16"
std::string accepted_dtypes();

/// The numpy.dtype of an element type; for bfloat16 without ml_dtypes the type that stands in for it.
py::object numpy_dtype(DType dtype);

/// numpy_dtype(DType::bf16), after loading ml_dtypes if that package is installed.
py::object bfloat16_dtype();

/// The floating-point type that `numpy.dtype(object)` names; loads ml_dtypes for "bfloat16".
/// @throws py::type_error, whose message says that it is the argument dtype of `function`
DType dtype_from(const char* function, py::handle object, bool or_int8 = false);

}  // namespace mha::bindings

#include "numpy_dtypes.hpp"

#include <atomic>

#include <pybind11/numpy.h>

#include "scalars.hpp"

namespace mha::bindings {
namespace {

using py::detail::npy_api;

constexpr int kFirstOfPackages = 256;  // NPY_USERDEF: types that packages register have numbers from here on
constexpr char kBFloat16[] = "bfloat16";
constexpr std::size_t kLongestName = 80;  // of a type in a message; the name of a structure may have any length

// The type number of ml_dtypes.bfloat16, or -1 as long as that package is not loaded.
int bfloat16_number() {
  static std::atomic<int> found{-1};
  const int known = found.load(std::memory_order_relaxed);
  if (known >= 0) return known;
  const auto module =
      py::reinterpret_steal<py::object>(PyImport_GetModule(py::str("ml_dtypes").ptr()));  // without importing it
  if (!module || !py::hasattr(module, kBFloat16)) {
    PyErr_Clear();
    return -1;
  }
  const py::dtype dtype = py::dtype::from_args(module.attr(kBFloat16));
  if (dtype.num() < kFirstOfPackages || dtype.itemsize() != size_of(DType::bf16)) return -1;
  found.store(dtype.num(), std::memory_order_relaxed);
  return dtype.num();
}

// The type that stands in for bfloat16: two bytes, which NumPy converts to no number. It is recognized by the identity
// of this one object. So only arrays that the core has made are taken for bfloat16, never another array of two-byte
// elements.
py::handle bfloat16_stand_in() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<py::object> stored;
  return stored.call_once_and_store_result([] { return py::object(py::dtype("V2")); }).get_stored();
}

// The type number that NumPy has for an element type; -1 for bfloat16 as long as ml_dtypes is not loaded.
int type_number(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return npy_api::NPY_FLOAT_;
    case DType::f64:
      return npy_api::NPY_DOUBLE_;
    case DType::f16:
      return kNumpyHalf;
    case DType::bf16:
      return bfloat16_number();
    case DType::boolean:
      return npy_api::NPY_BOOL_;
    case DType::int8:
      return npy_api::NPY_BYTE_;
  }
  return -1;
}

}  // namespace

bool find_dtype(py::handle numpy_dtype, DType* dtype) {
  const int number = py::detail::array_descriptor_proxy(numpy_dtype.ptr())->type_num;
  for (const DType each : {DType::f32, DType::f64, DType::f16, DType::boolean, DType::int8})
    if (number == type_number(each)) {
      *dtype = each;
      return true;
    }
  const bool is_bfloat16 = number == npy_api::NPY_VOID_ ? numpy_dtype.is(bfloat16_stand_in())
                                                        : number >= kFirstOfPackages && number == bfloat16_number();
  if (is_bfloat16) *dtype = DType::bf16;
  return is_bfloat16;
}

std::string name_of(DType dtype) {
  if (dtype == DType::bf16) return kBFloat16;
  return py::cast<std::string>(py::str(numpy_dtype(dtype)));
}

std::string name_of_dtype(py::handle numpy_dtype) {
  if (numpy_dtype.is(bfloat16_stand_in())) return kBFloat16;
  return py::cast<std::string>(py::str(numpy_dtype)).substr(0, kLongestName);
}

std::string accepted_dtypes() {
  std::string names;
  for (int i = 0; i < kNumDTypes; ++i) {
    if (i > 0) names += i + 1 < kNumDTypes ? ", " : " or ";
    names += name_of(static_cast<DType>(i));
  }
  return names;
}

py::object numpy_dtype(DType dtype) {
  const int number = type_number(dtype);
  if (number < 0) return py::reinterpret_borrow<py::object>(bfloat16_stand_in());
  return py::reinterpret_steal<py::object>(npy_api::get().PyArray_DescrFromType_(number));
}

py::object bfloat16_dtype() {
  if (!py::reinterpret_steal<py::object>(PyImport_ImportModule("ml_dtypes"))) PyErr_Clear();
  return numpy_dtype(DType::bf16);
}

DType dtype_from(const char* function, py::handle object, bool or_int8) {
  if (PyUnicode_Check(object.ptr()) && PyUnicode_CompareWithASCIIString(object.ptr(), kBFloat16) == 0) {
    if (bfloat16_dtype().is(bfloat16_stand_in()))
      throw py::type_error(std::string(function) +
                           ": dtype bfloat16 is not one of NumPy itself: it takes the package ml_dtypes");
    return DType::bf16;
  }
  py::object dtype;
  try {
    if (!object.is_none())  // which NumPy takes for float64
      dtype = py::dtype::from_args(py::reinterpret_borrow<py::object>(object));
  } catch (const py::error_already_set& error) {  // whatever the object raises
    if (!error.matches(PyExc_Exception)) throw;
  }
  const std::string accepted = accepted_dtypes() + (or_int8 ? " or int8" : "");
  if (!dtype) throw py::type_error(describe(function, "dtype", accepted.c_str(), object));
  DType found = DType::boolean;
  if (!find_dtype(dtype, &found) || (static_cast<int>(found) >= kNumDTypes && !(or_int8 && found == DType::int8)))
    throw py::type_error(std::string(function) + ": dtype must be " + accepted + "; got " + name_of_dtype(dtype));
  return found;
}

}  // namespace mha::bindings

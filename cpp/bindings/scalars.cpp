#include "scalars.hpp"

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>

namespace mha::bindings {
namespace {

constexpr std::size_t kLongestShown = 80;  // characters of a value or a type in a message: most of a line

// The repr() of an object in UTF-8; empty if it has none, for a repr() may raise anything.
std::string repr_of(py::handle object) {
  const py::object repr = py::reinterpret_steal<py::object>(PyObject_Repr(object.ptr()));
  const char* const text = repr ? PyUnicode_AsUTF8(repr.ptr()) : nullptr;
  if (!text) PyErr_Clear();
  return text ? text : "";
}

}  // namespace

std::string describe(const char* function, const char* argument, const char* rule, py::handle object) {
  std::string shown = repr_of(object);
  const bool is_one_line = shown.find('\n') == std::string::npos;
  if (shown.empty() || shown.size() > kLongestShown || !is_one_line) shown = name_of_type(object);
  return std::string(function) + ": " + argument + " must be " + rule + "; got " + shown;
}

std::string name_of_type(py::handle object) {
  return py::cast<std::string>(py::type::handle_of(object).attr("__name__")).substr(0, kLongestShown);
}

std::int64_t integer(const char* function, const char* argument, py::handle object, const char* rule) {
  if (!PyIndex_Check(object.ptr()) || PyBool_Check(object.ptr()))
    throw py::type_error(describe(function, argument, rule, object));
  const py::object number = py::reinterpret_steal<py::object>(PyNumber_Index(object.ptr()));
  if (!number) {  // an array of several numbers, or an object whose __index__ raises something
    if (!PyErr_ExceptionMatches(PyExc_Exception)) throw py::error_already_set();
    PyErr_Clear();
    throw py::type_error(describe(function, argument, rule, object));
  }
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow != 0) throw py::value_error(describe(function, argument, "an integer of at most 64 bits", object));
  return value;
}

int positive(const char* function, const char* argument, py::handle object, int if_none) {
  if (object.is_none()) return if_none;
  const std::int64_t value = integer(function, argument, object);
  if (value < 1) throw py::value_error(describe(function, argument, "at least 1", object));
  return static_cast<int>(std::min<std::int64_t>(value, INT_MAX));
}

void ThreadsArgument::read(const char* function, py::handle given) {
  count_ = positive(function, "num_threads", given, 0);
  if (PyLong_CheckExact(given.ptr())) return;
  const py::object isa = py::getattr(given, "isa", py::none());
  if (!isa.is_none()) scope_.emplace(static_cast<int>(integer(function, "num_threads.isa", isa)));
}

double finite_real(const char* function, const char* argument, py::handle object, const char* rule) {
  double value;
  if (PyFloat_CheckExact(object.ptr())) {
    value = PyFloat_AS_DOUBLE(object.ptr());
  } else {
    // NumPy registers its scalars with the standard library's tower of numbers, where an array is not a Real.
    const py::object real_number = py::module_::import("numbers").attr("Real");
    if (PyBool_Check(object.ptr()) || !py::isinstance(object, real_number))
      throw py::type_error(describe(function, argument, rule, object));
    value = PyFloat_AsDouble(object.ptr());
    if (value == -1 && PyErr_Occurred()) {
      if (!PyErr_ExceptionMatches(PyExc_OverflowError)) throw py::error_already_set();
      PyErr_Clear();  // an int that is larger than every double
      value = HUGE_VAL;
    }
  }
  if (!std::isfinite(value)) throw py::value_error(describe(function, argument, "finite", object));
  return value;
}

double real(const char* function, const char* argument, py::handle object, double if_none) {
  return object.is_none() ? if_none : finite_real(function, argument, object, "None or a real number");
}

double positive_real(const char* function, const char* argument, py::handle object, double if_none) {
  if (object.is_none()) return if_none;
  const double value = real(function, argument, object, if_none);
  if (value <= 0) throw py::value_error(describe(function, argument, "positive, or None", object));
  return value;
}

bool boolean(const char* function, const char* argument, py::handle object) {
  if (object.ptr() == Py_True) return true;
  if (object.ptr() == Py_False) return false;
  const char* type_name = Py_TYPE(object.ptr())->tp_name;
  if (std::strcmp(type_name, "numpy.bool") != 0 && std::strcmp(type_name, "numpy.bool_") != 0)
    throw py::type_error(describe(function, argument, "a bool", object));
  return PyObject_IsTrue(object.ptr()) == 1;
}

}  // namespace mha::bindings

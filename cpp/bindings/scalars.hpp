// Python numbers -> C++ ones. Each takes the names that its message needs: "function: argument must be ...; got ...".
#pragma once

#include <cstdint>

#include <pybind11/pybind11.h>

namespace mha::bindings {

namespace py = pybind11;

/// An int or a NumPy integer; bool is not one. `rule` completes "must be". @throws py::type_error; py::value_error if
/// it takes more than 64 bits
std::int64_t integer(const char* function, const char* argument, py::handle object, const char* rule = "an integer");
/// integer() of at least one, cut to what an int holds, or `if_none`.
int positive(const char* function, const char* argument, py::handle object, int if_none);
/// A finite real number, or `if_none`.
double real(const char* function, const char* argument, py::handle object, double if_none);
/// real() above zero, or `if_none`.
double positive_real(const char* function, const char* argument, py::handle object, double if_none);
/// A bool or numpy.bool.
bool boolean(const char* function, const char* argument, py::handle object);

/// "function: argument must be rule; got <repr of object>".
std::string describe(const char* function, const char* argument, const char* rule, py::handle object);

}  // namespace mha::bindings

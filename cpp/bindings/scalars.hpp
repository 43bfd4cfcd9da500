// Python numbers to C++ numbers. `function` and `argument` are names for the message of an error.
#pragma once

#include <cstdint>
#include <optional>

#include <pybind11/pybind11.h>
#include <mha/runtime.hpp>

namespace mha::bindings {

namespace py = pybind11;

/// An int or a NumPy integer, but no bool. `rule` follows "must be" in the message.
/// @throws py::type_error; py::value_error if it does not fit 64 bits
std::int64_t integer(const char* function, const char* argument, py::handle object, const char* rule = "an integer");
/// An integer of at least 1, or `if_none` for None. A number that exceeds an int becomes the largest int.
int positive(const char* function, const char* argument, py::handle object, int if_none);
/// The argument num_threads of a call: None (0), an integer of at least 1, or a CallThreads of the package. A CallThreads
/// has an attribute `isa`, the index of the instruction set of all calls of this thread while this object lives.
class ThreadsArgument {
 public:
  ThreadsArgument(const char* function, py::handle given) {
    if (!given.is_none()) read(function, given);
  }
  operator int() const { return count_; }

 private:
  void read(const char* function, py::handle given);

  int count_ = 0;
  std::optional<IsaScope> scope_;
};
/// A finite real number. `rule` is the text of a type error.
double finite_real(const char* function, const char* argument, py::handle object, const char* rule = "a real number");
/// The same, or `if_none` for None.
double real(const char* function, const char* argument, py::handle object, double if_none);
/// A finite real number above 0, or `if_none` for None.
double positive_real(const char* function, const char* argument, py::handle object, double if_none);
/// A bool or numpy.bool.
bool boolean(const char* function, const char* argument, py::handle object);

/// "function: argument must be rule; got <repr of object>", or the name of its type where that is no short line.
std::string describe(const char* function, const char* argument, const char* rule, py::handle object);
/// The name of the type of an object, or the beginning of a long one.
std::string name_of_type(py::handle object);

}  // namespace mha::bindings

// Computing without Python's global lock, and the signals that arrive meanwhile.
#pragma once

#include <optional>

#include <pybind11/pybind11.h>
#include <mha/cancellation.hpp>
#include <mha/errors.hpp>

#include "without_interpreter.hpp"

namespace mha::bindings {

namespace py = pybind11;

/// While it lives, signals of the process are handled during calls of the library: in the thread that handles them, and
/// in others nothing is different. Made and destroyed with the GIL.
class SignalCheck {
 public:
  SignalCheck();
  SignalCheck(const SignalCheck&) = delete;
  SignalCheck& operator=(const SignalCheck&) = delete;

  /// The exception of a handler, which has cancelled the call.
  const std::optional<py::error_already_set>& raised() const { return raised_; }

 private:
  static bool has_raised(void* self);

  std::optional<py::error_already_set> raised_;
  std::optional<CancellationScope> scope_;
};

/// Calls `compute` without the GIL. A signal whose handler raises, such as Ctrl-C, ends it.
/// @throws py::error_already_set the exception of the handler
template <class Compute>
auto without_gil(Compute compute) {
  SignalCheck signals;
  try {
    const WithoutInterpreter unlocked;
    return compute();
  } catch (const Cancelled&) {
    if (signals.raised()) throw py::error_already_set(*signals.raised());
    throw;  // by a CancellationToken, or a scope of the program that Python is a part of
  }
}

}  // namespace mha::bindings

#include "without_gil.hpp"

#include <climits>

#include <pthread.h>

#include <pybind11/gil_simple.h>

namespace mha::bindings {
namespace {

/// Whether this thread handles the signals of the process; not known before it asks.
thread_local std::optional<bool> handles_signals;

// In a forked child it may be another thread than in the parent: the one that forked.
const int forgets_in_forked_child = pthread_atfork(nullptr, nullptr, [] { handles_signals.reset(); });

/// Python has no function that says it. Only the main thread of the main interpreter may set a wake-up descriptor, which
/// is looked at before the descriptor is: ValueError elsewhere, OSError there, as there is no such descriptor.
bool may_handle_signals() {
  try {
    py::module_::import("_signal").attr("set_wakeup_fd")(INT_MAX);
  } catch (py::error_already_set& error) {
    return error.matches(PyExc_OSError);
  }
  return false;
}

}  // namespace

SignalCheck::SignalCheck() {
  if (!handles_signals) handles_signals = may_handle_signals();
  if (*handles_signals) scope_.emplace(&has_raised, this);
}

bool SignalCheck::has_raised(void* self) {
  const py::gil_scoped_acquire_simple locked;
  if (PyErr_CheckSignals() == 0) return false;
  static_cast<SignalCheck*>(self)->raised_.emplace();  // takes the error that Python has now
  return true;
}

}  // namespace mha::bindings

// Letting other Python threads run while this one computes.
#pragma once

#include <unistd.h>

#include <pybind11/pybind11.h>

namespace mha::bindings {

/// While it lives, other Python threads run, and this one must touch no Python object.
///
/// A daemon thread may be in a call when the interpreter ends. Then it never gets the interpreter back: up to version
/// 3.13 Python ends the thread where it asks, by unwinding its stack, which a destructor turns into std::terminate()
/// and so into the end of the process by SIGABRT. Such a thread sleeps here instead, as it does in Python 3.14, until
/// the process ends, which nothing delays.
class WithoutInterpreter {
 public:
  WithoutInterpreter() : thread_(PyEval_SaveThread()) {}
  ~WithoutInterpreter() {
    try {
      PyEval_RestoreThread(thread_);
    } catch (...) {  // it must not end: glibc ends a process that stops the unwinding of a thread
      for (;;) pause();
    }
  }
  WithoutInterpreter(const WithoutInterpreter&) = delete;
  WithoutInterpreter& operator=(const WithoutInterpreter&) = delete;

 private:
  PyThreadState* thread_;
};

}  // namespace mha::bindings

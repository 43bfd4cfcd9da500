// mha_native._core: the C++ library as Python sees it. Arguments are positional and already NumPy arrays; the package
// around this module gives them names, defaults and documentation.
#include "bindings.hpp"

#include <array>
#include <cstddef>

#include <mha/mha.hpp>

namespace py = pybind11;

namespace {

/// Sets an ImportError, and is false, in a sub-interpreter: pybind11 would wait there for a lock that it has itself.
bool is_in_main_interpreter() {
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) return true;
  PyErr_SetString(
      PyExc_ImportError,
      "mha_native: a sub-interpreter cannot import this package, only the main interpreter of a process can");
  return false;
}

int refuse_sub_interpreters(PyObject*) { return is_in_main_interpreter() ? 0 : -1; }

}  // namespace

PYBIND11_MODULE(core_of_main_interpreter, m, py::mod_gil_not_used()) {
  m.doc() = "The compiled core of mha_native; its public face is the package.";
  m.attr("__version__") = MHA_VERSION;
  m.attr("compiler") = MHA_COMPILER;

  // std::invalid_argument is a ValueError already; these are more exact.
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const mha::DTypeError& error) {
      py::set_error(PyExc_TypeError, error.what());
    } catch (const mha::AllocationError& error) {
      py::set_error(PyExc_MemoryError, error.what());
    } catch (const mha::Cancelled& error) {
      py::set_error(py::module_::import("concurrent.futures").attr("CancelledError"), error.what());
    }
  });

  mha::bindings::bind_attention(m);
  mha::bindings::bind_cancellation(m);
  mha::bindings::bind_cross_entropy(m);
  mha::bindings::bind_dlpack(m);
  mha::bindings::bind_dtypes(m);
  mha::bindings::bind_embedding(m);
  mha::bindings::bind_kv_cache(m);
  mha::bindings::bind_linear(m);
  mha::bindings::bind_maxsim(m);
  mha::bindings::bind_merge(m);
  mha::bindings::bind_multi_head_attention(m);
  mha::bindings::bind_optim(m);
  mha::bindings::bind_probes(m);
  mha::bindings::bind_rotary(m);
  mha::bindings::bind_row_gradients(m);
  mha::bindings::bind_runtime(m);
  mha::bindings::bind_scalars(m);
  mha::bindings::bind_transformer(m);
  mha::bindings::bind_xla(m);
}

/// The function that Python calls: the function of pybind11 and its steps, after a look at the interpreter. Up to
/// Python 3.12 this runs in the interpreter that imports; later versions run it in the main one, and only the steps in
/// the other.
extern "C" PYBIND11_EXPORT PyObject* PyInit__core() {
  if (!is_in_main_interpreter()) return nullptr;
  auto* const definition = reinterpret_cast<PyModuleDef*>(PyInit_core_of_main_interpreter());
  if (definition == nullptr) return nullptr;
  static std::array<PyModuleDef_Slot, 16> steps{};  // pybind11 has 3 or 4, and an empty one after them
  if (definition->m_slots != steps.data()) {
    steps[0] = {Py_mod_exec, reinterpret_cast<void*>(&refuse_sub_interpreters)};
    const PyModuleDef_Slot* slot = definition->m_slots;
    for (std::size_t i = 1; slot->slot != 0; ++i, ++slot) steps.at(i) = *slot;
    definition->m_slots = steps.data();
  }
  return reinterpret_cast<PyObject*>(definition);
}

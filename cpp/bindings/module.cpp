// mha_native._core: the C++ library as Python sees it. Arguments are positional and already NumPy arrays; the package
// around this module gives them names, defaults and documentation.
#include "bindings.hpp"

#include <mha/mha.hpp>

namespace py = pybind11;

PYBIND11_MODULE(_core, m, py::mod_gil_not_used()) {
  m.doc() = "The compiled core of mha_native; its public face is the package.";
  m.attr("__version__") = MHA_VERSION;
  m.attr("compiler") = MHA_COMPILER;

  // std::invalid_argument is a ValueError already; these two are more exact.
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const mha::DTypeError& error) {
      py::set_error(PyExc_TypeError, error.what());
    } catch (const mha::AllocationError& error) {
      py::set_error(PyExc_MemoryError, error.what());
    }
  });

  mha::bindings::bind_attention(m);
  mha::bindings::bind_dlpack(m);
  mha::bindings::bind_dtypes(m);
  mha::bindings::bind_embedding(m);
  mha::bindings::bind_kv_cache(m);
  mha::bindings::bind_merge(m);
  mha::bindings::bind_multi_head_attention(m);
  mha::bindings::bind_probes(m);
  mha::bindings::bind_runtime(m);
  mha::bindings::bind_scalars(m);
  mha::bindings::bind_transformer(m);
}

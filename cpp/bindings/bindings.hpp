// The parts that module.cpp puts together, one for each bind_*.cpp.
#pragma once

#include <pybind11/pybind11.h>

namespace mha::bindings {

namespace py = pybind11;

void bind_attention(py::module_& m);
void bind_cancellation(py::module_& m);
void bind_cross_entropy(py::module_& m);
void bind_dlpack(py::module_& m);
void bind_dtypes(py::module_& m);
void bind_embedding(py::module_& m);
void bind_kv_cache(py::module_& m);
void bind_linear(py::module_& m);
void bind_maxsim(py::module_& m);
void bind_merge(py::module_& m);
void bind_multi_head_attention(py::module_& m);
void bind_optim(py::module_& m);
void bind_probes(py::module_& m);
void bind_rotary(py::module_& m);
void bind_row_gradients(py::module_& m);
void bind_runtime(py::module_& m);
void bind_scalars(py::module_& m);
void bind_transformer(py::module_& m);
void bind_xla(py::module_& m);

/// Call before computing. In a forked child it issues one RuntimeWarning per process, and throws if
/// the user has made warnings errors.
void warn_if_forked();

}  // namespace mha::bindings

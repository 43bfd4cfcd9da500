// Instruction sets, threads, and the state of the process.
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>

#include <mha/runtime.hpp>

#include "bindings.hpp"
#include "numpy_dtypes.hpp"
#include "scalars.hpp"

namespace mha::bindings {
namespace {

py::tuple built_isas() {
  py::tuple names(num_built_isas());
  for (int i = 0; i < num_built_isas(); ++i) names[static_cast<std::size_t>(i)] = built_isa(i);
  return names;
}

/// The index of the instruction set; -1 if it is not built in.
int find_isa(const char* name) {
  for (int i = 0; i < num_built_isas(); ++i)
    if (std::strcmp(built_isa(i), name) == 0) return i;
  return -1;
}

bool is_supported(const char* name) {
  const int index = find_isa(name);
  return index >= 0 && isa_supported(index);
}

const char* reason_of(const char* name) {
  const int index = find_isa(name);
  return index >= 0 ? isa_reason(index) : "is not built in";
}

void choose_isa(py::handle name) {
  if (!name.is_none() && !PyUnicode_Check(name.ptr()))
    throw py::type_error(describe("set_isa", "name", "None or a str", name));
  set_isa(name.is_none() ? nullptr : py::cast<std::string>(name).c_str());
}

py::tuple dtypes() {
  py::tuple result(kNumDTypes);
  for (int i = 0; i < kNumDTypes; ++i) result[static_cast<std::size_t>(i)] = name_of(static_cast<DType>(i));
  return result;
}

}  // namespace

void warn_if_forked() {
  if (!in_forked_child()) return;
  // By process, not once: a child of this child is a process of its own.
  static std::atomic<long> warned_process{0};
  const long process = getpid();
  if (warned_process.exchange(process) == process) return;
  // Level 2 is the caller of the package's function.
  if (PyErr_WarnEx(PyExc_RuntimeWarning,
                   "mha_native: a forked process computes on one thread; start processes with 'spawn' to use more",
                   2) != 0)
    throw py::error_already_set();
}

void bind_runtime(py::module_& m) {
  m.def("built_isas", &built_isas, "The instruction sets compiled in, in rising order of preference");
  m.def("isa_supported", &is_supported, "Whether the instruction set is built in and this machine runs it");
  m.def("isa_reason", &reason_of, "Whether it runs here and may be the default here, and why");
  m.def("active_isa", &active_isa);
  m.def("active_isa_reason", &active_isa_reason);
  m.def("set_isa", &choose_isa, "Chooses by name; None goes back to MHA_NATIVE_ISA and detection");
  m.def("last_used_isa", &last_used_isa);
  m.def("num_threads", &num_threads);
  m.def("num_threads_reason", &num_threads_reason);
  m.def(
      "set_num_threads", [](py::handle n) { set_num_threads(positive("set_num_threads: n", "num_threads", n, 0)); },
      "At least 1; None goes back to the environment and detection");
  m.def("in_forked_child", &in_forked_child);
  m.def("scratch_bytes", &scratch_bytes);
  m.def("dtypes", &dtypes, "The names of the dtypes that attention computes in");
}

}  // namespace mha::bindings

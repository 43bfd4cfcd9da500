// The rules of scalars.hpp, for arguments that the package reads itself.
#include "bindings.hpp"
#include "scalars.hpp"

namespace mha::bindings {

void bind_scalars(py::module_& m) {
  m.def("boolean", &boolean, "(function, argument, value) -> bool");
  m.def(
      "integer",
      [](const char* function, const char* argument, py::handle value) { return integer(function, argument, value); },
      "(function, argument, value) -> int");
  m.def(
      "real",
      [](const char* function, const char* argument, py::handle value) {
        return finite_real(function, argument, value);
      },
      "(function, argument, value) -> float");
}

}  // namespace mha::bindings

// The table of rotary positions.
#include <mha/rotary.hpp>

#include "array_view.hpp"
#include "bindings.hpp"
#include "scalars.hpp"

namespace mha::bindings {
namespace {

RotaryEmbedding make_rotary(py::handle cos, py::handle sin, py::handle interleaved) {
  const char* const function = "RotaryEmbedding";
  const Argument list[] = {{"cos", cos}, {"sin", sin}};
  const ArrayArguments arrays(function, list);
  const TensorView cosines = arrays.tensor(0, 2, 2), sines = arrays.tensor(1, 2, 2);
  return RotaryEmbedding(cosines, sines,
                         boolean(function, "interleaved", interleaved) ? RotaryPairs::neighbours : RotaryPairs::halves);
}

}  // namespace

void bind_rotary(py::module_& m) {
  py::class_<RotaryEmbedding>(m, "RotaryEmbedding")
      .def(py::init(&make_rotary), "(cos, sin, interleaved)")
      .def_property_readonly("cos",
                             [](py::object self) { return array_over(self.cast<RotaryEmbedding&>().cos(), self); })
      .def_property_readonly("sin",
                             [](py::object self) { return array_over(self.cast<RotaryEmbedding&>().sin(), self); })
      .def_property_readonly("interleaved",
                             [](const RotaryEmbedding& rotary) { return rotary.pairs() == RotaryPairs::neighbours; })
      .def_property_readonly("dtype", [](const RotaryEmbedding& rotary) { return numpy_dtype(rotary.dtype()); });
}

}  // namespace mha::bindings

// The table of rotary positions.
#include <mha/rotary.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include "array_view.hpp"
#include "bindings.hpp"
#include "scalars.hpp"
#include "without_gil.hpp"

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

py::object rotate_array(const RotaryEmbedding& rotary, const std::string& function, py::handle x, py::handle positions,
                        bool backwards, py::handle num_threads) {
  const Argument list[] = {{backwards ? "dout" : "x", x}, {"positions", positions}};
  const ArrayArguments arrays(function.c_str(), list);
  const TensorView given = arrays.tensor(0, 2, kMaxRank);
  const bool has_batch = given.rank == kMaxRank;
  TensorView rows;  // [B, T, D], or [T, D]: the rows that have a position
  rows.rank = has_batch ? 3 : 2;
  if (has_batch) rows.extents[0] = given.extents[0];
  std::copy_n(given.extents + given.rank - 2, 2, rows.extents + rows.rank - 2);
  const std::vector<std::int64_t> places =
      arrays.given(1) ? arrays.integers_of_rows(1, rows) : std::vector<std::int64_t>();
  const ThreadsArgument threads(function.c_str(), num_threads);
  const NewArray out = arrays.new_array(given.dtype, given.rank, given.extents);
  warn_if_forked();
  without_gil([&] { rotary.rotate(given, arrays.given(1) ? places.data() : nullptr, out.view, backwards, threads); });
  return out.array;
}

}  // namespace

void bind_rotary(py::module_& m) {
  py::class_<RotaryEmbedding>(m, "RotaryEmbedding")
      .def(py::init(&make_rotary), "(cos, sin, interleaved)")
      .def("rotate", &rotate_array, "(function, x, positions, backwards, num_threads) -> out")
      .def_property_readonly("cos",
                             [](py::object self) { return array_over(self.cast<RotaryEmbedding&>().cos(), self); })
      .def_property_readonly("sin",
                             [](py::object self) { return array_over(self.cast<RotaryEmbedding&>().sin(), self); })
      .def_property_readonly("interleaved",
                             [](const RotaryEmbedding& rotary) { return rotary.pairs() == RotaryPairs::neighbours; })
      .def_property_readonly("dtype", [](const RotaryEmbedding& rotary) { return numpy_dtype(rotary.dtype()); });
}

}  // namespace mha::bindings

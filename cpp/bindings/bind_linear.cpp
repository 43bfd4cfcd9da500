// linear, for weights of one call, and its gradient.
#include <mha/linear.hpp>
#include <mha/linear_gradient.hpp>

#include "array_view.hpp"
#include "bindings.hpp"
#include "scalars.hpp"
#include "wanted.hpp"
#include "without_gil.hpp"

namespace mha::bindings {
namespace {

constexpr const char* kArgumentsOfLinear[] = {"x", "weight", "bias"};

// `rows` with another number of features.
TensorView with_features(TensorView rows, Index features) {
  rows.extents[rows.rank - 1] = features;
  return rows;
}

py::object map_rows(py::handle x, py::handle weight, py::handle bias, py::handle num_threads) {
  const char* const function = "linear";
  const Argument list[] = {{"x", x}, {"weight", weight}, {"bias", bias}};
  const ArrayArguments arrays(function, list);
  const TensorView rows = arrays.tensor(0, 1, kMaxRank);
  const LinearWeights weights(arrays.tensor(1, 2, 2), arrays.optional_tensor(2, 1, 1));
  const ThreadsArgument threads(function, num_threads);
  const TensorView shape = with_features(rows, weights.weight.extents[0]);
  const NewArray result = arrays.new_array(rows.dtype, shape.rank, shape.extents);
  warn_if_forked();
  without_gil([&] { linear(rows, weights, result.view, threads); });
  return result.array;
}

py::object differentiate_linear(py::handle x, py::handle weight, py::handle dout, py::handle wrt,
                                py::handle num_threads) {
  const char* const function = "linear_gradient";
  const Argument list[] = {{"dout", dout}, {"x", x}, {"weight", weight}};
  const ArrayArguments arrays(function, list);
  const TensorView d = arrays.tensor(0, 1, kMaxRank), rows = arrays.optional_tensor(1, 1, kMaxRank);
  const TensorView matrix = arrays.optional_tensor(2, 2, 2);
  const ThreadsArgument threads(function, num_threads);
  const Wanted<3> wanted(function, kArgumentsOfLinear, wrt);
  // The gradient of a missing argument has the shape that the argument would have.
  TensorView vector = d, product = matrix;
  vector.rank = 1;
  vector.extents[0] = d.extents[d.rank - 1];
  if (!matrix && rows) {
    product = rows;
    product.rank = 2;
    product.extents[1] = rows.extents[rows.rank - 1];
    product.extents[0] = vector.extents[0];
  }
  const TensorView like_x = rows ? rows : matrix ? with_features(d, matrix.extents[1]) : TensorView();
  const NewArray dx = wanted.gradient(arrays, 0, like_x, d.dtype),
                 dweight = wanted.gradient(arrays, 1, product, d.dtype),
                 dbias = wanted.gradient(arrays, 2, vector, d.dtype);
  warn_if_forked();
  without_gil([&] { linear_gradient(rows, matrix, d, {dx.view, dweight.view, dbias.view}, threads); });
  return py::make_tuple(dx.array, dweight.array, dbias.array);
}

}  // namespace

void bind_linear(py::module_& m) {
  m.def("linear", &map_rows, "(x, weight, bias or None, num_threads) -> out");
  m.def("linear_gradient", &differentiate_linear,
        "(x or None, weight or None, dout, wrt, num_threads) -> a gradient or None, for x, weight and bias");
}

}  // namespace mha::bindings

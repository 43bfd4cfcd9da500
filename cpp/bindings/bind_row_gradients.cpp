// Gradients of norms; activations and their gradients.
#include <mha/activate.hpp>
#include <mha/norm_gradient.hpp>

#include "activation_names.hpp"
#include "array_view.hpp"
#include "bindings.hpp"
#include "scalars.hpp"
#include "wanted.hpp"
#include "without_gil.hpp"

namespace mha::bindings {
namespace {

py::object differentiate_norm(const char* function, NormKind kind, double usual_eps, py::handle x, py::handle weight,
                              py::handle dout, py::handle eps, py::handle wrt, py::handle num_threads) {
  static constexpr const char* kNames[] = {"x", "weight", "bias"};
  static constexpr const char* kNamesOfRms[] = {"x", "weight"};
  const Argument list[] = {{"x", x}, {"weight", weight}, {"dout", dout}};
  const ArrayArguments arrays(function, list);
  const TensorView rows = arrays.tensor(0, 1, kMaxRank), factors = arrays.optional_tensor(1, 1, 1);
  const TensorView gradient = arrays.tensor(2, 1, kMaxRank);
  const double number = real(function, "eps", eps, usual_eps);
  const ThreadsArgument threads(function, num_threads);
  TensorView of_bias;  // a gradient for each feature
  of_bias.rank = 1;
  of_bias.extents[0] = rows.extents[rows.rank - 1];
  NewArray dx, dweight, dbias{py::none(), {}};
  const auto make = [&](const auto& wanted) {
    dx = wanted.gradient(arrays, 0, rows, rows.dtype);
    dweight = wanted.gradient(arrays, 1, factors, rows.dtype);
  };
  if (kind == NormKind::layer) {
    const Wanted<3> wanted(function, kNames, wrt);
    make(wanted);
    dbias = wanted.gradient(arrays, 2, of_bias, rows.dtype);
  } else {
    make(Wanted<2>(function, kNamesOfRms, wrt));
  }
  warn_if_forked();
  without_gil(
      [&] { norm_gradient(kind, rows, factors, number, gradient, {dx.view, dweight.view, dbias.view}, threads); });
  return py::make_tuple(dx.array, dweight.array, dbias.array);
}

py::object differentiate_layer_norm(py::handle x, py::handle weight, py::handle dout, py::handle eps, py::handle wrt,
                                    py::handle num_threads) {
  return differentiate_norm("layer_norm_gradient", NormKind::layer, 1e-5, x, weight, dout, eps, wrt, num_threads);
}

py::object differentiate_rms_norm(py::handle x, py::handle weight, py::handle dout, py::handle eps,
                                  py::handle unit_offset, py::handle wrt, py::handle num_threads) {
  const char* const function = "rms_norm_gradient";
  const bool is_offset = boolean(function, "unit_offset", unit_offset);
  return differentiate_norm(function, is_offset ? NormKind::rms_unit_offset : NormKind::rms, 1e-6, x, weight, dout, eps,
                            wrt, num_threads);
}

py::object activate_array(py::handle x, py::handle activation, py::handle up, py::handle num_threads) {
  const char* const function = "activation";
  const Argument list[] = {{"x", x}, {"up", up}};
  const ArrayArguments arrays(function, list);
  const TensorView given = arrays.tensor(0, 1, kMaxRank), factors = arrays.optional_tensor(1, 1, kMaxRank);
  const Activation which = activation_called(function, activation);
  const ThreadsArgument threads(function, num_threads);
  const NewArray out = arrays.new_array(given.dtype, given.rank, given.extents);
  warn_if_forked();
  without_gil([&] { activate(which, given, factors, out.view, threads); });
  return out.array;
}

py::object differentiate_activation(py::handle x, py::handle dout, py::handle activation, py::handle up,
                                    py::handle num_threads) {
  const char* const function = "activation_gradient";
  const Argument list[] = {{"x", x}, {"dout", dout}, {"up", up}};
  const ArrayArguments arrays(function, list);
  const TensorView given = arrays.tensor(0, 1, kMaxRank), gradient = arrays.tensor(1, 1, kMaxRank);
  const TensorView factors = arrays.optional_tensor(2, 1, kMaxRank);
  const Activation which = activation_called(function, activation);
  const ThreadsArgument threads(function, num_threads);
  const NewArray dx = arrays.new_array(given.dtype, given.rank, given.extents);
  const NewArray dup = factors ? arrays.new_array(given.dtype, given.rank, given.extents) : NewArray{py::none(), {}};
  warn_if_forked();
  without_gil([&] { activation_gradient(which, given, factors, gradient, {dx.view, dup.view}, threads); });
  return py::make_tuple(dx.array, dup.array);
}

}  // namespace

void bind_row_gradients(py::module_& m) {
  m.def("layer_norm_gradient", &differentiate_layer_norm,
        "(x, weight, dout, eps, wrt, num_threads) -> a gradient or None, for x, weight, bias");
  m.def("rms_norm_gradient", &differentiate_rms_norm,
        "(x, weight, dout, eps, unit_offset, wrt, num_threads) -> a gradient or None, for x, weight, and None");
  m.def("activation", &activate_array, "(x, activation, up, num_threads) -> out");
  m.def("activation_gradient", &differentiate_activation,
        "(x, dout, activation, up, num_threads) -> the gradient of x, and that of up or None");
}

}  // namespace mha::bindings

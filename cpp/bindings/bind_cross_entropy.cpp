// Cross-entropy over a vocabulary.
#include <mha/cross_entropy.hpp>

#include <cstdint>
#include <utility>
#include <vector>

#include "array_view.hpp"
#include "bindings.hpp"
#include "scalars.hpp"
#include "wanted.hpp"
#include "without_gil.hpp"

namespace mha::bindings {
namespace {

constexpr std::pair<const char*, Reduction> kReductions[] = {
    {"mean", Reduction::mean}, {"sum", Reduction::sum}, {"none", Reduction::none}};

Reduction reduction_called(const char* function, py::handle name) {
  const char* const rule = "'mean', 'sum' or 'none'";
  if (!PyUnicode_Check(name.ptr())) throw py::type_error(describe(function, "reduction", rule, name));
  for (const auto& [known, reduction] : kReductions)
    if (PyUnicode_CompareWithASCIIString(name.ptr(), known) == 0) return reduction;
  throw py::value_error(describe(function, "reduction", rule, name));
}

py::object compute_cross_entropy(py::handle x, py::handle weight, py::handle targets, py::handle bias,
                                 py::handle ignore_index, py::handle label_smoothing, py::handle reduction,
                                 py::handle wrt, py::handle num_threads) {
  static constexpr const char* kNames[] = {"x", "weight", "bias"};
  const char* const function = "cross_entropy";
  const Argument list[] = {{"x", x}, {"weight", weight}, {"bias", bias}, {"targets", targets}};
  const ArrayArguments arrays(function, list);
  const TensorView rows = arrays.tensor(0, 1, kMaxRank), weights = arrays.tensor(1, 2, 2),
                   biases = arrays.optional_tensor(2, 1, 1);
  Index count = 1;
  for (int axis = 0; axis < rows.rank - 1; ++axis) count *= rows.extents[axis];
  const std::vector<std::int64_t> numbers = arrays.integers(3, count, "must have one for each row of x");
  CrossEntropyOptions options;
  options.ignore_index = integer(function, "ignore_index", ignore_index);
  options.label_smoothing = finite_real(function, "label_smoothing", label_smoothing);
  options.reduction = reduction_called(function, reduction);
  const ThreadsArgument threads(function, num_threads);
  options.num_threads = threads;
  const Wanted<3> wanted(function, kNames, wrt);
  const NewArray dx = wanted.gradient(arrays, 0, rows, rows.dtype);
  const NewArray dweight = wanted.gradient(arrays, 1, weights, rows.dtype);
  const NewArray dbias = wanted.gradient(arrays, 2, biases, rows.dtype);
  const Index losses = options.reduction == Reduction::none ? count : 1;
  const NewArray loss = arrays.new_array(accumulator_of(rows.dtype), 1, &losses);
  warn_if_forked();
  without_gil([&] {
    cross_entropy(rows, weights, biases, numbers.data(), loss.view, {dx.view, dweight.view, dbias.view}, options);
  });
  return py::make_tuple(loss.array, dx.array, dweight.array, dbias.array);
}

}  // namespace

void bind_cross_entropy(py::module_& m) {
  m.def(
      "cross_entropy", &compute_cross_entropy,
      "(x, weight, targets, bias, ignore_index, label_smoothing, reduction, wrt, num_threads) -> loss, and a gradient "
      "or None for x, weight, bias");
}

}  // namespace mha::bindings

// The steps of optimizers.
#include <mha/adamw.hpp>

#include "array_view.hpp"
#include "bindings.hpp"
#include "scalars.hpp"
#include "without_gil.hpp"

namespace mha::bindings {
namespace {

constexpr char kOptimizerStep[] = "AdamW.step";

void step_of_adamw(py::handle weight, py::handle gradient, py::handle m, py::handle v, double lr,
                   const py::tuple& betas, double eps, double weight_decay, double gradient_scale, std::int64_t count,
                   py::handle num_threads) {
  const Argument list[] = {{"weight", weight}, {"m", m}, {"v", v}};
  const ArrayArguments arrays(kOptimizerStep, list);
  const Argument of_gradient[] = {{"gradient", gradient}};
  const MutableTensorView weights = arrays.output(0, 1, kMaxRank), first = arrays.output(1, 1, kMaxRank),
                          second = arrays.output(2, 1, kMaxRank);
  const TensorView gradients = ArrayArguments(kOptimizerStep, of_gradient).tensor(0, 1, kMaxRank);
  const AdamWStep numbers{lr,   betas[0].cast<double>(), betas[1].cast<double>(), eps, weight_decay, gradient_scale,
                          count};
  const ThreadsArgument threads(kOptimizerStep, num_threads);
  warn_if_forked();
  without_gil([&] { adamw(weights, gradients, first, second, numbers, threads); });
}

double squares_of_gradient(py::handle x, py::handle num_threads) {
  const Argument list[] = {{"gradient", x}};
  const TensorView view = ArrayArguments(kOptimizerStep, list).tensor(0, 1, kMaxRank);
  const ThreadsArgument threads(kOptimizerStep, num_threads);
  warn_if_forked();
  double sum = 0;
  without_gil([&] { sum = sum_of_squares(view, threads); });
  return sum;
}

}  // namespace

void bind_optim(py::module_& m) {
  m.def("adamw", &step_of_adamw,
        "(weight, gradient, m, v, lr, betas, eps, weight_decay, gradient_scale, step, num_threads) -> None, in place");
  m.def("sum_of_squares", &squares_of_gradient, "(x, num_threads) -> float");
}

}  // namespace mha::bindings

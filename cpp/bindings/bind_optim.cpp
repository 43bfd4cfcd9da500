// The steps of optimizers.
#include <mha/adamw.hpp>

#include <cstdint>
#include <vector>

#include "array_view.hpp"
#include "bindings.hpp"
#include "scalars.hpp"
#include "without_gil.hpp"

namespace mha::bindings {
namespace {

constexpr char kOptimizerStep[] = "AdamW.step";

void step_of_adamw(py::handle weight, py::handle gradient, py::handle m, py::handle v, double lr,
                   const py::tuple& betas, double eps, double weight_decay, double norm, double max_norm,
                   std::int64_t count, py::handle num_threads) {
  const Argument list[] = {{"weight", weight}, {"m", m}, {"v", v}};
  const ArrayArguments arrays(kOptimizerStep, list);
  const Argument of_gradient[] = {{"gradient", gradient}};
  const MutableTensorView weights = arrays.output(0, 1, kMaxRank), first = arrays.output(1, 1, kMaxRank),
                          second = arrays.output(2, 1, kMaxRank);
  const TensorView gradients = ArrayArguments(kOptimizerStep, of_gradient).tensor(0, 1, kMaxRank);
  const AdamWStep numbers{lr,   betas[0].cast<double>(), betas[1].cast<double>(), eps, weight_decay, norm, max_norm,
                          count};
  const ThreadsArgument threads(kOptimizerStep, num_threads);
  warn_if_forked();
  without_gil([&] { adamw(weights, gradients, first, second, numbers, threads); });
}

double norm_of_gradients(const py::list& gradients, py::handle num_threads) {
  std::vector<TensorView> views;
  for (const py::handle gradient : gradients) {
    const Argument list[] = {{"gradients", gradient}};
    views.push_back(ArrayArguments(kOptimizerStep, list).tensor(0, 1, kMaxRank));
  }
  const ThreadsArgument threads(kOptimizerStep, num_threads);
  warn_if_forked();
  double norm = 0;
  without_gil([&] { norm = gradient_norm(views.data(), static_cast<Index>(views.size()), threads); });
  return norm;
}

}  // namespace

void bind_optim(py::module_& m) {
  m.def("adamw", &step_of_adamw,
        "(weight, gradient, m, v, lr, betas, eps, weight_decay, gradient_norm, max_norm, step, num_threads) -> None, "
        "in place");
  m.def("gradient_norm", &norm_of_gradients, "(gradients, num_threads) -> float");
}

}  // namespace mha::bindings

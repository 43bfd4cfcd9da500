// AdamW, and sums of squares: how they are divided into tasks.
#include "mha/adamw.hpp"

#include <algorithm>
#include <cmath>

#include "checks/adamw.hpp"
#include "execute/dense_rows.hpp"
#include "execute/element_runs.hpp"
#include "platform/dispatch.hpp"
#include "platform/floating_point_state.hpp"
#include "platform/layout.hpp"
#include "platform/parallel.hpp"

namespace mha {
namespace {

/// Multiply-adds that the time of an element is worth: seven numbers from and to memory.
constexpr double kWorkPerElement = 48;

/// The shared state of the tasks of a step.
struct AdamWCall {
  ElementRuns runs;
  const RowKernels* kernels;
  AdamWRun numbers;
  Operand weight, gradient, m, v;
};

void adamw_task(const void* context, Index task, int) {
  const AdamWCall& call = *static_cast<const AdamWCall*>(context);
  call.runs.for_each_run(task, [&](const ElementRun& at) {
    AdamWRun run = call.numbers;
    run.count = at.count;
    run.weight = call.weight.at(at);
    run.gradient = call.gradient.at(at);
    run.m = call.m.at(at);
    run.v = call.v.at(at);
    call.kernels->adamw(run);
  });
}

/// The shared state of the tasks of a sum.
struct SquaresCall {
  ElementRuns runs;
  double (*squares)(const void* elements, Index count);
  Operand x;
  double* sums;  // of each task
};

void squares_task(const void* context, Index task, int) {
  const SquaresCall& call = *static_cast<const SquaresCall*>(context);
  double sum = 0;
  call.runs.for_each_run(task, [&](const ElementRun& at) { sum += call.squares(call.x.at(at), at.count); });
  call.sums[task] = sum;
}

}  // namespace

void adamw(const MutableTensorView& weight, const TensorView& gradient, const MutableTensorView& m,
           const MutableTensorView& v, const AdamWStep& step, int num_threads) {
  const FloatingPointState state;
  validate_adamw(weight, gradient, m, v, step);
  const ElementRuns runs(weight);
  if (runs.tasks() == 0) return;
  Layout layout;
  const DenseInput read[] = {{weight, layout}, {gradient, layout}, {m, layout}, {v, layout}};
  const int threads = threads_for(num_threads, runs.tasks(), runs.elements() * kWorkPerElement);
  const CallMemory memory(layout, threads, 0);
  TensorView rows[4];
  for (int i = 0; i < 4; ++i) rows[i] = read[i].gather(memory.data());

  const double of_m = 1 - std::pow(step.beta1, double(step.step));
  const double of_v = 1 - std::pow(step.beta2, double(step.step));
  AdamWRun numbers{};
  numbers.gradient_scale = step.gradient_scale;
  numbers.decay = 1 - step.lr * step.weight_decay;
  numbers.beta1 = step.beta1;
  numbers.beta2 = step.beta2;
  numbers.rate = step.lr / of_m;
  numbers.root = 1 / std::sqrt(of_v);
  numbers.eps = step.eps;
  const RowKernels& kernels = active_kernels().kernels[static_cast<int>(gradient.dtype)].rows;
  const AdamWCall call{runs, &kernels, numbers, operand(rows[0]), operand(rows[1]), operand(rows[2]), operand(rows[3])};
  const Phase phase{runs.tasks(), &adamw_task, &call};
  run_phases(&phase, 1, threads);
  const MutableTensorView* const written[] = {&weight, nullptr, &m, &v};
  for (int i = 0; i < 4; ++i)
    if (written[i]) read[i].scatter(*written[i], memory.data());
}

double sum_of_squares(const TensorView& x, int num_threads) {
  const FloatingPointState state;
  validate_sum_of_squares(x);
  const ElementRuns runs(x);
  if (runs.tasks() == 0) return 0;
  Layout layout;
  const DenseInput input(x, layout);
  const std::size_t sums_at = layout.take(double(runs.tasks()) * sizeof(double));
  const int threads = threads_for(num_threads, runs.tasks(), runs.elements() * kWorkPerElement / 4);
  const CallMemory memory(layout, threads, 0);
  double* const sums = reinterpret_cast<double*>(memory.data() + sums_at);
  const SquaresCall call{runs, active_kernels().kernels[static_cast<int>(x.dtype)].rows.squares,
                         operand(input.gather(memory.data())), sums};
  const Phase phase{runs.tasks(), &squares_task, &call};
  run_phases(&phase, 1, threads);
  double total = 0;
  for (Index task = 0; task < runs.tasks(); ++task) total += sums[task];
  return total;
}

}  // namespace mha

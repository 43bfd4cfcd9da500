// Activations of whole tensors, and their gradients: how they are divided into tasks.
#include "mha/activate.hpp"

#include "checks/row_gradients.hpp"
#include "execute/dense_rows.hpp"
#include "execute/element_runs.hpp"
#include "platform/dispatch.hpp"
#include "platform/floating_point_state.hpp"
#include "platform/layout.hpp"
#include "platform/parallel.hpp"

namespace mha {
namespace {

/// Multiply-adds that the time of an element is worth.
constexpr double kWorkPerElement = 32;

/// The shared state of the tasks of a call.
struct ActivationCall {
  void (*kernel)(const ActivationRun& run);
  Activation activation;
  ElementRuns runs;
  Operand x, up, dout, out, dup;
};

void activate_task(const void* context, Index task, int) {
  const ActivationCall& call = *static_cast<const ActivationCall*>(context);
  call.runs.for_each_run(task, [&](const ElementRun& at) {
    call.kernel(
        {call.activation, at.count, call.x.at(at), call.up.at(at), call.dout.at(at), call.out.at(at), call.dup.at(at)});
  });
}

void run(Activation activation, bool is_gradient, const TensorView& x, const TensorView& up, const TensorView& dout,
         const MutableTensorView& out, const MutableTensorView& dup, int num_threads) {
  Layout layout;
  const DenseInput inputs[] = {{x, layout}, {up, layout}, {dout, layout}};
  const DenseOutput outputs[] = {{out, layout}, {dup, layout}};
  const ElementRuns runs(x);
  if (runs.tasks() == 0) return;
  const int threads = threads_for(num_threads, runs.tasks(), runs.elements() * kWorkPerElement);
  const CallMemory memory(layout, threads, 0);

  const RowKernels& kernels = active_kernels().kernels[static_cast<int>(x.dtype)].rows;
  ActivationCall call{is_gradient ? kernels.activation_gradient : kernels.activate,
                      activation,
                      runs,
                      operand(inputs[0].gather(memory.data())),
                      operand(inputs[1].gather(memory.data())),
                      operand(inputs[2].gather(memory.data())),
                      operand(outputs[0].rows(memory.data())),
                      operand(outputs[1].rows(memory.data()))};
  const Phase phase{runs.tasks(), &activate_task, &call};
  run_phases(&phase, 1, threads);
  for (const DenseOutput& one : outputs) one.scatter(memory.data());
}

}  // namespace

void activate(Activation activation, const TensorView& x, const TensorView& up, const MutableTensorView& out,
              int num_threads) {
  const FloatingPointState state;
  validate_activate(x, up, out);
  run(activation, false, x, up, {}, out, {}, num_threads);
}

void activation_gradient(Activation activation, const TensorView& x, const TensorView& up, const TensorView& dout,
                         const ActivationGradients& gradients, int num_threads) {
  const FloatingPointState state;
  validate_activation_gradient(x, up, dout, gradients);
  if (gradients.x || gradients.up) run(activation, true, x, up, dout, gradients.x, gradients.up, num_threads);
}

}  // namespace mha

// Activations of whole tensors, and their gradients: how they are divided into tasks.
#include "mha/activate.hpp"

#include <algorithm>

#include "checks/row_gradients.hpp"
#include "execute/dense_rows.hpp"
#include "platform/dispatch.hpp"
#include "platform/floating_point_state.hpp"
#include "platform/layout.hpp"
#include "platform/parallel.hpp"

namespace mha {
namespace {

/// Elements of a task: 64 KiB of f32 in each tensor.
constexpr Index kTaskElements = 16384;

/// Multiply-adds that the time of an element is worth.
constexpr double kWorkPerElement = 32;

/// A tensor of the call as rows, of which one may be missing.
struct Operand {
  std::byte* data;
  Index row_bytes;

  std::byte* at(Index row, Index column, Index size) const {
    return data ? data + row * row_bytes + column * size : nullptr;
  }
};

template <class View>
Operand operand(const View& rows) {
  return {static_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(rows.data))),
          rows.strides[0] * size_of(rows.dtype)};
}

/// The shared state of the tasks of a call.
struct ActivationCall {
  void (*kernel)(const ActivationRun& run);
  Activation activation;
  Index rows, columns, size;
  Operand x, up, dout, out, dup;
};

/// One task: a run of elements, from row to row.
void activate_task(const void* context, Index task, int) {
  const ActivationCall& call = *static_cast<const ActivationCall*>(context);
  const Index last = std::min((task + 1) * kTaskElements, call.rows * call.columns);
  for (Index i = task * kTaskElements; i < last;) {
    const Index row = i / call.columns, column = i % call.columns, count = std::min(call.columns - column, last - i);
    const auto at = [&](const Operand& tensor) { return tensor.at(row, column, call.size); };
    call.kernel({call.activation, count, at(call.x), at(call.up), at(call.dout), at(call.out), at(call.dup)});
    i += count;
  }
}

void run(Activation activation, bool is_gradient, const TensorView& x, const TensorView& up, const TensorView& dout,
         const MutableTensorView& out, const MutableTensorView& dup, int num_threads) {
  Layout layout;
  const DenseInput inputs[] = {{x, layout}, {up, layout}, {dout, layout}};
  const DenseOutput outputs[] = {{out, layout}, {dup, layout}};
  Index rows = 1, columns = x.extents[x.rank - 1];
  for (int axis = 0; axis < x.rank - 1; ++axis) rows *= x.extents[axis];
  if (rows * columns == 0) return;
  const Index tasks = (rows * columns + kTaskElements - 1) / kTaskElements;
  const int threads = threads_for(num_threads, tasks, double(rows) * double(columns) * kWorkPerElement);
  const CallMemory memory(layout, threads, 0);

  const RowKernels& kernels = active_kernels().kernels[static_cast<int>(x.dtype)].rows;
  ActivationCall call{is_gradient ? kernels.activation_gradient : kernels.activate,
                      activation,
                      rows,
                      columns,
                      size_of(x.dtype),
                      operand(inputs[0].gather(memory.data())),
                      operand(inputs[1].gather(memory.data())),
                      operand(inputs[2].gather(memory.data())),
                      operand(outputs[0].rows(memory.data())),
                      operand(outputs[1].rows(memory.data()))};
  const Phase phase{tasks, &activate_task, &call};
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

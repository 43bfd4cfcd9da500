// Gradients of norms: how they are divided into tasks.
#include "mha/norm_gradient.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "checks/row_gradients.hpp"
#include "execute/dense_rows.hpp"
#include "platform/cancellation.hpp"
#include "platform/dispatch.hpp"
#include "platform/floating_point_state.hpp"
#include "platform/layout.hpp"
#include "platform/parallel.hpp"

namespace mha {
namespace {

/// Rows of a span; norm_gradient.hpp states the number. Each span has its own sums, which are then added in order. They
/// take 1/32 of the memory of x.
constexpr Index kSpanRows = 64;

/// Multiply-adds that the time of an element is worth: memory and some additions.
constexpr double kWorkPerElement = 16;

/// The shared state of the tasks of a call.
struct NormGradientRun {
  const RowKernels* kernels;
  Index size;  // of an element
  NormGradientTile tile;
  // Of each span the sums for weight and bias, where they are wanted: sums [spans][sums_of_span][padded columns].
  std::byte *sums, *dweight, *dbias;
  Index spans, sums_of_span, sum_bytes, sum_columns;
  Workers workers;  // scratch of each worker: sum_bytes
};

/// One task: the rows of one span.
void differentiate_span(const void* context, Index span, int worker) {
  const NormGradientRun& run = *static_cast<const NormGradientRun*>(context);
  NormGradientTile tile = run.tile;
  const Index first = span * kSpanRows;
  tile.rows = std::min(kSpanRows, run.tile.rows - first);
  tile.x = static_cast<const std::byte*>(tile.x) + first * tile.x_row * run.size;
  tile.dout = static_cast<const std::byte*>(tile.dout) + first * tile.dout_row * run.size;
  if (tile.dx) tile.dx = static_cast<std::byte*>(tile.dx) + first * tile.dx_row * run.size;
  if (run.sums_of_span > 0) {
    std::byte* const sums = run.sums + span * run.sums_of_span * run.sum_bytes;
    std::memset(sums, 0, static_cast<std::size_t>(run.sums_of_span * run.sum_bytes));
    if (run.dweight) tile.dweight = sums;
    if (run.dbias) tile.dbias = sums + (run.sums_of_span - 1) * run.sum_bytes;
  }
  tile.factors = run.workers.scratch_of(worker);
  run.kernels->norm_gradient(tile);
}

/// One task: the gradient of the weight, or of the bias.
void add_sums(const void* context, Index task, int) {
  const NormGradientRun& run = *static_cast<const NormGradientRun*>(context);
  std::byte* const out = task == 0 && run.dweight ? run.dweight : run.dbias;
  run.kernels->add_spans(
      {run.spans, run.tile.columns, run.sums + task * run.sum_bytes, run.sums_of_span * run.sum_columns, out});
}

}  // namespace

void norm_gradient(NormKind kind, const TensorView& x, const TensorView& weight, double eps, const TensorView& dout,
                   const NormGradients& gradients, int num_threads) {
  const FloatingPointState state;
  validate_norm_gradient(kind, x, weight, eps, dout, gradients);
  if (!gradients.x && !gradients.weight && !gradients.bias) return;

  Layout layout;
  const DenseInput given_x(x, layout), given_weight(weight, layout), given_dout(dout, layout);
  const DenseOutput dx(gradients.x, layout), dweight(gradients.weight, layout), dbias(gradients.bias, layout);
  Index rows = 1;
  for (int axis = 0; axis < x.rank - 1; ++axis) rows *= x.extents[axis];
  const Index columns = x.extents[x.rank - 1], number = size_of(accumulator_of(x.dtype));
  NormGradientRun run{};
  run.spans = (rows + kSpanRows - 1) / kSpanRows;
  run.sums_of_span = (gradients.weight ? 1 : 0) + (gradients.bias ? 1 : 0);
  run.sum_bytes = static_cast<Index>(padded(static_cast<std::size_t>(columns * number)));
  run.sum_columns = run.sum_bytes / number;
  const std::size_t sums_at = layout.take(double(run.spans) * double(run.sums_of_span) * double(run.sum_bytes));
  const int threads =
      threads_for(num_threads, std::max<Index>(run.spans, 1), double(rows) * double(columns) * kWorkPerElement);
  const CallMemory memory(layout, threads, static_cast<std::size_t>(run.sum_bytes));

  const TensorView x_rows = given_x.gather(memory.data()), dout_rows = given_dout.gather(memory.data());
  const MutableTensorView dx_rows = dx.rows(memory.data());
  run.kernels = &active_kernels().kernels[static_cast<int>(x.dtype)].rows;
  run.size = size_of(x.dtype);
  run.tile.kind = kind;
  run.tile.rows = rows;
  run.tile.columns = columns;
  run.tile.x = x_rows.data;
  run.tile.x_row = x_rows.strides[0];
  run.tile.dout = dout_rows.data;
  run.tile.dout_row = dout_rows.strides[0];
  run.tile.weight = given_weight.gather(memory.data()).data;
  run.tile.eps = eps;
  run.tile.dx = dx_rows.data;
  run.tile.dx_row = dx_rows.strides[0];
  run.sums = memory.data() + sums_at;
  run.workers = memory.workers();
  run.dweight = static_cast<std::byte*>(dweight.rows(memory.data()).data);
  run.dbias = static_cast<std::byte*>(dbias.rows(memory.data()).data);
  const Phase phases[] = {{run.spans, &differentiate_span, &run}, {run.sums_of_span, &add_sums, &run}};
  run_phases(phases, 2, threads);
  for (const DenseOutput* out : {&dx, &dweight, &dbias}) out->scatter(memory.data());
}

}  // namespace mha

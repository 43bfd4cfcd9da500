#include "execute/run_linear_gradient.hpp"

#include <algorithm>
#include <cstring>

#include "platform/cancellation.hpp"
#include "platform/dispatch.hpp"
#include "platform/layout.hpp"
#include "platform/parallel.hpp"
#include "views/leading_axes.hpp"

namespace mha {
namespace {

/// Rows whose products are summed from 0, before the sum is added to the sums of the rows before: as many terms as a
/// partial sum of a projection has. A panel of them takes 32 KB, in level 1.
constexpr Index kSpanRows = 128;

/// The largest block of the gradient of a weight that a task sums: 192 x 384 sums take 288 KB in f32, the rows of a span
/// for it another 288 KB, and both stay in level 2. A block of 192 reads each row of x once for so many products that
/// copying it to a panel takes 3 % of the time.
constexpr Index kMostOutFeatures = 192, kMostPanels = 6;

/// Rows of registers: blocks of whole strips of them leave no strip lower than the others.
constexpr Index kStripRows = 6;

constexpr Index ceil_div(Index n, Index by) { return (n + by - 1) / by; }

/// Rows of elements with any strides, as numbers.
struct RowsToRead {
  RowsToRead() = default;
  RowsToRead(const TensorView& given, const KernelTable& table)
      : view(given), widen(table.kernels[static_cast<int>(given.dtype)].widen) {
    add_leading_axes(view, kMaxRank);
  }

  /// Numbers [columns] from `first` on, of one row. `near` has room for `columns` elements.
  void read(Index row, Index first, Index columns, void* to, std::byte* near) const {
    const Index k = row % view.extents[2], j = row / view.extents[2] % view.extents[1],
                i = row / view.extents[2] / view.extents[1];
    const Index size = size_of(view.dtype), step = view.strides[3];
    const std::byte* const from =
        static_cast<const std::byte*>(view.data) +
        (i * view.strides[0] + j * view.strides[1] + k * view.strides[2] + first * step) * size;
    if (step == 1) return widen(from, to, columns);
    for (Index c = 0; c < columns; ++c) std::memcpy(near + c * size, from + c * step * size, std::size_t(size));
    widen(near, to, columns);
  }

  TensorView view;
  void (*widen)(const void* elements, void* numbers, Index count) = nullptr;
};

/// The shared state of the tasks of a call. A task sums a block of the gradient of the weight; the first block of
/// columns sums the gradient of the bias, too.
struct LinearGradientRun {
  RowsToRead x, dout;
  MutableTensorView weight, bias;
  Index rows, out_features, in_features;
  const DTypeKernels *elements, *sums;
  Index out_blocks, panel_blocks, panels;
  Workers workers;
  std::size_t dout_at, x_at, weight_at, bias_at, span_bias_at, near_at;  // in the scratch of a worker
};

/// Column sums of `rows` rows are added to `sums`.
template <class T>
void add_columns(const T* numbers, Index row, Index rows, Index columns, T* span, T* sums) {
  std::fill_n(span, columns, T(0));
  for (Index r = 0; r < rows; ++r)
    for (Index c = 0; c < columns; ++c) span[c] += numbers[r * row + c];
  for (Index c = 0; c < columns; ++c) sums[c] += span[c];
}

/// Rounds a row of sums to elements, and stores it.
void store(const LinearGradientRun& run, const std::byte* numbers, Index columns, std::byte* to, Index step,
           std::byte* near) {
  if (step == 1) return run.elements->round(numbers, to, columns);
  const Index size = size_of(run.dout.view.dtype);
  run.elements->round(numbers, near, columns);
  for (Index c = 0; c < columns; ++c) std::memcpy(to + c * step * size, near + c * size, std::size_t(size));
}

template <class T>
void sum_block(const LinearGradientRun& run, Index task, std::byte* scratch) {
  constexpr Index kWidth = kPanelBytes / Index(sizeof(T));
  const Index out_block = task / run.panel_blocks, panel_block = task % run.panel_blocks;
  const auto strips = ceil_div(run.out_features, kStripRows);
  const Index first_out = strips * out_block / run.out_blocks * kStripRows,
              last_out = std::min(run.out_features, strips * (out_block + 1) / run.out_blocks * kStripRows);
  const Index first_panel = run.panels * panel_block / run.panel_blocks,
              last_panel = run.panels * (panel_block + 1) / run.panel_blocks;
  const Index outs = last_out - first_out, row = (last_panel - first_panel) * kWidth, outs_row = outs;
  const bool sums_bias = run.bias && panel_block == 0;
  T* const dout = reinterpret_cast<T*>(scratch + run.dout_at);
  T* const x = reinterpret_cast<T*>(scratch + run.x_at);
  T* const weight = reinterpret_cast<T*>(scratch + run.weight_at);
  T* const bias = reinterpret_cast<T*>(scratch + run.bias_at);
  std::byte* const near = scratch + run.near_at;
  if (run.weight && run.rows == 0) std::fill_n(weight, outs * row, T(0));
  if (sums_bias) std::fill_n(bias, outs, T(0));
  Cancellation& cancellation = Cancellation::of_this_thread();
  for (Index first = 0; first < run.rows && !cancellation.is_set(); first += kSpanRows) {
    const Index count = std::min(kSpanRows, run.rows - first);
    for (Index r = 0; r < count; ++r) run.dout.read(first + r, first_out, outs, dout + r * outs_row, near);
    if (sums_bias) add_columns(dout, outs_row, count, outs, reinterpret_cast<T*>(scratch + run.span_bias_at), bias);
    if (!run.weight) continue;
    for (Index p = first_panel; p < last_panel; ++p) {
      const Index columns = std::min(kWidth, run.in_features - p * kWidth);
      for (Index r = 0; r < count; ++r) {
        T* const to = x + r * kWidth;
        run.x.read(first + r, p * kWidth, columns, to, near);
        std::fill_n(to + columns, kWidth - columns, T(0));
      }
      run.sums->add_products(
          {outs, columns, count, dout, 1, outs_row, x, kWidth, weight + (p - first_panel) * kWidth, row, first == 0});
    }
  }
  const Index size = size_of(run.dout.view.dtype);
  const auto at = [&](const MutableTensorView& view, Index offset) {
    return static_cast<std::byte*>(view.data) + offset * size;
  };
  if (sums_bias)
    store(run, reinterpret_cast<const std::byte*>(bias), outs, at(run.bias, first_out * run.bias.strides[0]),
          run.bias.strides[0], near);
  if (!run.weight) return;
  const Index first_in = first_panel * kWidth, columns = std::min(run.in_features - first_in, row);
  for (Index o = 0; o < outs; ++o)
    store(run, reinterpret_cast<const std::byte*>(weight + o * row), columns,
          at(run.weight, (first_out + o) * run.weight.strides[0] + first_in * run.weight.strides[1]),
          run.weight.strides[1], near);
}

void run_task(const void* context, Index task, int worker) {
  const LinearGradientRun& run = *static_cast<const LinearGradientRun*>(context);
  std::byte* const scratch = run.workers.scratch_of(worker);
  if (accumulator_of(run.dout.view.dtype) == DType::f64)
    sum_block<double>(run, task, scratch);
  else
    sum_block<float>(run, task, scratch);
}

}  // namespace

void run_linear_gradient(const TensorView& x, const TensorView& dout, const MutableTensorView& weight,
                         const MutableTensorView& bias, int num_threads) {
  const KernelTable& table = active_kernels();
  const DType sums = accumulator_of(dout.dtype);
  LinearGradientRun run{};
  run.dout = RowsToRead(dout, table);
  if (weight) run.x = RowsToRead(x, table);
  run.weight = weight;
  run.bias = bias;
  run.out_features = dout.extents[dout.rank - 1];
  run.rows = 1;
  for (int axis = 0; axis < dout.rank - 1; ++axis) run.rows *= dout.extents[axis];
  run.in_features = weight ? weight.extents[1] : 0;
  run.elements = &table.kernels[static_cast<int>(dout.dtype)];
  run.sums = &table.kernels[static_cast<int>(sums)];

  const Index width = kPanelBytes / size_of(sums), strips = ceil_div(run.out_features, kStripRows);
  run.panels = ceil_div(run.in_features, width);
  run.panel_blocks = std::max<Index>(1, ceil_div(run.panels, kMostPanels));
  run.out_blocks = ceil_div(run.out_features, kMostOutFeatures);
  const double work = double(run.rows) * double(run.out_features) * double(run.in_features + 4);
  const int threads = threads_for(num_threads, strips * std::max<Index>(1, run.panels), work);
  // A few tasks for each thread, if there is so much.
  constexpr Index kTasksPerThread = 3, kLeastStrips = 8;
  const Index enough = threads == 1 ? 1 : kTasksPerThread * threads;
  run.out_blocks = std::max(run.out_blocks, std::min(ceil_div(enough, run.panel_blocks), strips / kLeastStrips));
  run.panel_blocks =
      std::max(run.panel_blocks, std::min(ceil_div(enough, run.out_blocks), std::max<Index>(1, run.panels)));

  const double outs = double(ceil_div(strips, run.out_blocks) * kStripRows),
               columns = double(ceil_div(run.panels, run.panel_blocks) * width), size = double(size_of(sums));
  Layout scratch;
  run.dout_at = scratch.take(double(kSpanRows) * outs * size);
  run.x_at = scratch.take(weight ? double(kSpanRows) * double(width) * size : 0);
  run.weight_at = scratch.take(weight ? outs * columns * size : 0);
  run.bias_at = scratch.take(outs * size);
  run.span_bias_at = scratch.take(outs * size);
  run.near_at = scratch.take(std::max(outs, columns) * size);
  const Index tasks = run.out_blocks * run.panel_blocks;
  const CallMemory memory(Layout(), int(std::min<Index>(threads, tasks)), scratch.total());
  run.workers = memory.workers();
  const Phase phase{tasks, &run_task, &run};
  run_phases(&phase, 1, memory.workers().threads);
}

}  // namespace mha

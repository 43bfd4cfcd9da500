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
/// partial sum of a projection has. A panel of them takes 32 KB. While they are multiplied, the next ones are prefetched.
constexpr Index kSpanRows = 128;

/// The largest block of the gradient of a weight that a task sums, 384 x 384 in f32. Every row of both factors is copied
/// once for each block in its row or column of blocks, so large blocks copy less: blocks of 192 x 384 take 1.05 times as
/// long, 96 x 384 1.15 times (Zen 5). The sums take 576 KB of level 2, the rows of a span 224 KB.
constexpr Index kMostOutFeatures = 384, kMostPanels = 6;

/// Rows of registers: blocks of whole strips of them leave no strip lower than the others.
constexpr Index kStripRows = 6;

/// Bytes of a row of dout in a slice of a block, 4 strips in f32. A product reads a slice down its columns: 128 rows of
/// 12 KB in all stay in level 1 next to a panel, while rows of a whole block would lie in few sets of that cache.
constexpr Index kSliceBytes = 96;

constexpr Index ceil_div(Index n, Index by) { return (n + by - 1) / by; }

/// Rows of elements with any strides, as numbers.
struct RowsToRead {
  RowsToRead() = default;
  RowsToRead(const TensorView& given, const KernelTable& table)
      : view(given), widen(table.kernels[static_cast<int>(given.dtype)].widen) {
    add_leading_axes(view, kMaxRank);
  }

  const std::byte* at(Index row, Index column) const {
    const Index k = row % view.extents[2], j = row / view.extents[2] % view.extents[1],
                i = row / view.extents[2] / view.extents[1];
    return static_cast<const std::byte*>(view.data) +
           (i * view.strides[0] + j * view.strides[1] + k * view.strides[2] + column * view.strides[3]) *
               size_of(view.dtype);
  }

  /// Numbers [columns] from `first` on, of one row: where they lie, or in `to`. `near` has room for as many elements.
  template <class T>
  const T* read(Index row, Index first, Index columns, T* to, std::byte* near) const {
    const Index size = size_of(view.dtype), step = view.strides[3];
    const std::byte* from = at(row, first);
    if (step != 1) {
      for (Index c = 0; c < columns; ++c) std::memcpy(near + c * size, from + c * step * size, std::size_t(size));
      from = near;
    }
    if (size == sizeof(T)) return reinterpret_cast<const T*>(from);
    widen(from, to, columns);
    return to;
  }

  /// Has the product `tile`, which is number `i` of `count`, prefetch its share of the columns [first, first + columns)
  /// of `rows` rows from `row` on. It is a hint: rows of a batch that do not lie evenly are missed.
  void prefetch(ProductTile& tile, Index i, Index count, Index row, Index rows, Index first, Index columns) const {
    const Index begin = rows * i / count, size = size_of(view.dtype);
    tile.upcoming_rows = rows * (i + 1) / count - begin;
    if (tile.upcoming_rows == 0 || view.strides[3] != 1) return;
    tile.upcoming = at(row + begin, first);
    tile.upcoming_row = view.strides[2] * size;
    tile.upcoming_bytes = columns * size;
  }

  TensorView view;
  void (*widen)(const void* elements, void* numbers, Index count) = nullptr;
};

/// The shared state of the tasks of a call. A task sums a block of the gradient of the weight; the first block of
/// columns sums the gradient of the bias, too.
struct LinearGradientRun {
  RowsToRead x, dout;
  MutableTensorView weight, bias;
  bool adds;
  Index rows, out_features, in_features;
  const DTypeKernels *elements, *sums;
  Index out_blocks, panel_blocks, panels;
  Workers workers;
  std::size_t dout_at, row_at, x_at, weight_at, bias_at, near_at;  // in the scratch of a worker
};

/// A span of dout as slices of columns, [slice][kSpanRows][kSliceBytes].
template <class T>
struct Slices {
  static constexpr Index kColumns = kSliceBytes / Index(sizeof(T));

  T* at(Index slice, Index row) const { return data + (slice * kSpanRows + row) * kColumns; }
  Index columns(Index slice) const { return std::min(kColumns, outs - slice * kColumns); }
  Index count() const { return ceil_div(outs, kColumns); }

  void store(Index row, const T* numbers) const {
    Index slice = 0;
    for (; (slice + 1) * kColumns <= outs; ++slice) std::copy_n(numbers + slice * kColumns, kColumns, at(slice, row));
    if (slice < count()) std::copy_n(numbers + slice * kColumns, columns(slice), at(slice, row));
  }

  T* data;
  Index outs;
};

/// Column sums of `rows` rows are added to `sums`.
template <class T>
void add_columns(const Slices<T>& dout, Index rows, T* sums) {
  for (Index slice = 0; slice < dout.count(); ++slice) {
    T span[Slices<T>::kColumns] = {};
    for (Index r = 0; r < rows; ++r)
      for (Index c = 0; c < Slices<T>::kColumns; ++c) span[c] += dout.at(slice, r)[c];
    for (Index c = 0; c < dout.columns(slice); ++c) sums[slice * Slices<T>::kColumns + c] += span[c];
  }
}

/// Rounds a row of sums to elements, and stores it.
void store(const LinearGradientRun& run, const std::byte* numbers, Index columns, std::byte* to, Index step,
           std::byte* near) {
  if (step == 1) return run.elements->round(numbers, to, columns);
  const Index size = size_of(run.dout.view.dtype);
  run.elements->round(numbers, near, columns);
  for (Index c = 0; c < columns; ++c) std::memcpy(to + c * step * size, near + c * size, std::size_t(size));
}

/// Reads numbers that are sums.
template <class T>
void load(const std::byte* from, Index step, Index columns, T* to) {
  for (Index c = 0; c < columns; ++c) std::memcpy(to + c, from + c * step * Index(sizeof(T)), sizeof(T));
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
  const Index outs = last_out - first_out, panels = last_panel - first_panel, row = panels * kWidth;
  const Index first_in = first_panel * kWidth, columns = std::min(run.in_features - first_in, row);
  const bool sums_bias = run.bias && panel_block == 0;
  const Slices<T> dout{reinterpret_cast<T*>(scratch + run.dout_at), outs};
  T* const row_near = reinterpret_cast<T*>(scratch + run.row_at);
  T* const x = reinterpret_cast<T*>(scratch + run.x_at);
  T* const weight = reinterpret_cast<T*>(scratch + run.weight_at);
  T* const bias = reinterpret_cast<T*>(scratch + run.bias_at);
  std::byte* const near = scratch + run.near_at;
  if (run.weight && run.rows == 0) std::fill_n(weight, outs * row, T(0));
  if (sums_bias) std::fill_n(bias, outs, T(0));
  const Index size = size_of(run.dout.view.dtype);
  const auto at = [&](const MutableTensorView& view, Index offset) {
    return static_cast<std::byte*>(view.data) + offset * size;
  };
  const auto weight_at = [&](Index out) {
    return at(run.weight, (first_out + out) * run.weight.strides[0] + first_in * run.weight.strides[1]);
  };
  if (run.adds) {
    for (Index o = 0; run.weight && o < outs; ++o) load(weight_at(o), run.weight.strides[1], columns, weight + o * row);
    if (sums_bias) load(at(run.bias, first_out * run.bias.strides[0]), run.bias.strides[0], outs, bias);
  }
  // A panel of x: it is in level 1 when the first product reads it.
  const auto read_panel = [&](Index p, Index first, Index count) {
    const Index width = std::min(kWidth, columns - p * kWidth);
    for (Index r = 0; r < count; ++r) {
      T* const to = x + r * kWidth;
      const T* const from = run.x.read(first + r, first_in + p * kWidth, width, to, near);
      if (from != to) std::copy_n(from, width, to);
      std::fill_n(to + width, kWidth - width, T(0));
    }
  };
  Cancellation& cancellation = Cancellation::of_this_thread();
  for (Index first = 0; first < run.rows && !cancellation.is_set(); first += kSpanRows) {
    const Index count = std::min(kSpanRows, run.rows - first);
    for (Index r = 0; r < count; ++r) dout.store(r, run.dout.read(first + r, first_out, outs, row_near, near));
    if (sums_bias) add_columns(dout, count, bias);
    if (!run.weight) continue;
    const Index next = first + count, next_count = std::min(kSpanRows, run.rows - next);
    const Index products = panels * dout.count(), half = (products + 1) / 2;
    for (Index i = 0; i < products; ++i) {
      const Index p = i / dout.count(), slice = i % dout.count();
      if (slice == 0) read_panel(p, first, count);
      ProductTile tile{};
      tile.rows = dout.columns(slice);
      tile.columns = std::min(kWidth, columns - p * kWidth);
      tile.depth = count;
      tile.a = dout.at(slice, 0);
      tile.a_row = 1;
      tile.a_step = dout.kColumns;
      tile.b = x;
      tile.b_row = kWidth;
      tile.out = weight + slice * dout.kColumns * row + p * kWidth;
      tile.out_row = row;
      tile.starts = first == 0 && !run.adds;
      if (i < half)
        run.x.prefetch(tile, i, half, next, next_count, first_in, columns);
      else
        run.dout.prefetch(tile, i - half, products - half, next, next_count, first_out, outs);
      run.sums->add_products(tile);
    }
  }
  if (sums_bias)
    store(run, reinterpret_cast<const std::byte*>(bias), outs, at(run.bias, first_out * run.bias.strides[0]),
          run.bias.strides[0], near);
  if (!run.weight) return;
  for (Index o = 0; o < outs; ++o)
    store(run, reinterpret_cast<const std::byte*>(weight + o * row), columns, weight_at(o), run.weight.strides[1],
          near);
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
                         const MutableTensorView& bias, int num_threads, bool adds) {
  const KernelTable& table = active_kernels();
  const DType sums = accumulator_of(dout.dtype);
  LinearGradientRun run{};
  run.dout = RowsToRead(dout, table);
  if (weight) run.x = RowsToRead(x, table);
  run.weight = weight;
  run.bias = bias;
  run.adds = adds;
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
  // Equal tasks, as many for each thread, unless blocks would be lower than two slices.
  constexpr Index kLeastStrips = 8;
  const Index tasks_wanted = ceil_div(run.out_blocks * run.panel_blocks, threads) * threads;
  run.out_blocks = std::max(run.out_blocks, std::min(ceil_div(tasks_wanted, run.panel_blocks), strips / kLeastStrips));
  run.panel_blocks =
      std::max(run.panel_blocks, std::min(ceil_div(tasks_wanted, run.out_blocks), std::max<Index>(1, run.panels)));

  const double outs = double(ceil_div(strips, run.out_blocks) * kStripRows),
               columns = double(ceil_div(run.panels, run.panel_blocks) * width), size = double(size_of(sums));
  Layout scratch;
  run.dout_at = scratch.take(double(kSpanRows) * (outs * size + double(kSliceBytes)));
  run.row_at = scratch.take(outs * size);
  run.x_at = scratch.take(weight ? double(kSpanRows) * double(width) * size : 0);
  run.weight_at = scratch.take(weight ? outs * columns * size : 0);
  run.bias_at = scratch.take(outs * size);
  run.near_at = scratch.take(std::max(outs, columns) * size);
  const Index tasks = run.out_blocks * run.panel_blocks;
  const CallMemory memory(Layout(), int(std::min<Index>(threads, tasks)), scratch.total());
  run.workers = memory.workers();
  const Phase phase{tasks, &run_task, &run};
  run_phases(&phase, 1, memory.workers().threads);
}

}  // namespace mha

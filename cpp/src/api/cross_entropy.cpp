// Cross-entropy over a vocabulary: rows are gathered in chunks, whose logits become their gradients in place.
#include "mha/cross_entropy.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "checks/cross_entropy.hpp"
#include "execute/run_linear_gradient.hpp"
#include "kernels/kernel_table.hpp"
#include "mha/linear.hpp"
#include "platform/dispatch.hpp"
#include "platform/floating_point_state.hpp"
#include "platform/layout.hpp"
#include "platform/parallel.hpp"
#include "views/copy_elements.hpp"
#include "views/leading_axes.hpp"

namespace mha {
namespace {

/// Logits of a chunk: 32 MiB of f32. A chunk has whole spans of run_linear_gradient(), so that its size changes no bit.
constexpr Index kChunkLogits = Index{1} << 23, kSpanRows = 128;

/// Rows of a task of the kernel.
constexpr Index kTaskRows = 4;

/// Multiply-adds that the time of a logit is worth: an exponential, and some passes over a cache.
constexpr double kWorkPerLogit = 48;

/// The shared state of the tasks of a chunk.
struct EntropyRun {
  void (*kernel)(const CrossEntropyTile& tile);
  CrossEntropyTile chunk;
  Index logit_bytes;
};

void entropy_task(const void* context, Index task, int) {
  const EntropyRun& run = *static_cast<const EntropyRun*>(context);
  CrossEntropyTile tile = run.chunk;
  const Index first = task * kTaskRows;
  tile.rows = std::min(kTaskRows, tile.rows - first);
  tile.logits = static_cast<std::byte*>(tile.logits) + first * tile.logits_row * run.logit_bytes;
  tile.targets += first;
  tile.losses += first;
  run.kernel(tile);
}

/// Rows [..., E] with any strides, one by one, in the accumulator's type.
class StridedRows {
 public:
  StridedRows(const TensorView& view, const DTypeKernels& kernels) : view_(view), kernels_(kernels) {
    add_leading_axes(view_, kMaxRank);
  }

  void read(Index row, std::byte* numbers, std::byte* elements) const {
    const Index columns = view_.extents[3];
    copy_elements(at(row), {elements, view_.dtype, {columns}});
    kernels_.widen(elements, numbers, columns);
  }
  void write(Index row, const std::byte* numbers, std::byte* elements) const {
    const Index columns = view_.extents[3];
    kernels_.round(numbers, elements, columns);
    const TensorView target = at(row);
    copy_elements({elements, view_.dtype, {columns}},
                  {const_cast<void*>(target.data), target.dtype, {columns}, {target.strides[0]}});
  }

 private:
  TensorView at(Index row) const {
    const Index k = row % view_.extents[2], j = row / view_.extents[2] % view_.extents[1],
                i = row / view_.extents[2] / view_.extents[1];
    const Index offset = i * view_.strides[0] + j * view_.strides[1] + k * view_.strides[2];
    return {static_cast<const std::byte*>(view_.data) + offset * size_of(view_.dtype),
            view_.dtype,
            {view_.extents[3]},
            {view_.strides[3]}};
  }

  TensorView view_;
  const DTypeKernels& kernels_;
};

TensorView transposed(TensorView matrix) {
  std::swap(matrix.extents[0], matrix.extents[1]);
  std::swap(matrix.strides[0], matrix.strides[1]);
  return matrix;
}

void fill_with_zeros(const MutableTensorView& out) {
  static constexpr std::byte kZero[sizeof(double)] = {};
  if (!out) return;
  TensorView zeros = out;
  zeros.data = kZero;
  std::fill_n(zeros.strides, kMaxRank, Index{0});
  copy_elements(zeros, out);
}

/// A matrix or vector of the accumulator's type: the tensor itself, or a copy in memory of the call.
class Numbers {
 public:
  Numbers(const TensorView& view, Layout& layout) : view_(view), wide_(accumulator_of(view.dtype)) {
    if (view && wide_ != view.dtype)
      at_ = layout.take(double(view.extents[0]) * double(view.rank > 1 ? view.extents[1] : 1) * size_of(wide_));
  }

  MutableTensorView memory(std::byte* memory) const {
    MutableTensorView numbers = {memory + at_, wide_, {view_.extents[0], view_.rank > 1 ? view_.extents[1] : 1}};
    if (view_.rank == 1) numbers = {memory + at_, wide_, {view_.extents[0]}};
    return numbers;
  }
  bool is_copy() const { return view_ && wide_ != view_.dtype; }

 private:
  TensorView view_;
  DType wide_;
  std::size_t at_ = 0;
};

/// Converts each row of a matrix, or a vector.
void widen_all(const TensorView& from, const MutableTensorView& to, const DTypeKernels& kernels, std::byte* elements) {
  const StridedRows rows(from, kernels);
  const Index count = from.rank > 1 ? from.extents[0] : 1, columns = from.extents[from.rank - 1];
  for (Index i = 0; i < count; ++i)
    rows.read(i, static_cast<std::byte*>(to.data) + i * columns * size_of(to.dtype), elements);
}
void round_all(const TensorView& from, const MutableTensorView& to, const DTypeKernels& kernels, std::byte* elements) {
  const StridedRows rows(to, kernels);
  const Index count = to.rank > 1 ? to.extents[0] : 1, columns = to.extents[to.rank - 1];
  for (Index i = 0; i < count; ++i)
    rows.write(i, static_cast<const std::byte*>(from.data) + i * columns * size_of(from.dtype), elements);
}

void write_losses(const std::vector<double>& losses, const std::vector<Index>& kept, Reduction reduction,
                  const MutableTensorView& loss) {
  const auto write = [&](Index i, double value) {
    if (loss.dtype == DType::f64)
      static_cast<double*>(loss.data)[i * loss.strides[0]] = value;
    else
      static_cast<float*>(loss.data)[i * loss.strides[0]] = static_cast<float>(value);
  };
  if (reduction == Reduction::none) {
    for (Index i = 0; i < loss.extents[0]; ++i) write(i, 0);
    for (std::size_t i = 0; i < kept.size(); ++i) write(kept[i], losses[i]);
    return;
  }
  double total = 0;
  for (const double one : losses) total += one;
  write(0, reduction == Reduction::mean ? total / double(kept.size()) : total);
}

}  // namespace

void cross_entropy(const TensorView& x, const TensorView& weight, const TensorView& bias, const std::int64_t* targets,
                   const MutableTensorView& loss, const CrossEntropyGradients& gradients,
                   const CrossEntropyOptions& options) {
  const FloatingPointState state;
  const Index rows = validate_cross_entropy(x, weight, bias, targets, loss, gradients, options);
  const Index features = weight.extents[1], words = weight.extents[0];
  const KernelTable& table = active_kernels();
  const DTypeKernels& kernels = table.kernels[static_cast<int>(x.dtype)];
  const DType wide = accumulator_of(x.dtype);
  const Index size = size_of(wide);
  const bool has_sums = gradients.weight || gradients.bias, has_gradient = gradients.x || has_sums;

  std::vector<Index> kept;
  std::vector<std::int64_t> kept_targets;
  for (Index i = 0; i < rows; ++i)
    if (targets[i] != options.ignore_index) {
      kept.push_back(i);
      kept_targets.push_back(targets[i]);
    }
  const Index count = static_cast<Index>(kept.size());
  const Index chunk = std::max(kChunkLogits / words / kSpanRows, Index{1}) * kSpanRows, most = std::min(count, chunk);
  std::vector<double> losses(kept.size());

  Layout layout;
  const Numbers wide_weight(weight, layout), wide_bias(bias, layout), dweight(gradients.weight, layout),
      dbias(gradients.bias, layout);
  const std::size_t x_at = layout.take(double(most) * double(features) * double(size));
  const std::size_t dx_at = layout.take(gradients.x ? double(most) * double(features) * double(size) : 0);
  const std::size_t logits_at = layout.take(double(most) * double(words) * double(size));
  const std::size_t elements_at = layout.take(double(std::max(features, words)) * double(size));
  const Workspace memory(layout.total());
  std::byte* const elements = memory.data() + elements_at;

  TensorView weights = weight, biases = bias;
  if (wide_weight.is_copy()) {
    widen_all(weight, wide_weight.memory(memory.data()), kernels, elements);
    weights = wide_weight.memory(memory.data());
  }
  if (wide_bias.is_copy()) {
    widen_all(bias, wide_bias.memory(memory.data()), kernels, elements);
    biases = wide_bias.memory(memory.data());
  }
  const MutableTensorView weight_sums = dweight.is_copy() ? dweight.memory(memory.data()) : gradients.weight;
  const MutableTensorView bias_sums = dbias.is_copy() ? dbias.memory(memory.data()) : gradients.bias;
  fill_with_zeros(gradients.x);
  fill_with_zeros(weight_sums);
  fill_with_zeros(bias_sums);

  std::optional<Linear> project, project_back;
  if (count > 0) project.emplace(LinearWeights{weights, biases, {}});
  if (count > 0 && gradients.x) project_back.emplace(LinearWeights{transposed(weights), {}, {}});
  const StridedRows x_rows(x, kernels), dx_rows(gradients.x ? TensorView(gradients.x) : x, kernels);
  for (Index first = 0; first < count; first += chunk) {
    const Index in_chunk = std::min(chunk, count - first);
    const auto at = [&](std::size_t offset, Index row, Index columns) {
      return memory.data() + offset + row * columns * size;
    };
    const auto matrix = [&](std::size_t offset, Index columns) {
      return MutableTensorView(memory.data() + offset, wide, {in_chunk, columns});
    };
    for (Index i = 0; i < in_chunk; ++i) x_rows.read(kept[std::size_t(first + i)], at(x_at, i, features), elements);
    const MutableTensorView logits = matrix(logits_at, words);
    project->forward(matrix(x_at, features), logits, options.num_threads);

    EntropyRun run{table.kernels[static_cast<int>(wide)].rows.cross_entropy, {}, size};
    run.chunk.rows = in_chunk;
    run.chunk.columns = words;
    run.chunk.logits = logits.data;
    run.chunk.logits_row = words;
    run.chunk.targets = kept_targets.data() + first;
    run.chunk.losses = losses.data() + first;
    run.chunk.label_smoothing = options.label_smoothing;
    run.chunk.has_gradient = has_gradient;
    run.chunk.scale = options.reduction == Reduction::mean ? 1 / double(count) : 1;
    const Phase phase{(in_chunk + kTaskRows - 1) / kTaskRows, &entropy_task, &run};
    run_phases(&phase, 1,
               threads_for(options.num_threads, phase.tasks, double(in_chunk) * double(words) * kWorkPerLogit));

    if (has_sums)
      run_linear_gradient(matrix(x_at, features), logits, weight_sums, bias_sums, options.num_threads, first > 0);
    if (!gradients.x) continue;
    project_back->forward(logits, matrix(dx_at, features), options.num_threads);
    for (Index i = 0; i < in_chunk; ++i) dx_rows.write(kept[std::size_t(first + i)], at(dx_at, i, features), elements);
  }
  if (dweight.is_copy()) round_all(weight_sums, gradients.weight, kernels, elements);
  if (dbias.is_copy()) round_all(bias_sums, gradients.bias, kernels, elements);
  write_losses(losses, kept, options.reduction, loss);
}

}  // namespace mha

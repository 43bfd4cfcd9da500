#include "execute/row_steps.hpp"

#include <algorithm>

#include "platform/cancellation.hpp"

namespace mha {
namespace {

/// Fewest rows for each thread with which steps are fused. Two threads take equally long either way at 96 to 128 rows
/// each (six layers of E 384, F 1536); below, shared weights win: 1.04 times at 32, 1.23 at 8.
constexpr Index kLeastFusedRows = 96;

Index ceil_div(Index n, Index by) { return (n + by - 1) / by; }

}  // namespace

SizedRowSteps::SizedRowSteps(const DTypeKernels& kernels, DType dtype, Index rows, int threads)
    : kernels_(kernels),
      dtype_(dtype),
      rows_(rows),
      is_fused_(threads == 1 || rows >= kLeastFusedRows * threads),
      row_blocks_(ceil_div(ceil_div(rows, kProjectionBlockRows), threads) * threads) {}  // as many for each thread

Rows SizedRowSteps::buffer(Index columns, Layout& layout) {
  const Index row_bytes = columns * size_of(dtype_);
  if (!is_fused_) return {nullptr, row_bytes, columns, layout.take(double(rows_) * double(row_bytes))};
  const std::size_t offset = buffers_bytes_;
  const Index block_rows = ceil_div(rows_, std::max<Index>(row_blocks_, 1));
  buffers_bytes_ += padded(static_cast<std::size_t>(block_rows * row_bytes));
  return {nullptr, row_bytes, columns, offset};
}

void SizedRowSteps::reserve_for(const PackedLinear& linear, const PackedLinear* gate) {
  projection_bytes_ = std::max(projection_bytes_, projection_scratch(kernels_, linear, gate));
}

void SizedRowSteps::reserve_for(const PackedFeedForward& feed_forward) {
  reserve_for(feed_forward.up, feed_forward.gate ? &*feed_forward.gate : nullptr);
  reserve_for(feed_forward.down);
}

void RowSteps::project(const PackedLinear& linear, Activation activation, const Rows& x, const Rows& out,
                       const PackedLinear* gate) {
  const Index panels = linear.panels();
  Step& step = steps_[num_steps_++];
  step = {this, &linear, gate, activation, nullptr, x, {}, {}, out, sized_.row_blocks_, 1, panels};
  if (sized_.is_fused_) return;
  step.row_blocks = projection_blocks(sized_.rows_, panels, workers_.threads);
  step.panels_of_task = projection_panels_of_task(linear.format(), panels, step.row_blocks, workers_.threads);
  step.tasks_of_block = ceil_div(panels, step.panels_of_task);
}

void RowSteps::feed_forward(const PackedFeedForward& feed_forward, const Rows& x, const Rows& hidden, const Rows& out) {
  project(feed_forward.up, feed_forward.activation, x, hidden, feed_forward.gate ? &*feed_forward.gate : nullptr);
  project(feed_forward.down, Activation::none, hidden, out);
}

void RowSteps::normalize(const NormWeights* norm, const Rows& x, const Rows& residual, const Rows& sum,
                         const Rows& out) {
  const Index row_blocks = sized_.is_fused_ ? sized_.row_blocks_ : std::min<Index>(sized_.rows_, workers_.threads);
  steps_[num_steps_++] = {this, nullptr, nullptr, Activation::none, norm, x, residual, sum, out, row_blocks, 1, 0};
}

int RowSteps::phases(Phase* phases) const {
  if (sized_.is_fused_ && num_steps_ > 0) {
    phases[0] = {sized_.row_blocks_, &run_all_steps, this};
    return 1;
  }
  for (int i = 0; i < num_steps_; ++i)
    phases[i] = {steps_[i].row_blocks * steps_[i].tasks_of_block, &run_step, &steps_[i]};
  return num_steps_;
}

void RowSteps::run_step(const void* context, Index task, int worker) {
  const Step& step = *static_cast<const Step*>(context);
  const Index rows = step.steps->sized_.rows_, block = task / step.tasks_of_block;
  const Index first = first_row_of(block, rows, step.row_blocks), last = first_row_of(block + 1, rows, step.row_blocks);
  if (step.linear)
    step.steps->project(step, first, last, task % step.tasks_of_block * step.panels_of_task, worker);
  else
    step.steps->normalize(step, first, last, worker);
}

void RowSteps::run_all_steps(const void* context, Index row_block, int worker) {
  const RowSteps& all = *static_cast<const RowSteps*>(context);
  Cancellation& cancellation = Cancellation::of_this_thread();
  for (int i = 0; i < all.num_steps_ && !cancellation.is_set(); ++i) run_step(&all.steps_[i], row_block, worker);
}

/// Row `first`. A fused buffer holds one block of rows, whose first row it is.
std::byte* RowSteps::at(const Rows& rows, Index first, int worker) const {
  if (!rows) return nullptr;
  if (rows.data) return rows.data + first * rows.row_bytes;
  return sized_.is_fused_ ? workers_.scratch_of(worker) + rows.buffer_at
                          : memory_ + rows.buffer_at + first * rows.row_bytes;
}

void RowSteps::project(const Step& step, Index first, Index last, Index panel, int worker) const {
  const Projection projection{step.linear,
                              &sized_.kernels_,
                              1,
                              last - first,
                              {at(step.x, first, worker), 0, 0, step.x.row_bytes, 1},
                              {at(step.out, first, worker), 0, 0, step.out.row_bytes, 1},
                              step.activation,
                              step.gate};
  const Index panels = std::min(step.panels_of_task, step.linear->panels() - panel);
  std::byte* const scratch = workers_.scratch_of(worker) + sized_.buffers_bytes_;
  project_rows(&projection, panel, panels, 0, 0, last - first, scratch);
}

void RowSteps::normalize(const Step& step, Index first, Index last, int worker) const {
  const Index size = size_of(sized_.dtype_);
  NormalizeTile tile{};
  tile.rows = last - first;
  tile.columns = step.x.columns;
  tile.x = at(step.x, first, worker);
  tile.x_row = step.x.row_bytes / size;
  tile.residual = at(step.residual, first, worker);
  tile.residual_row = step.residual.row_bytes / size;
  tile.sum = at(step.sum, first, worker);
  tile.sum_row = step.sum.row_bytes / size;
  tile.out = at(step.out, first, worker);
  tile.out_row = step.out.row_bytes / size;
  if (step.norm) step.norm->write_to(tile);
  sized_.kernels_.normalize(tile);
}

}  // namespace mha

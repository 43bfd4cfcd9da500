#include "execute/row_chain.hpp"

#include <algorithm>

namespace mha {
namespace {

/// Fewest rows for each thread with which blocks of rows go through all steps. Two threads take equally long either way
/// at 96 to 128 rows each (six layers of E 384, F 1536); below, shared weights win: 1.04 times at 32, 1.23 at 8.
constexpr Index kLeastFusedRows = 96;

Index ceil_div(Index n, Index by) { return (n + by - 1) / by; }

}  // namespace

RowChain::RowChain(const DTypeKernels& kernels, DType dtype, Index rows, int threads)
    : kernels_(kernels),
      dtype_(dtype),
      rows_(rows),
      is_fused_(threads == 1 || rows >= kLeastFusedRows * threads),
      blocks_(ceil_div(ceil_div(rows, kProjectionBlockRows), threads) * threads) {}  // as many for each thread

Rows RowChain::buffer(Index columns, Layout& layout) {
  const Index row = columns * size_of(dtype_);
  if (!is_fused_) return {nullptr, row, columns, layout.take(double(rows_) * double(row))};
  const std::size_t offset = buffers_bytes_;
  const Index block_rows = ceil_div(rows_, std::max<Index>(blocks_, 1));
  buffers_bytes_ += padded(static_cast<std::size_t>(block_rows * row));
  return {nullptr, row, columns, offset};
}

void RowChain::prepare_for(const PackedLinear& linear) {
  projection_bytes_ = std::max(projection_bytes_, projection_scratch(kernels_, linear));
}

std::size_t RowChain::scratch_bytes() const { return buffers_bytes_ + projection_bytes_; }

void RowChain::place(std::byte* memory, const Workers& workers) {
  memory_ = memory;
  workers_ = workers;
}

void RowChain::project(const PackedLinear& linear, Activation activation, const Rows& x, const Rows& out) {
  steps_[num_steps_++] = {&linear, activation, nullptr, x, {}, {}, out};
}

void RowChain::normalize(const NormWeights* norm, const Rows& x, const Rows& residual, const Rows& sum,
                         const Rows& out) {
  steps_[num_steps_++] = {nullptr, Activation::none, norm, x, residual, sum, out};
}

int RowChain::phases(Phase* phases) {
  int count = 0;
  for (int i = 0; i < num_steps_; ++i) {
    Stage& stage = stages_[count];
    if (is_fused_) {
      stage = {this, 0, num_steps_, blocks_, 1, 1};
    } else if (const PackedLinear* const linear = steps_[i].linear; linear) {
      const Index panels = linear->panels(), blocks = projection_blocks(rows_, panels, workers_.threads);
      const Index of_task = projection_panels_of_task(linear->format(), panels, blocks, workers_.threads);
      stage = {this, i, i + 1, blocks, (panels + of_task - 1) / of_task, of_task};
    } else {
      stage = {this, i, i + 1, std::min<Index>(rows_, workers_.threads), 1, 1};
    }
    phases[count++] = {stage.blocks * stage.tasks_of_block, &run_task, &stage};
    if (is_fused_) break;
  }
  return count;
}

void RowChain::run_task(const void* context, Index task, int worker) {
  const Stage& stage = *static_cast<const Stage*>(context);
  const RowChain& chain = *stage.chain;
  const Index block = task / stage.tasks_of_block;
  const Index first = chain.rows_ * block / stage.blocks, last = chain.rows_ * (block + 1) / stage.blocks;
  for (int i = stage.first_step; i < stage.last_step; ++i) {
    const Step& step = chain.steps_[i];
    if (!step.linear) {
      chain.normalize(step, first, last, worker);
      continue;
    }
    const Index panel = chain.is_fused_ ? 0 : task % stage.tasks_of_block * stage.panels_of_task;
    const Index rest = step.linear->panels() - panel;
    chain.project(step, first, last, panel, chain.is_fused_ ? rest : std::min(rest, stage.panels_of_task), worker);
  }
}

/// Row `first`: of a block, if the chain is fused, the first row of a worker's buffer.
std::byte* RowChain::at(const Rows& rows, Index first, int worker) const {
  if (!rows) return nullptr;
  if (rows.data) return rows.data + first * rows.row;
  return is_fused_ ? workers_.scratch_of(worker) + rows.buffer_at : memory_ + rows.buffer_at + first * rows.row;
}

void RowChain::project(const Step& step, Index first, Index last, Index panel, Index count, int worker) const {
  const Projection projection{step.linear,
                              &kernels_,
                              1,
                              last - first,
                              {at(step.x, first, worker), 0, 0, step.x.row, 1},
                              {at(step.out, first, worker), 0, 0, step.out.row, 1},
                              step.activation};
  project_rows(&projection, panel, count, 0, 0, last - first, workers_.scratch_of(worker) + buffers_bytes_);
}

void RowChain::normalize(const Step& step, Index first, Index last, int worker) const {
  const Index size = size_of(dtype_);
  NormalizeTile tile{};
  tile.rows = last - first;
  tile.columns = step.x.columns;
  tile.x = at(step.x, first, worker);
  tile.x_row = step.x.row / size;
  tile.residual = at(step.residual, first, worker);
  tile.residual_row = step.residual.row / size;
  tile.sum = at(step.sum, first, worker);
  tile.sum_row = step.sum.row / size;
  tile.out = at(step.out, first, worker);
  tile.out_row = step.out.row / size;
  if (step.norm) {
    tile.weight = step.norm->weight();
    tile.bias = step.norm->bias();
    tile.eps = step.norm->eps;
  }
  kernels_.normalize(tile);
}

}  // namespace mha

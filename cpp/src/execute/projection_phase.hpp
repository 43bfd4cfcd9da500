// Projections as tasks: (block of rows) x (weight panel).
#pragma once

#include "plan/attention_plan.hpp"
#include "platform/parallel.hpp"
#include "platform/workspace.hpp"
#include "weights/packed_linear.hpp"

namespace mha {

/// One projection of one call: out[b, s, t, :] = activation(x[b, t, :] W^T + bias) for segment s of the output
/// features, or with a gate activation(gate(x)) * (x W^T + bias).
struct Projection {
  const PackedLinear* linear;
  const DTypeKernels* kernels;
  Index batch, rows;  // of x
  Input x;            // head unused
  Output out;         // head: segment
  Activation activation = Activation::none;
  const PackedLinear* gate = nullptr;  // of the shape of `linear`, with which a task takes its panels
  // [batch] or null: row t of batch element b is row first_rows[b] + t of out, whose rows are then dense ...
  const std::int64_t* first_rows = nullptr;
  PageTables tables = {};                    // ... in the pages of sequence b, if there are pages ...
  const std::int64_t* row_counts = nullptr;  // ... if t < row_counts[b]; null: all of them
  // Results to elements of `rounded_size` bytes, for first_rows only; null: out is of the dtype of `linear`.
  void (*round)(const void* numbers, void* elements, Index count) = nullptr;
  Index rounded_size = 0;
  Index length = 0;  // rows of a batch element, set by add(), which may make one run of all

  Index out_size() const { return round ? rounded_size : size_of(linear->dtype()); }
};

/// Projections of the same rows, done block of rows by block of rows while the block is in cache: query, key and value
/// in self-attention.
struct ProjectionGroup {
  Projection projections[3];
  int count;
  Index blocks;  // of rows, in each batch element
  Index panels;  // of all projections
  Index panels_of_task;

  Index tasks_of_block() const { return (panels + panels_of_task - 1) / panels_of_task; }
  Index tasks() const { return projections[0].batch * blocks * tasks_of_block(); }
};

/// Most rows in a block: their activations (128 x 768 features x 4 bytes = 384 KB) stay in level 2 next to a panel's
/// 192 KB while every panel passes over them.
constexpr Index kProjectionBlockRows = 128;

/// Blocks that the rows of a batch element are cut in: as few as fit kProjectionBlockRows, but enough that each thread
/// finds a few tasks, if a task is a block and one of `panels` weight panels.
Index projection_blocks(Index rows, Index panels, int threads);

/// The first of the rows of a block, where `rows` are cut in `blocks` of nearly equal size: rows * block / blocks,
/// whose product might not fit 64 bits.
constexpr Index first_row_of(Index block, Index rows, Index blocks) {
  return rows / blocks * block + rows % blocks * block / blocks;
}

/// How many panels of a block of rows are one task, if there are so many `blocks`. Rows for int8 weights are quantized
/// by each task that reads them, which costs as much as half a panel: tasks are few there.
Index projection_panels_of_task(WeightFormat format, Index panels, Index blocks, int threads);

/// Rows [first, last) of a batch element times `count` panels from `panel` on, of the first of `projections` and
/// then of the next, which read the same rows: one task. `scratch` is projection_scratch() of memory.
void project_rows(const Projection* projections, Index panel, Index count, Index batch, Index first, Index last,
                  std::byte* scratch);

/// Scratch of one worker, for a projection by such weights; `gate` may be null.
std::size_t projection_scratch(const DTypeKernels& kernels, const PackedLinear& linear,
                               const PackedLinear* gate = nullptr);

/// Up to three groups in one phase, and who runs it.
struct ProjectionRun {
  ProjectionGroup groups[3];
  int count = 0;
  Workers workers;

  explicit ProjectionRun(const Workers& workers_of_run) : workers(workers_of_run) {}

  /// Joins the last group if it reads the same rows, else begins a new one.
  void add(Projection projection);
};

/// The run as one phase; `run` must outlive it.
Phase projection_phase(const ProjectionRun& run);

}  // namespace mha

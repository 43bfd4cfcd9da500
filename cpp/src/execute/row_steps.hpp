// Row-wise steps: operations on each row by itself, one step after another. A step is a projection with an
// activation, or a residual sum with a norm. Everything in a transformer but attention is of this kind.
//
// There are two ways to do them, which the number of rows and threads decides:
//
// - Fused. A task takes a block of rows through all steps while the block is in cache. All steps are one phase without
//   a barrier, and intermediate results take no memory beyond the block's. But every block reads all weights.
// - Step by step. With few rows for each thread, reading the weights takes the time, and threads had better
//   share them out: each step is a phase, whose tasks are weight panels.
//
// The bits of a row are the same in both: a projection sums in the order of its features, a norm in the order of
// the columns.
#pragma once

#include "execute/projection_phase.hpp"
#include "platform/layout.hpp"
#include "weights/norm_weights.hpp"
#include "weights/packed_feed_forward.hpp"

namespace mha {

/// The rows that a step reads or writes: of a matrix, or of a buffer between steps.
struct Rows {
  std::byte* data = nullptr;  // row 0; null: a buffer
  Index row_bytes = 0;        // from one row to the next; 0: no rows are given
  Index columns = 0;
  std::size_t buffer_at = 0;  // fused: in the scratch of a worker; else in the memory of the call

  explicit operator bool() const { return row_bytes > 0; }
};

/// The rows of a dense matrix, which may be constant if it is only read.
inline Rows rows_of(const TensorView& matrix) {
  return {static_cast<std::byte*>(const_cast<void*>(matrix.data)),
          matrix.strides[matrix.rank - 2] * size_of(matrix.dtype), matrix.extents[matrix.rank - 1]};
}

/// The sizes of row-wise steps, before there is memory: buffers, and scratch for projections.
class SizedRowSteps {
 public:
  SizedRowSteps(const DTypeKernels& kernels, DType dtype, Index rows, int threads);

  /// [rows, columns] that one step writes and later ones read.
  Rows buffer(Index columns, Layout& layout);
  /// Makes room for a projection by such weights; `gate` may be null.
  void reserve_for(const PackedLinear& linear, const PackedLinear* gate = nullptr);
  void reserve_for(const PackedFeedForward& feed_forward);
  /// Of each worker.
  std::size_t scratch_bytes() const { return buffers_bytes_ + projection_bytes_; }

 private:
  friend class RowSteps;

  const DTypeKernels& kernels_;
  DType dtype_;
  Index rows_;
  bool is_fused_;
  Index row_blocks_;               // if fused
  std::size_t buffers_bytes_ = 0;  // of a worker's scratch, if fused
  std::size_t projection_bytes_ = 0;
};

/// The steps, over memory. Phases refer to this object: it must outlive them, and stay where it is.
class RowSteps {
 public:
  /// @param memory has the layout and the scratch that `sized` took
  RowSteps(const SizedRowSteps& sized, const CallMemory& memory)
      : sized_(sized), memory_(memory.data()), workers_(memory.workers()) {}
  RowSteps(const RowSteps&) = delete;
  RowSteps& operator=(const RowSteps&) = delete;

  /// Adds out = activation(x W^T + b), or with a gate activation(gate(x)) * (x W^T + b). The rows that a step writes
  /// are not those that it reads.
  void project(const PackedLinear& linear, Activation activation, const Rows& x, const Rows& out,
               const PackedLinear* gate = nullptr);
  /// Adds out = feed_forward(x), over `hidden`: two projections. `out` may be x.
  void feed_forward(const PackedFeedForward& feed_forward, const Rows& x, const Rows& hidden, const Rows& out);
  /// Adds z = x + residual; sum = z; out = norm(z). Residual, sum, and norm with out may be missing; sum and out may be
  /// x or residual.
  void normalize(const NormWeights* norm, const Rows& x, const Rows& residual, const Rows& sum, const Rows& out);

  /// Most steps, and so most phases: two projections with their output norms and residual sums, one projection more,
  /// the norm of a parallel feed-forward, and a last norm.
  static constexpr int kMostSteps = 9;
  /// Returns how many it has written.
  int phases(Phase* phases) const;

 private:
  /// A task is a block of rows, and of a projection `panels_of_task` weight panels.
  struct Step {
    const RowSteps* steps;
    const PackedLinear *linear, *gate;  // linear null: normalize
    Activation activation;
    const NormWeights* norm;
    Rows x, residual, sum, out;
    Index row_blocks, tasks_of_block, panels_of_task;
  };

  std::byte* at(const Rows& rows, Index first, int worker) const;
  void project(const Step& step, Index first, Index last, Index panel, int worker) const;
  void normalize(const Step& step, Index first, Index last, int worker) const;
  static void run_step(const void* step, Index task, int worker);
  static void run_all_steps(const void* steps, Index row_block, int worker);

  const SizedRowSteps sized_;
  std::byte* const memory_;
  const Workers workers_;
  Step steps_[kMostSteps];
  int num_steps_ = 0;
};

}  // namespace mha

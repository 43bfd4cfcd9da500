// What is done to each row by itself, one step after another: projections, residual sums, layer norms.
//
// Everything in a transformer but attention is of this kind. A block of rows can go through all steps while it is in
// cache: what lies between two steps then takes no memory beyond the block's, and a chain is one phase without a barrier
// in it. But every block reads all the weights. With few rows for each thread that is what takes the time, and the
// threads had better share out the weights: then each step is a phase, whose tasks are weight panels.
//
// A row's bits do not depend on which of the two it is: a projection sums in the order of its features, a layer norm in
// that of the columns.
#pragma once

#include "execute/projection_phase.hpp"
#include "platform/layout.hpp"
#include "weights/norm_weights.hpp"

namespace mha {

/// Rows for the steps of a chain, `row` bytes apart: those of a matrix, or of one of the chain's buffers.
struct Rows {
  std::byte* data = nullptr;  // null: a buffer
  Index row = 0;              // 0: there are none
  Index columns = 0;
  std::size_t buffer_at = 0;

  explicit operator bool() const { return row > 0; }
};

/// Those of a dense matrix, which may be a constant one if the chain only reads it.
inline Rows rows_of(const TensorView& matrix) {
  return {static_cast<std::byte*>(const_cast<void*>(matrix.data)),
          matrix.strides[matrix.rank - 2] * size_of(matrix.dtype), matrix.extents[matrix.rank - 1]};
}

/// Sizes first, then memory, then steps, then phases. Phases refer to the chain: it must outlive them, and stay where
/// it is.
class RowChain {
 public:
  RowChain(const DTypeKernels& kernels, DType dtype, Index rows, int threads);
  RowChain(const RowChain&) = delete;
  RowChain& operator=(const RowChain&) = delete;

  /// Memory for what steps of this chain hand to each other.
  Rows buffer(Index columns, Layout& layout);
  /// Scratch for a projection by such weights.
  void prepare_for(const PackedLinear& linear);
  /// Of each worker, when all buffers and projections are known.
  std::size_t scratch_bytes() const;
  void place(std::byte* memory, const Workers& workers);

  /// out = activation(x W^T + b). Rows that a step writes are not those that it reads.
  void project(const PackedLinear& linear, Activation activation, const Rows& x, const Rows& out);
  /// z = x + residual; sum = z; out = norm(z). Residual, sum, and norm with out may be missing; sum and out may be x or
  /// residual.
  void normalize(const NormWeights* norm, const Rows& x, const Rows& residual, const Rows& sum, const Rows& out);

  /// Most steps, and so most phases: two projections with their residual sums, one more, and a last norm.
  static constexpr int kMostSteps = 6;
  /// Returns how many it has written.
  int phases(Phase* phases);

 private:
  struct Step {
    const PackedLinear* linear;  // null: normalize
    Activation activation;
    const NormWeights* norm;
    Rows x, residual, sum, out;
  };
  /// Steps that a block of rows goes through in one task; or one projection, of which a task is one panel.
  struct Stage {
    const RowChain* chain;
    int first_step, last_step;
    Index blocks, tasks_of_block, panels_of_task;
  };

  std::byte* at(const Rows& rows, Index first, int worker) const;
  void project(const Step& step, Index first, Index last, Index panel, Index count, int worker) const;
  void normalize(const Step& step, Index first, Index last, int worker) const;
  static void run_task(const void* stage, Index task, int worker);

  const DTypeKernels& kernels_;
  DType dtype_;
  Index rows_;
  bool is_fused_;                  // blocks of rows go through all steps
  Index blocks_;                   // then
  std::size_t buffers_bytes_ = 0;  // of a worker's scratch, if the chain is fused
  std::size_t projection_bytes_ = 0;
  std::byte* memory_ = nullptr;
  Workers workers_{};
  Step steps_[kMostSteps];
  Stage stages_[kMostSteps];
  int num_steps_ = 0;
};

}  // namespace mha

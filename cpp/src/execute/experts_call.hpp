// Experts of a feed-forward network: each row goes through the few that its router chooses.
//
// Rows are grouped by expert: a slot is one row with one of its experts, and slots lie in the order of experts, then of
// rows. So the rows of an expert are neighbours, and its weights are read once for all of them. A task is a block of
// slots of one expert and some of its panels. Experts that no row has chosen have no task.
//
// The bits of a row depend on nothing but the row: its scores are computed by themselves, a projection sums in the order
// of its features, and the results of experts are added in the order of experts, the shared one last.
#pragma once

#include <cstdint>

#include "execute/projection_phase.hpp"
#include "execute/row_steps.hpp"
#include "platform/layout.hpp"
#include "weights/packed_experts.hpp"

namespace mha {

/// Slots of one expert, next to each other; null: no more blocks.
struct ExpertBlock {
  const PackedFeedForward* expert = nullptr;
  Index first = 0, rows = 0;
};

/// The sizes of one call, before there is memory.
class SizedExpertsCall {
 public:
  /// Takes its memory from `layout`.
  SizedExpertsCall(const PackedExperts& experts, const KernelTable& table, Index rows, Layout& layout);

  /// Of each worker.
  std::size_t scratch_bytes() const { return scratch_bytes_; }
  /// The call is done part by part: so many rows at a time, whose slots take a bounded memory.
  Index parts() const { return parts_; }

 private:
  friend class ExpertsCall;

  const PackedExperts& experts_;
  const DTypeKernels& kernels_;
  Index rows_, parts_;
  std::size_t logits_at_, shared_logit_at_, chosen_at_, factors_at_, slots_at_, rows_at_, starts_at_, blocks_at_,
      results_at_, hidden_at_, shared_hidden_at_, scratch_bytes_;
};

/// The call, over memory. Phases refer to this object.
class ExpertsCall {
 public:
  /// @param memory has the layout and the scratch that `sized` took
  /// @param x,out  rows of matrices; out may be x
  ExpertsCall(const SizedExpertsCall& sized, const CallMemory& memory, const Rows& x, const Rows& out);
  ExpertsCall(const ExpertsCall&) = delete;
  ExpertsCall& operator=(const ExpertsCall&) = delete;

  /// Most phases of a part.
  static constexpr int kMostPhases = 7;
  /// Writes the phases of a part, and returns their number. The phases of the part before must have run.
  int phases(Index part, Phase* phases);

 private:
  /// The tasks of a phase that multiplies: blocks of slots with panels of an expert, then rows with panels of the shared
  /// one.
  struct Products {
    Index panels_of_task, tasks_of_block, tasks;
    Index shared_blocks, shared_panels_of_task, shared_tasks_of_block;
    Index all_tasks() const { return tasks + shared_blocks * shared_tasks_of_block; }
  };

  template <class T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(memory_ + offset);
  }
  Index slots() const { return count_ * experts_.config.experts_per_token; }
  Products products(bool is_down) const;
  double number(const std::byte* elements, Index i) const;
  void set_factor(Index i, double factor) const;
  double score(Index row, Index expert) const;
  void choose(Index row) const;
  void group() const;
  void gather(Index first, Index last) const;
  void multiply(const Products& products, bool is_down, Index task, int worker) const;
  void project(const PackedFeedForward& expert, bool is_down, const std::byte* x, Index x_row_bytes, std::byte* out,
               Index rows, Index panel, Index panels, int worker) const;
  void add_up(Index row) const;

  static void run_route(const void* call, Index task, int worker);
  static void run_choose(const void* call, Index task, int worker);
  static void run_group(const void* call, Index task, int worker);
  static void run_gather(const void* call, Index task, int worker);
  static void run_up(const void* call, Index task, int worker);
  static void run_down(const void* call, Index task, int worker);
  static void run_add(const void* call, Index task, int worker);

  const SizedExpertsCall& sized_;
  const PackedExperts& experts_;
  std::byte* const memory_;
  const Workers workers_;
  const Rows x_, out_;
  Index first_ = 0, count_ = 0;  // rows of the part
  Products up_{}, down_{};
  ProjectionRun router_;
};

}  // namespace mha

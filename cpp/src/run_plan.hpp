// Cuts a plan into tiles (batch x key-value head x query tile) and hands them to the workers.
#pragma once

#include "attention_plan.hpp"
#include "parallel.hpp"

namespace mha {

/// A plan, its threads, and the scratch of its workers: `scratch + worker * scratch_stride`.
struct AttentionRun {
  const AttentionPlan* plan;
  int threads;
  std::byte* scratch;
  std::size_t scratch_stride;
};

/// The tile that begins at row `first_row` of `heads` neighbouring query heads, which read one key-value head. Rows are
/// queries with the heads innermost: neighbours in the lanes are neighbours in position.
AttentionTile make_tile(const AttentionPlan& plan, Index batch, Index first_head, Index heads, Index first_row);

/// The run as one phase; `run` must outlive it.
Phase attention_phase(const AttentionRun& run);

/// Scratch, threads, one phase.
void run_plan(const AttentionPlan& plan, int num_threads);

}  // namespace mha

// Cuts a plan into tiles (batch x key-value head x query tile) and hands them to the workers.
#pragma once

#include "attention_plan.hpp"
#include "parallel.hpp"
#include "ragged_schedule.hpp"

namespace mha {

/// A plan, its threads, and the scratch of its workers: `scratch + worker * scratch_stride`.
struct AttentionRun {
  const AttentionPlan* plan;
  int threads;
  std::byte* scratch;
  std::size_t scratch_stride;
  const SequenceTasks* schedule = nullptr;  // of a ragged batch; null: dense
};

/// The run as one phase; `run` must outlive it.
Phase attention_phase(const AttentionRun& run);

/// Scratch, threads, one phase.
void run_plan(const AttentionPlan& plan, int num_threads);

}  // namespace mha

// Cuts a plan into tiles (batch x key-value head x query tile) and hands them to the workers.
#pragma once

#include "execute/ragged_schedule.hpp"
#include "execute/shared_spans.hpp"
#include "plan/attention_plan.hpp"
#include "platform/parallel.hpp"
#include "platform/workspace.hpp"

namespace mha {

/// A plan, who runs it, and span_sums_bytes() of memory.
struct AttentionRun {
  const AttentionPlan* plan;
  Workers workers;
  std::byte* span_sums;
  const SequenceTasks* schedule = nullptr;  // of a ragged batch; null: dense
  SharedSpans shared = {};                  // of pages; without sequences nothing is shared
};

/// The tile that begins at row `first_row` of `heads` neighbouring query heads, which read one key-value head. Rows are
/// queries with the heads innermost: neighbours in the lanes are neighbours in position.
AttentionTile make_tile(const AttentionPlan& plan, Index batch, Index first_head, Index heads, Index first_row);

/// Lets the rows of a tile see the keys of one span only.
void narrow_to(AttentionTile& tile, Index span);

/// Memory for the sums of the tiles of `heads` key-value heads in all, with up to `rows` query rows each, if those are
/// so few that the keys of each are shared out among the threads in `spans` parts; else 0.
double span_sums_bytes(const DTypeKernels& kernels, Index heads, Index rows, Index spans, Index value_dim, int threads);

/// The run as one or two phases, and how many; `run` must outlive them.
int attention_phases(const AttentionRun& run, Phase* phases);

/// Scratch, threads, phases.
void run_plan(const AttentionPlan& plan, int num_threads);

}  // namespace mha

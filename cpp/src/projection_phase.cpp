#include "projection_phase.hpp"

#include <algorithm>

namespace mha {
namespace {

bool same_rows(const Projection& a, const Projection& b) {
  return a.x.data == b.x.data && a.batch == b.batch && a.rows == b.rows && a.x.batch == b.x.batch &&
         a.x.row == b.x.row && a.x.step == b.x.step && a.linear->in_features() == b.linear->in_features();
}

/// Blocks of rows for a projection: as few as fit kProjectionBlockRows, but enough that each thread finds a few tasks. Rows
/// of a block share what it costs to bring a panel near: a block of fewer than 24 gains nothing.
Index count_blocks(const Projection& p, int threads) {
  constexpr Index kLeastRows = 24, kTasksPerThread = 3;
  const auto ceil_div = [](Index n, Index by) { return (n + by - 1) / by; };
  const Index enough = ceil_div(kTasksPerThread * threads, p.linear->panels());
  return std::max(ceil_div(p.rows, kProjectionBlockRows), threads == 1 ? 0 : std::min(enough, p.rows / kLeastRows));
}

void run_task(const ProjectionGroup& group, Index task, void* scratch) {
  Index p = task % group.panels;
  const Projection* projection = group.projections;
  while (p >= projection->linear->panels()) p -= (projection++)->linear->panels();
  const PackedLinear& linear = *projection->linear;

  // Blocks of nearly equal size in each batch element.
  const Index block = task / group.panels % group.blocks, batch = task / group.panels / group.blocks;
  const Index first = projection->rows * block / group.blocks, last = projection->rows * (block + 1) / group.blocks;

  const Index size = size_of(linear.dtype());
  ProjectionTile tile{};
  tile.rows = last - first;
  tile.in_features = linear.in_features();
  tile.x = projection->x.at(batch, 0, first);
  tile.x_row = projection->x.row / size;
  tile.x_step = projection->x.step;
  tile.panel = linear.panel(p);
  tile.bias = linear.bias(p);
  tile.out_row = projection->out.row / size;
  tile.out_step = projection->out.step;
  const Index group_columns = kVectorBytes / size;
  for (Index g = 0; g < kPanelBytes / kVectorBytes; ++g) {
    const Index column = (p * (kPanelBytes / kVectorBytes) + g) * group_columns;
    const Index segment = column / linear.padded_segment_columns(), within = column % linear.padded_segment_columns();
    if (segment >= linear.segments()) break;
    tile.group_columns[g] = std::clamp<Index>(linear.segment_columns() - within, 0, group_columns);
    tile.out[g] = projection->out.at(batch, segment, first) + within * projection->out.step * size;
  }
  projection->kernels->project(tile, scratch);
}

void run_phase_task(const void* context, Index task, int worker) {
  const ProjectionRun& run = *static_cast<const ProjectionRun*>(context);
  const ProjectionGroup* group = run.groups;
  while (task >= group->tasks()) task -= (group++)->tasks();
  run_task(*group, task, run.scratch + static_cast<std::size_t>(worker) * run.scratch_stride);
}

}  // namespace

void ProjectionRun::add(Projection p) {
  // Batch elements that follow one another without a gap are one long run of rows: a strip may span them.
  if (p.x.batch == p.rows * p.x.row && p.out.batch == p.rows * p.out.row) {
    p.rows *= p.batch;
    p.batch = 1;
  }
  if (count == 0 || !same_rows(groups[count - 1].projections[0], p))
    groups[count++] = {{}, 0, count_blocks(p, threads), 0};
  ProjectionGroup& group = groups[count - 1];
  group.projections[group.count++] = p;
  group.panels += p.linear->panels();
}

Phase projection_phase(const ProjectionRun& run) {
  Index tasks = 0;
  for (int g = 0; g < run.count; ++g) tasks += run.groups[g].tasks();
  return {tasks, &run_phase_task, &run};
}

}  // namespace mha

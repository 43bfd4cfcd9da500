#include "run_plan.hpp"

#include <algorithm>

#include "key_bounds.hpp"
#include "workspace.hpp"

namespace mha {
namespace {

double read_real(const std::byte* element, DType dtype) {
  return dtype == DType::f64 ? *reinterpret_cast<const double*>(element) : *reinterpret_cast<const float*>(element);
}

/// The tile that a task is.
struct Place {
  Index batch, kv_head;
  Index task_of_head;  // among the tiles of this head, in the order in which they are begun
  Index tile_index;    // in the order of the query rows
};

/// Tiles of one head follow one another, so that its keys and values stay in cache; the last tile, which sees the most keys
/// under a causal mask, comes first, so that the workers finish together.
Place place_of(const AttentionRun& run, Index task) {
  const AttentionPlan& plan = *run.plan;
  Index batch, first_task, tiles;
  if (run.schedule) {
    const SequenceTasks& entry = entry_of(run.schedule, plan.batch, task);
    batch = entry.sequence;
    first_task = entry.first_task;
    tiles = plan.tiles_of(batch);
  } else {
    tiles = plan.tiles_per_head;
    batch = task / (tiles * plan.kv_heads);
    first_task = batch * tiles * plan.kv_heads;
  }
  const Index kv_head = (task - first_task) / tiles, task_of_head = (task - first_task) % tiles;
  return {batch, kv_head, task_of_head, tiles - 1 - task_of_head};
}

void run_tile(const void* context, Index task, int worker) {
  const AttentionRun& run = *static_cast<const AttentionRun*>(context);
  const AttentionPlan& plan = *run.plan;
  const auto [batch, kv_head, task_of_head, tile_index] = place_of(run, task);
  const Index first_query = plan.query_starts ? plan.query_starts[batch] : 0;
  const Index first_key = plan.key_starts ? plan.key_starts[batch] : 0;
  const Index first_row = tile_index * plan.kernels->query_tile_rows;

  AttentionTile tile;
  tile.rows =
      static_cast<int>(std::min<Index>(plan.kernels->query_tile_rows, plan.group * plan.queries_of(batch) - first_row));
  tile.head_dim = plan.head_dim;
  tile.value_dim = plan.value_dim;
  tile.query_step = plan.query.step;
  const Index size = plan.element_size;
  tile.key = plan.key.at(batch, kv_head, first_key);
  tile.key_row = plan.key.row / size;
  tile.key_step = plan.key.step;
  tile.value = plan.value.at(batch, kv_head, first_key);
  tile.value_row = plan.value.row / size;
  tile.value_step = plan.value.step;
  tile.out_step = plan.out.step;
  tile.is_far = task_of_head < run.threads;  // about each worker's first tile of this head
  tile.key_length = plan.key_length;
  tile.attn_mask_is_boolean = plan.attn_mask_is_boolean;
  tile.attn_mask_step = plan.attn_mask.step;
  tile.key_mask = plan.key_mask ? reinterpret_cast<const unsigned char*>(plan.key_mask + batch * plan.key_mask_batch +
                                                                         first_key * plan.key_mask_step)
                                : nullptr;
  tile.key_mask_step = plan.key_mask_step;
  tile.scale = plan.scale;
  tile.softcap = plan.softcap;
  tile.has_alibi = plan.alibi_slopes != nullptr;
  tile.has_sinks = plan.sinks != nullptr;
  // Rows are queries with the heads of a group innermost: neighbours in the lanes are neighbours in position.
  for (int r = 0; r < tile.rows; ++r) {
    const Index query = (first_row + r) / plan.group, head = kv_head * plan.group + (first_row + r) % plan.group;
    const KeyBounds bounds = key_bounds(plan, batch, query);
    tile.first_key[r] = bounds.first;
    tile.last_key[r] = bounds.last;
    const Index row = first_query + query;
    tile.query[r] = plan.query.at(batch, head, row);
    tile.out[r] = plan.out.at(batch, head, row);
    tile.lse[r] = plan.lse.data ? plan.lse.at(batch, head, row) : nullptr;
    if (tile.has_alibi) {
      tile.alibi_slope[r] = read_real(plan.alibi_slopes + head * plan.alibi_slope_stride, plan.accumulator);
      tile.position[r] = query_position(plan, batch, query);
    }
    if (tile.has_sinks) tile.sink[r] = read_real(plan.sinks + head * plan.sink_stride, plan.accumulator);
    tile.attn_mask[r] = plan.attn_mask.data ? plan.attn_mask.at(batch, head, row) : nullptr;
  }
  plan.kernel(tile, run.scratch + static_cast<std::size_t>(worker) * run.scratch_stride);
}

}  // namespace

Phase attention_phase(const AttentionRun& run) { return {run.plan->tiles(), &run_tile, &run}; }

void run_plan(const AttentionPlan& plan, int num_threads) {
  if (plan.tiles() == 0) return;
  const int threads = threads_for(num_threads, plan.tiles(), plan.work);
  const std::size_t stride = padded(plan.scratch_bytes);
  const std::size_t schedule_at = stride * static_cast<std::size_t>(threads);
  const bool is_ragged = plan.query_starts != nullptr;
  Workspace workspace(schedule_at + (is_ragged ? schedule_bytes(plan.batch) : 0));
  const AttentionRun run{&plan, threads, workspace.data(), stride,
                         is_ragged ? schedule(plan, workspace.data() + schedule_at) : nullptr};
  const Phase phase = attention_phase(run);
  run_phases(&phase, 1, threads);
}

}  // namespace mha

#include "run_plan.hpp"

#include <algorithm>

#include "key_bounds.hpp"
#include "workspace.hpp"

namespace mha {
namespace {

double read_real(const std::byte* element, DType dtype) {
  return dtype == DType::f64 ? *reinterpret_cast<const double*>(element) : *reinterpret_cast<const float*>(element);
}

}  // namespace

AttentionTile make_tile(const AttentionPlan& plan, Index batch, Index first_head, Index heads, Index first_row) {
  AttentionTile tile;
  tile.rows = static_cast<int>(std::min<Index>(plan.kernels->query_tile_rows, heads * plan.query_length - first_row));
  tile.head_dim = plan.head_dim;
  tile.value_dim = plan.value_dim;
  tile.query_step = plan.query.step;
  const Index size = plan.element_size, kv_head = first_head / plan.group;
  tile.key = plan.key.at(batch, kv_head, 0);
  tile.key_row = plan.key.row / size;
  tile.key_step = plan.key.step;
  tile.value = plan.value.at(batch, kv_head, 0);
  tile.value_row = plan.value.row / size;
  tile.value_step = plan.value.step;
  tile.out_step = plan.out.step;
  tile.is_far = false;
  tile.key_length = plan.key_length;
  tile.attn_mask_is_boolean = plan.attn_mask_is_boolean;
  tile.attn_mask_step = plan.attn_mask.step;
  tile.key_mask =
      plan.key_mask ? reinterpret_cast<const unsigned char*>(plan.key_mask + batch * plan.key_mask_batch) : nullptr;
  tile.key_mask_step = plan.key_mask_step;
  tile.scale = plan.scale;
  tile.softcap = plan.softcap;
  tile.has_alibi = plan.alibi_slopes != nullptr;
  tile.has_sinks = plan.sinks != nullptr;
  for (int r = 0; r < tile.rows; ++r) {
    const Index query = (first_row + r) / heads, head = first_head + (first_row + r) % heads;
    const KeyBounds bounds = key_bounds(plan, batch, query);
    tile.first_key[r] = bounds.first;
    tile.last_key[r] = bounds.last;
    tile.query[r] = plan.query.at(batch, head, query);
    tile.out[r] = plan.out.at(batch, head, query);
    tile.lse[r] = plan.lse.data ? plan.lse.at(batch, head, query) : nullptr;
    tile.position[r] = query_position(plan, batch, query);
    if (tile.has_alibi)
      tile.alibi_slope[r] = read_real(plan.alibi_slopes + head * plan.alibi_slope_stride, plan.accumulator);
    if (tile.has_sinks) tile.sink[r] = read_real(plan.sinks + head * plan.sink_stride, plan.accumulator);
    tile.attn_mask[r] = plan.attn_mask.data ? plan.attn_mask.at(batch, head, query) : nullptr;
  }
  return tile;
}

namespace {

void run_tile(const void* context, Index task, int worker) {
  const AttentionRun& run = *static_cast<const AttentionRun*>(context);
  const AttentionPlan& plan = *run.plan;
  // Tiles of one head follow one another, so that its keys and values stay in cache; the last tile, which sees the most
  // keys under a causal mask, comes first, so that the workers finish together.
  const Index tile_index = plan.tiles_per_head - 1 - task % plan.tiles_per_head;
  const Index kv_head = task / plan.tiles_per_head % plan.kv_heads;
  const Index batch = task / plan.tiles_per_head / plan.kv_heads;
  const Index first_row = tile_index * plan.kernels->query_tile_rows;

  AttentionTile tile = make_tile(plan, batch, kv_head * plan.group, plan.group, first_row);
  tile.is_far = task % plan.tiles_per_head < run.threads;  // about each worker's first tile of this head
  plan.kernel(tile, run.scratch + static_cast<std::size_t>(worker) * run.scratch_stride);
}

}  // namespace

Phase attention_phase(const AttentionRun& run) { return {run.plan->tiles(), &run_tile, &run}; }

void run_plan(const AttentionPlan& plan, int num_threads) {
  if (plan.tiles() == 0) return;
  const int threads = threads_for(num_threads, plan.tiles(), plan.work);
  const std::size_t stride = padded(plan.scratch_bytes);
  Workspace workspace(stride * static_cast<std::size_t>(threads));
  const AttentionRun run{&plan, threads, workspace.data(), stride};
  const Phase phase = attention_phase(run);
  run_phases(&phase, 1, threads);
}

}  // namespace mha

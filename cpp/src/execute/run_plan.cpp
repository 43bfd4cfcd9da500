#include "execute/run_plan.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "mha/half_precision.hpp"
#include "plan/key_bounds.hpp"
#include "platform/layout.hpp"

namespace mha {
namespace {

double read_real(const std::byte* element, DType dtype) {
  switch (dtype) {
#define MHA_DTYPE(name, scalar, accumulator) \
  case DType::name:                          \
    return to_double(*reinterpret_cast<const scalar*>(element));
#include "mha/dtypes.def"
#undef MHA_DTYPE
    case DType::boolean:
    case DType::int8:
      break;
  }
  return 0;
}

/// The keys that a mask over keys leaves: some of [first, last), or all of them.
struct UnmaskedKeys {
  Index first, last;
  bool all;
};

UnmaskedKeys unmasked_keys(const unsigned char* mask, Index step, Index keys) {
  if (step != 1) return {0, keys, false};
  const auto hides_eight = [mask](Index from) {
    std::uint64_t entries;
    std::memcpy(&entries, mask + from, sizeof entries);
    return entries == 0;
  };
  Index first = 0, last = keys;
  while (first + 8 <= last && hides_eight(first)) first += 8;
  while (first < last && mask[first] == 0) ++first;
  while (first + 8 <= last && hides_eight(last - 8)) last -= 8;
  while (first < last && mask[last - 1] == 0) --last;
  return {first, last, std::memchr(mask + first, 0, static_cast<std::size_t>(last - first)) == nullptr};
}

}  // namespace

AttentionTile make_tile(const AttentionPlan& plan, Index batch, Index first_head, Index heads, Index first_row) {
  AttentionTile tile;
  const Index first_query = plan.query_starts ? plan.query_starts[batch] : 0;
  const Index first_key = plan.key_starts ? plan.key_starts[batch] : 0;
  const Index left = heads * plan.queries_of(batch) - first_row;
  tile.rows = static_cast<int>(std::min<Index>(plan.kernels->query_tile_rows, left));
  tile.head_dim = plan.head_dim;
  tile.value_dim = plan.value_dim;
  tile.query_step = plan.query.step;
  tile.source = plan.key_values.source(batch, first_head / plan.group, first_key);
  tile.out_step = plan.out.step;
  tile.is_far = false;
  tile.is_wide = plan.is_wide;
  tile.key_length = plan.key_length;
  tile.attn_mask_is_boolean = plan.attn_mask_is_boolean;
  tile.attn_mask_step = plan.attn_mask.step;
  tile.key_mask = nullptr;
  tile.key_mask_step = plan.key_mask_step;
  UnmaskedKeys unmasked{0, plan.keys_of(batch), true};
  if (plan.key_mask) {
    const std::byte* const mask = plan.key_mask + batch * plan.key_mask_batch + first_key * plan.key_mask_step;
    tile.key_mask = reinterpret_cast<const unsigned char*>(mask);
    // Padding is a matter of bounds: outside them nothing is computed, and between them nothing is left to look at.
    unmasked = unmasked_keys(tile.key_mask, tile.key_mask_step, unmasked.last);
    if (unmasked.all) tile.key_mask = nullptr;
  }
  tile.block_mask[0] = nullptr;
  tile.block_mask_step = plan.block_mask.step;
  tile.block_masks_differ = false;
  tile.scale = plan.scale;
  tile.softcap = plan.softcap;
  tile.has_alibi = plan.alibi_slopes.data != nullptr;
  tile.has_sinks = plan.sinks.data != nullptr;
  tile.has_dropout = plan.has_dropout;
  tile.dropout_below = plan.dropout_below;
  tile.dropout_factor = plan.dropout_factor;
  tile.dropout_seed = plan.dropout_seed;
  // Each loop fills a few fields of all rows, and a missing option has no loop, since laying out a small tile takes as
  // long as computing it. The first loop reads copies of fields of the plan: the compiler does not know that the tile
  // and the plan do not overlap.
  const auto for_each_row = [&, rows = tile.rows](auto visit) {
    Index query = first_row / heads, head = first_head + first_row % heads;
    for (int r = 0; r < rows; ++r) {
      visit(r, head, query);
      if (++head == first_head + heads) {
        head = first_head;
        ++query;
      }
    }
  };
  for_each_row([&, query_rows = plan.query, out_rows = plan.out, unmasked](int r, Index head, Index query) {
    const KeyBounds bounds = key_bounds(plan, batch, query);
    tile.first_key[r] = std::max(bounds.first, unmasked.first);
    tile.last_key[r] = std::max(tile.first_key[r], std::min(bounds.last, unmasked.last));
    tile.position[r] = query_position(plan, batch, query);
    tile.query[r] = query_rows.at(batch, head, first_query + query);
    tile.out[r] = out_rows.at(batch, head, first_query + query);
  });
  const auto place_rows = [&](auto* places, const auto& rows) {
    if (rows.data == nullptr) return static_cast<void>(std::fill_n(places, tile.rows, nullptr));
    for_each_row([&](int r, Index head, Index query) { places[r] = rows.at(batch, head, first_query + query); });
  };
  place_rows(tile.lse, plan.lse);
  place_rows(tile.attn_mask, plan.attn_mask);
  place_rows(tile.position_bias, plan.position_bias);
  if (tile.has_alibi)
    for_each_row([&](int r, Index head, Index query) {
      tile.alibi_slope[r] = read_real(plan.alibi_slopes.at(batch, head, first_query + query), plan.accumulator);
    });
  if (tile.has_sinks)
    for_each_row([&](int r, Index head, Index query) {
      tile.sink[r] = read_real(plan.sinks.at(batch, head, first_query + query), plan.sink_dtype);
    });
  if (tile.has_dropout)
    for_each_row([&](int r, Index head, Index) {
      tile.dropout_stream[r] = static_cast<std::uint64_t>(batch * plan.kv_heads * plan.group + head);
    });
  if (plan.block_mask.data)
    for_each_row([&](int r, Index head, Index query) {
      const std::byte* const blocks = plan.block_mask.at(batch, head, query / kKeyBlock);
      tile.block_mask[r] = reinterpret_cast<const unsigned char*>(blocks);
      tile.block_masks_differ |= tile.block_mask[r] != tile.block_mask[0];
    });
  tile.position_bias_step = plan.position_bias.step;
  tile.farthest_distance = plan.farthest_distance;
  tile.heads = heads;
  tile.span = nullptr;
  return tile;
}

void narrow_to(AttentionTile& tile, Index span) {
  for (int r = 0; r < tile.rows; ++r) {
    tile.first_key[r] = std::max(tile.first_key[r], span * kSpanKeys);
    tile.last_key[r] = std::max(tile.first_key[r], std::min(tile.last_key[r], (span + 1) * kSpanKeys));
  }
}

namespace {

/// Whether heads alone, of all batch elements, would leave threads idle: with four for each, the last to finish are a
/// small part of the whole. Those without queries count: memory is laid out before it is known how many tiles there
/// are.
bool has_few_heads(Index heads, int threads) { return threads > 1 && heads < Index{4} * threads; }

/// The tile that a task computes.
struct TileIndex {
  Index batch, kv_head;
  Index task_of_head;  // among the tiles of this head, in the order in which they are begun
  Index tile_index;    // in the order of the query rows
};

/// Tiles of one head follow one another, so that its keys and values stay in cache; the last tile, which sees the most
/// keys under a causal mask, comes first, so that the workers finish together.
TileIndex tile_index_of(const AttentionRun& run, Index task) {
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

AttentionTile tile_at(const AttentionRun& run, Index task) {
  const auto [batch, kv_head, task_of_head, tile_index] = tile_index_of(run, task);
  const AttentionPlan& plan = *run.plan;
  AttentionTile tile =
      make_tile(plan, batch, kv_head * plan.group, plan.group, tile_index * plan.kernels->query_tile_rows);
  tile.is_far = task_of_head < run.workers.threads;  // about each worker's first tile of this head
  return tile;
}

const AttentionRun& run_of(const void* context) { return *static_cast<const AttentionRun*>(context); }

/// The kernel for few rows, unless the other one is faster for them, or they fill one of the tiles of a longer prompt,
/// which are as small where vectors are narrow.
const AttentionKernel& kernel_of(const AttentionPlan& plan, const AttentionTile& tile, int most_rows) {
  const bool are_few = tile.rows <= most_rows && (plan.has_few_rows() || tile.rows < plan.kernels->query_tile_rows);
  return plan.suits_decode && are_few ? plan.kernels->decode : plan.kernels->attend;
}
const AttentionKernel& kernel_of(const AttentionPlan& plan, const AttentionTile& tile) {
  return kernel_of(plan, tile, plan.kernels->decode_rows);
}

void run_tile(const void* context, Index task, int worker) {
  const AttentionRun& run = run_of(context);
  const AttentionTile tile = tile_at(run, task);
  const auto kernel = run.plan->write ? run.plan->write : kernel_of(*run.plan, tile).run;
  kernel(tile, run.workers.scratch_of(worker));
}

std::byte* sums_of(const AttentionRun& run, Index tile) {
  const std::size_t bytes = most_span_bytes(*run.plan->kernels, run.plan->value_dim);
  return run.span_sums + static_cast<std::size_t>(tile * run.plan->spans) * bytes;
}

void sum_span(const void* context, Index task, int worker) {
  const AttentionRun& run = run_of(context);
  const Index index = task / run.plan->spans, span = task % run.plan->spans;
  AttentionTile tile = tile_at(run, index);
  narrow_to(tile, span);
  const AttentionKernel& kernel = kernel_of(*run.plan, tile);
  tile.span = sums_of(run, index) + static_cast<std::size_t>(span) * kernel.span_bytes(tile.value_dim);
  kernel.run(tile, run.workers.scratch_of(worker));
}

void merge_spans(const void* context, Index task, int worker) {
  const AttentionRun& run = run_of(context);
  const AttentionTile tile = tile_at(run, task);
  kernel_of(*run.plan, tile).merge_spans(tile, sums_of(run, task), run.plan->spans, run.workers.scratch_of(worker));
}

/// The rows of a sequence that shares spans.
AttentionTile tile_of(const AttentionPlan& plan, Index batch, Index kv_head) {
  return make_tile(plan, batch, kv_head * plan.group, plan.group, 0);
}

std::byte* shared_sums_of(const AttentionRun& run, Index batch, Index kv_head, Index span) {
  const AttentionPlan& plan = *run.plan;
  const Index index = (batch * plan.kv_heads + kv_head) * plan.spans + span;
  return run.shared.sums + static_cast<std::size_t>(index) * plan.kernels->decode.span_bytes(plan.value_dim);
}

/// Rows of another sequence, which read the same keys and values.
void append_rows(AttentionTile& tile, const AttentionTile& other) {
  for (int r = 0; r < other.rows; ++r, ++tile.rows) {
    tile.query[tile.rows] = other.query[r];
    tile.first_key[tile.rows] = other.first_key[r];
    tile.last_key[tile.rows] = other.last_key[r];
    tile.attn_mask[tile.rows] = other.attn_mask[r];
    tile.alibi_slope[tile.rows] = other.alibi_slope[r];
    tile.position_bias[tile.rows] = other.position_bias[r];
    tile.position[tile.rows] = other.position[r];
  }
}

/// One span of one key-value head, for as many sequences as share it in a tile.
void sum_shared_span(const void* context, Index task, int worker) {
  const AttentionRun& run = run_of(context);
  const AttentionPlan& plan = *run.plan;
  const SharedSpans& shared = run.shared;
  const Index p = task % shared.sequences, span = task / shared.sequences % plan.spans;
  const Index kv_head = task / (shared.sequences * plan.spans), members = shared.members[span * shared.sequences + p];
  if (members == 0) return;
  AttentionTile tile = tile_of(plan, shared.order[p], kv_head);
  for (Index i = 1; i < members; ++i) append_rows(tile, tile_of(plan, shared.order[p + i], kv_head));
  narrow_to(tile, span);
  // Few rows that see different keys go to decode, whose sums merge_shared_spans() reads, too.
  const AttentionKernel& kernel = kernel_of(plan, tile, kMaxDecodeRows);
  std::byte* const aside =
      shared.aside + static_cast<std::size_t>(worker) * most_span_bytes(*plan.kernels, plan.value_dim);
  tile.span = members == 1 ? shared_sums_of(run, shared.order[p], kv_head, span) : aside;
  kernel.run(tile, run.workers.scratch_of(worker));
  for (Index i = 0, first = 0; members > 1 && i < members; ++i) {
    const Index b = shared.order[p + i], rows = plan.group * plan.queries_of(b);
    kernel.copy_span_rows(aside, first, rows, shared_sums_of(run, b, kv_head, span), plan.value_dim);
    first += rows;
  }
}

void merge_shared_spans(const void* context, Index task, int worker) {
  const AttentionRun& run = run_of(context);
  const AttentionPlan& plan = *run.plan;
  const Index b = run.shared.order[task / plan.kv_heads], kv_head = task % plan.kv_heads;
  plan.kernels->decode.merge_spans(tile_of(plan, b, kv_head), shared_sums_of(run, b, kv_head, 0),
                                   std::max<Index>(1, spans_of(plan.keys_of(b))), run.workers.scratch_of(worker));
}

/// A tile of many rows is cut up only for threads that would have no head at all: each part packs all of its queries.
bool shares_out_spans(const AttentionPlan& plan, int threads) {
  const Index heads = saturated_product(plan.batch, plan.kv_heads);
  return plan.spans > 1 && has_few_heads(heads, threads) && (plan.has_few_rows() || heads < threads);
}

}  // namespace

double span_sums_bytes(const DTypeKernels& kernels, Index heads, Index rows, Index spans, Index value_dim,
                       int threads) {
  if (!has_few_heads(heads, threads) || rows > most_shared_rows(kernels)) return 0;
  const Index tiles_per_head = (rows + kernels.query_tile_rows - 1) / kernels.query_tile_rows;
  return double(heads) * double(tiles_per_head) * double(spans) * double(most_span_bytes(kernels, value_dim));
}

int attention_phases(const AttentionRun& run, Phase* phases) {
  const AttentionPlan& plan = *run.plan;
  if (const Index sequences = run.shared.sequences) {
    phases[0] = {plan.kv_heads * plan.spans * sequences, &sum_shared_span, &run};
    phases[1] = {plan.kv_heads * sequences, &merge_shared_spans, &run};
    return 2;
  }
  if (!shares_out_spans(plan, run.workers.threads)) {
    phases[0] = {plan.tiles(), &run_tile, &run};
    return 1;
  }
  phases[0] = {plan.tiles() * plan.spans, &sum_span, &run};
  phases[1] = {plan.tiles(), &merge_spans, &run};
  return 2;
}

void run_plan(const AttentionPlan& plan, int num_threads) {
  if (plan.tiles() == 0) return;
  const int threads = threads_for(num_threads, plan.tiles() * plan.spans, plan.work);
  const Index heads = plan.batch * plan.kv_heads, rows = most_shared_rows(*plan.kernels);
  const double sums =
      plan.spans == 1 ? 0 : span_sums_bytes(*plan.kernels, heads, rows, plan.spans, plan.value_dim, threads);
  const bool is_ragged = plan.query_starts != nullptr;
  Layout layout;
  const std::size_t sums_at = layout.take(sums);
  const std::size_t schedule_at = layout.take(is_ragged ? double(schedule_bytes(plan.batch)) : 0);
  const double shared = shared_spans_bytes(*plan.kernels, plan.key_values, plan.batch, plan.kv_heads, plan.most_rows,
                                           plan.spans, plan.value_dim, threads);
  const std::size_t shared_at = layout.take(shared);
  const CallMemory memory(layout, threads, plan.scratch_bytes);
  const SequenceTasks* const tasks = is_ragged ? schedule(plan, memory.data() + schedule_at) : nullptr;
  AttentionRun run{&plan, memory.workers(), memory.data() + sums_at, tasks};
  if (shared > 0) run.shared = find_shared_spans(plan, memory.data() + shared_at, memory.workers());
  Phase phases[2];
  run_phases(phases, attention_phases(run, phases), threads);
}

}  // namespace mha

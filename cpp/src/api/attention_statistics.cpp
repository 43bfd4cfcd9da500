// attention_statistics: a task is one head of one batch element, and goes through the query tiles of the head in order.
// So the weight that a key receives is summed in the same order, however many threads there are.
#include "mha/attention_statistics.hpp"

#include <algorithm>

#include "checks/attention.hpp"
#include "checks/kv_cache.hpp"
#include "execute/run_plan.hpp"
#include "plan/make_plan.hpp"
#include "platform/cancellation.hpp"
#include "platform/dispatch.hpp"
#include "platform/floating_point_state.hpp"
#include "platform/layout.hpp"

namespace mha {
namespace {

/// The shared state of the tasks of a call.
struct StatisticsRun {
  AttentionPlan plan;
  AttentionStatistics results;
  Workers workers;  // scratch of each: one sum for each key and, from byte kernel_scratch_at on, the kernel's
  std::size_t kernel_scratch_at;
};

/// The element of a view [B, H, T] at these indices.
std::byte* element(const MutableTensorView& view, Index b, Index h, Index i) {
  return static_cast<std::byte*>(view.data) +
         (b * view.strides[0] + h * view.strides[1] + i * view.strides[2]) * size_of(view.dtype);
}

/// Rounds the sums of one head to the dtype of the result.
void store_received(const MutableTensorView& received, Index batch, Index head, const double* sums) {
  for (Index j = 0; j < received.extents[2]; ++j) {
    std::byte* const target = element(received, batch, head, j);
    if (received.dtype == DType::f64)
      *reinterpret_cast<double*>(target) = sums[j];
    else
      *reinterpret_cast<float*>(target) = static_cast<float>(sums[j]);
  }
}

void run_head(const void* context, Index task, int worker) {
  const StatisticsRun& run = *static_cast<const StatisticsRun*>(context);
  const AttentionPlan& plan = run.plan;
  const AttentionStatistics& results = run.results;
  const Index heads = plan.kv_heads * plan.group, batch = task / heads, head = task % heads;
  std::byte* const scratch = run.workers.scratch_of(worker);

  StatisticsOutputs outputs;
  outputs.received = results.received_weight ? reinterpret_cast<double*>(scratch) : nullptr;
  if (outputs.received) std::fill_n(outputs.received, plan.key_length, 0.0);
  Cancellation& cancellation = Cancellation::of_this_thread();
  for (Index first_row = 0; first_row < plan.query_length; first_row += plan.kernels->query_tile_rows) {
    if (cancellation.is_set()) return;  // a head may take seconds
    AttentionTile tile = make_tile(plan, batch, head, 1, first_row);
    tile.is_far = first_row == 0;
    for (int r = 0; r < tile.rows; ++r) {
      const Index query = first_row + r;
      const auto at = [&](const MutableTensorView& view) { return view ? element(view, batch, head, query) : nullptr; };
      outputs.entropy[r] = at(results.entropy);
      outputs.max_weight[r] = at(results.max_weight);
      outputs.mean_distance[r] = at(results.mean_distance);
      outputs.max_key[r] = results.max_key ? results.max_key + task * plan.query_length + query : nullptr;
    }
    plan.kernels->statistics(tile, outputs, scratch + run.kernel_scratch_at);
  }
  if (outputs.received) store_received(results.received_weight, batch, head, outputs.received);
}

void run(const AttentionArguments& inputs, const AttentionStatistics& results) {
  const StatisticsArguments a = validate(inputs, results);
  if (!a.has_elements_to_write) return;
  // The plan of attention_weights, which has no values. Its tiles are computed by another kernel, in run_head().
  StatisticsRun run{make_plan(a.inputs, AttentionOutput::weights, active_kernels()), a.results, {}, 0};
  const Index tasks = run.plan.batch * run.plan.kv_heads * run.plan.group;
  const int threads = threads_for(inputs.options.num_threads, tasks, 2 * run.plan.work);  // scores are computed twice
  Layout scratch;
  scratch.take(a.results.received_weight ? double(run.plan.key_length) * sizeof(double) : 0);
  run.kernel_scratch_at = scratch.take(double(run.plan.scratch_bytes));
  const CallMemory memory({}, threads, scratch.total());
  run.workers = memory.workers();
  const Phase phase{tasks, &run_head, &run};
  run_phases(&phase, 1, threads);
}

}  // namespace

void attention_statistics(const TensorView& query, const TensorView& key, const AttentionStatistics& results,
                          const AttentionOptions& options) {
  const FloatingPointState state;
  run({"attention_statistics", query, key, {}, {}, {}, options}, results);
}

void attention_statistics(const TensorView& query, const KVCache& cache, const AttentionStatistics& results,
                          const AttentionOptions& options) {
  const FloatingPointState state;
  AttentionArguments arguments{"attention_statistics", query, {}, {}, {}, {}, options};
  const CachedKeys keys(arguments, cache, false);
  run(arguments, results);
}

}  // namespace mha

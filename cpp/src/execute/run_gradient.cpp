#include "execute/run_gradient.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "execute/run_plan.hpp"
#include "platform/cancellation.hpp"
#include "platform/layout.hpp"

namespace mha {
namespace {

/// Most spans of one head that are computed at a time, for each thread: their gradients of queries lie in memory until
/// they are added in order, T x D numbers for each span.
constexpr Index kSpansPerThread = 2;

/// Sizes of rows of sums, in elements, padded to whole vectors of the widest set.
Index padded_row(Index columns, DType sums) {
  const Index lanes = kVectorBytes / size_of(sums);
  return (columns + lanes - 1) / lanes * lanes;
}

/// The shared state of the tasks of a call.
struct GradientRun {
  const GradientPlan* plan;
  Workers workers;  // scratch of each: the kernel's, then the sums below
  std::size_t dkey_at, dvalue_at, dquery_at, row_at;
  Index query_row, value_row;  // elements between rows of sums of D, and of Dv
  // Where the spans of a head are shared out: the head, the first span of the current ones, and a sum of dquery for
  // each, and for all before them.
  std::byte* shared_dquery;
  std::size_t shared_stride;  // bytes

  const AttentionPlan& attention() const { return plan->attention; }
  Index sum_size() const { return size_of(attention().accumulator); }
  /// Bytes of the sums of dquery of one key-value head.
  std::size_t dquery_bytes() const { return std::size_t(attention().most_rows * query_row * sum_size()); }
};

/// A key-value head of a batch element.
struct Head {
  Index batch, kv_head;
};

/// Adds the gradients of one tile with the keys of one span.
void add_tile(const GradientRun& run, Head head, Index span, Index first_row, std::byte* dquery, std::byte* scratch) {
  const GradientPlan& plan = *run.plan;
  const AttentionPlan& attention = plan.attention;
  const Index group = attention.group, first_head = head.kv_head * group;
  AttentionTile tile = make_tile(attention, head.batch, first_head, group, first_row);
  narrow_to(tile, span);
  tile.is_far = first_row == 0;
  const bool is_seen = std::any_of(tile.first_key, tile.first_key + tile.rows,
                                   [&](const Index& first) { return first < tile.last_key[&first - tile.first_key]; });
  const bool adds_sinks = plan.dsinks && span == 0;
  if (!is_seen && !adds_sinks) return;

  GradientTile g;
  g.out_step = plan.out.step;
  g.dout_step = plan.dout.step;
  g.dkey = plan.dkey.data ? scratch + run.dkey_at : nullptr;
  g.dvalue = plan.dvalue.data ? scratch + run.dvalue_at : nullptr;
  g.dkey_row = run.query_row;
  g.dvalue_row = run.value_row;
  g.dattn_mask_step = plan.dattn_mask.step;
  const Index first_query = attention.query_starts ? attention.query_starts[head.batch] : 0;
  const Index distances = 2 * attention.farthest_distance + 1;
  for (int r = 0; r < tile.rows; ++r) {
    const Index row = first_row + r, query = first_query + row / group, h = first_head + row % group;
    g.out[r] = plan.out.at(head.batch, h, query);
    g.dout[r] = plan.dout.at(head.batch, h, query);
    g.lse[r] = plan.lse.at(head.batch, h, query);
    g.dlse[r] = plan.dlse.data ? plan.dlse.at(head.batch, h, query) : nullptr;
    g.dquery[r] = dquery ? dquery + row * run.query_row * run.sum_size() : nullptr;
    g.dattn_mask[r] = plan.dattn_mask.data ? plan.dattn_mask.at(head.batch, h, query) : nullptr;
    g.dposition_bias[r] =
        plan.dposition_bias.data ? plan.dposition_bias.data + h * distances * run.sum_size() : nullptr;
    g.dalibi_slope[r] = plan.dalibi_slopes ? plan.dalibi_slopes + head.batch * plan.dalibi_slopes_batch + h : nullptr;
    g.dsink[r] = adds_sinks ? plan.dsinks + h : nullptr;
  }
  attention.kernels->gradient(tile, g, scratch);
}

/// Multiplies a row of sums by `scale`, rounds it to elements, and stores it.
template <class T>
void store_row(const GradientPlan& plan, const T* sums, Index columns, double scale, std::byte* to, Index step,
               std::byte* near) {
  T* const numbers = reinterpret_cast<T*>(near);
  for (Index c = 0; c < columns; ++c) numbers[c] = sums[c] * T(scale);
  if (step == 1) return plan.rounding->round(numbers, to, columns);
  const Index size = size_of(plan.dtype);
  std::byte* const elements = near + columns * Index(sizeof(T));
  plan.rounding->round(numbers, elements, columns);
  for (Index c = 0; c < columns; ++c) std::memcpy(to + c * step * size, elements + c * size, std::size_t(size));
}

/// Keys of batch element b, those included that do not exist: they have gradients of 0.
Index all_keys_of(const AttentionPlan& plan, Index b) {
  return plan.key_starts ? plan.key_starts[b + 1] - plan.key_starts[b] : plan.key_length;
}

template <class T>
void store_keys(const GradientRun& run, Head head, Index span, const std::byte* sums, Index row, Index columns,
                double scale, const Output& target, std::byte* near) {
  if (!target.data) return;
  const AttentionPlan& attention = run.attention();
  const Index first_key = attention.key_starts ? attention.key_starts[head.batch] : 0;
  const Index last = std::min(all_keys_of(attention, head.batch), (span + 1) * kSpanKeys);
  for (Index key = span * kSpanKeys; key < last; ++key)
    store_row(*run.plan, reinterpret_cast<const T*>(sums) + key % kSpanKeys * row, columns, scale,
              target.at(head.batch, head.kv_head, first_key + key), target.step, near);
}

/// Rows [first_row, last_row) of a head, whose sums are a row each.
template <class T>
void store_queries(const GradientRun& run, Head head, const std::byte* sums, Index first_row, Index last_row,
                   std::byte* near) {
  const GradientPlan& plan = *run.plan;
  const AttentionPlan& attention = plan.attention;
  const Index group = attention.group, first_query = attention.query_starts ? attention.query_starts[head.batch] : 0;
  for (Index row = first_row; row < last_row; ++row)
    store_row(plan, reinterpret_cast<const T*>(sums) + row * run.query_row, attention.head_dim, attention.scale,
              plan.dquery.at(head.batch, head.kv_head * group + row % group, first_query + row / group),
              plan.dquery.step, near);
}

/// Calls function(T()) with the type of sums.
template <class Function>
void with_sums(const GradientRun& run, Function function) {
  if (run.attention().accumulator == DType::f64) return function(double());
  function(float());
}

/// One span of a head: dkey and dvalue are stored, dquery is added to sums.
void add_span(const GradientRun& run, Head head, Index span, std::byte* dquery, std::byte* scratch) {
  const GradientPlan& plan = *run.plan;
  const AttentionPlan& attention = plan.attention;
  const Index keys = std::min(kSpanKeys, all_keys_of(attention, head.batch) - span * kSpanKeys);
  const auto clear = [&](std::size_t at, Index row) {
    std::memset(scratch + at, 0, std::size_t(std::max<Index>(keys, 0) * row * run.sum_size()));
  };
  if (plan.dkey.data) clear(run.dkey_at, run.query_row);
  if (plan.dvalue.data) clear(run.dvalue_at, run.value_row);
  const Index rows = attention.group * attention.queries_of(head.batch);
  for (Index first_row = 0; first_row < rows; first_row += attention.kernels->query_tile_rows) {
    if (Cancellation::of_this_thread().is_set()) return;
    add_tile(run, head, span, first_row, dquery, scratch);
  }
  with_sums(run, [&](auto zero) {
    using T = decltype(zero);
    std::byte* const near = scratch + run.row_at;
    store_keys<T>(run, head, span, scratch + run.dkey_at, run.query_row, attention.head_dim, attention.scale, plan.dkey,
                  near);
    store_keys<T>(run, head, span, scratch + run.dvalue_at, run.value_row, attention.value_dim, 1, plan.dvalue, near);
  });
}

/// A head, span after span. Without keys its queries have gradients of 0.
void run_head(const GradientRun& run, Head head, std::byte* scratch) {
  std::byte* const dquery = run.plan->dquery.data ? scratch + run.dquery_at : nullptr;
  if (dquery) std::memset(dquery, 0, run.dquery_bytes());
  const Index spans = std::max<Index>(1, spans_of(all_keys_of(run.attention(), head.batch)));
  for (Index span = 0; span < spans; ++span) add_span(run, head, span, dquery, scratch);
  with_sums(run, [&](auto zero) {
    const Index rows = run.attention().group * run.attention().queries_of(head.batch);
    if (dquery) store_queries<decltype(zero)>(run, head, dquery, 0, rows, scratch + run.row_at);
  });
}

/// All heads whose gradients of options are added to the same numbers, in order.
void run_heads(const void* context, Index task, int worker) {
  const GradientRun& run = *static_cast<const GradientRun*>(context);
  const GradientPlan& plan = *run.plan;
  const Index heads = plan.attention.kv_heads, tasks_of_batch = plan.adds_heads ? 1 : heads;
  const Index first = plan.adds_batches ? 0 : task / tasks_of_batch;
  const Index last = plan.adds_batches ? plan.attention.batch : first + 1;
  for (Index b = first; b < last; ++b)
    for (Index h = plan.adds_heads ? 0 : task % tasks_of_batch; h < heads; ++h) {
      run_head(run, {b, h}, run.workers.scratch_of(worker));
      if (!plan.adds_heads) break;
    }
}

/// Some neighbouring spans of a head, each with sums of dquery of its own.
struct SharedSpansOfHead {
  const GradientRun* run;
  Head head;
  Index first, last, spans;

  std::byte* sums(Index span) const { return run->shared_dquery + std::size_t(span - first + 1) * run->shared_stride; }
  std::byte* total() const { return run->shared_dquery; }
};

void run_shared_span(const void* context, Index task, int worker) {
  const auto& shared = *static_cast<const SharedSpansOfHead*>(context);
  const GradientRun& run = *shared.run;
  std::byte* dquery = nullptr;
  if (run.plan->dquery.data) {
    dquery = shared.sums(shared.first + task);
    std::memset(dquery, 0, run.dquery_bytes());
  }
  add_span(run, shared.head, shared.first + task, dquery, run.workers.scratch_of(worker));
}

/// Adds them in order; after the last ones dquery is stored. Task i has the rows of tile i.
void add_shared_spans(const void* context, Index task, int worker) {
  const auto& shared = *static_cast<const SharedSpansOfHead*>(context);
  const GradientRun& run = *shared.run;
  const AttentionPlan& attention = run.attention();
  const Index tile_rows = attention.kernels->query_tile_rows, first_row = task * tile_rows;
  const Index last_row = std::min(first_row + tile_rows, attention.group * attention.queries_of(shared.head.batch));
  std::byte* const near = run.workers.scratch_of(worker) + run.row_at;
  with_sums(run, [&](auto zero) {
    using T = decltype(zero);
    const Index from = first_row * run.query_row, count = (last_row - first_row) * run.query_row;
    T* const total = reinterpret_cast<T*>(shared.total()) + from;
    if (shared.first == 0) std::fill_n(total, count, T(0));
    for (Index span = shared.first; span < shared.last; ++span) {
      const T* const sums = reinterpret_cast<const T*>(shared.sums(span)) + from;
      for (Index i = 0; i < count; ++i) total[i] += sums[i];
    }
    if (shared.last == shared.spans) store_queries<T>(run, shared.head, shared.total(), first_row, last_row, near);
  });
}

}  // namespace

void run_gradient(const GradientPlan& plan, int num_threads) {
  const AttentionPlan& attention = plan.attention;
  const Index heads = saturated_product(attention.batch, attention.kv_heads);
  if (heads == 0) return;
  const bool adds_options = plan.dattn_mask.data || plan.dposition_bias.data || plan.dalibi_slopes || plan.dsinks;
  const Index tasks = (plan.adds_batches ? 1 : attention.batch) * (plan.adds_heads ? 1 : attention.kv_heads);
  Index most_keys = 0;
  for (Index b = 0; b < (attention.key_starts ? attention.batch : 1); ++b)
    most_keys = std::max(most_keys, all_keys_of(attention, b));
  const double work = 2.5 * attention.work;
  const Index spans = std::max<Index>(1, spans_of(most_keys));
  // With two heads for each thread there is enough to do without the sums of several spans.
  const bool shares_spans =
      !adds_options && spans > 1 && heads < 2 * Index{threads_for(num_threads, saturated_product(heads, spans), work)};
  const int threads = threads_for(num_threads, shares_spans ? heads * spans : tasks, work);

  GradientRun run{};
  run.plan = &plan;
  run.query_row = padded_row(attention.head_dim, attention.accumulator);
  run.value_row = padded_row(attention.value_dim, attention.accumulator);
  const double size = double(run.sum_size());
  Layout scratch;
  scratch.take(double(attention.kernels->gradient_scratch(attention.head_dim, attention.value_dim)));
  run.dkey_at = scratch.take(plan.dkey.data ? double(kSpanKeys) * double(run.query_row) * size : 0);
  run.dvalue_at = scratch.take(plan.dvalue.data ? double(kSpanKeys) * double(run.value_row) * size : 0);
  run.row_at = scratch.take(2 * double(std::max(run.query_row, run.value_row)) * size);
  const double dquery = plan.dquery.data ? double(attention.most_rows) * double(run.query_row) * size : 0;
  run.dquery_at = scratch.take(shares_spans ? 0 : dquery);

  const Index together = kSpansPerThread * threads;
  Layout layout;
  const std::size_t shared_at = layout.take(0);
  run.shared_stride = padded(allocatable(dquery));
  if (shares_spans) layout.take(double(together + 1) * double(run.shared_stride));
  const CallMemory memory(layout, threads, scratch.total());
  run.workers = memory.workers();
  run.shared_dquery = memory.data() + shared_at;
  if (!shares_spans) {
    const Phase phase{tasks, &run_heads, &run};
    return run_phases(&phase, 1, threads);
  }

  std::vector<SharedSpansOfHead> parts;
  for (Index b = 0; b < attention.batch; ++b)
    for (Index h = 0; h < attention.kv_heads; ++h) {
      const Index count = std::max<Index>(1, spans_of(all_keys_of(attention, b)));
      for (Index first = 0; first < count; first += together)
        parts.push_back({&run, {b, h}, first, std::min(count, first + together), count});
    }
  std::vector<Phase> phases;
  for (const SharedSpansOfHead& part : parts) {
    phases.push_back({part.last - part.first, &run_shared_span, &part});
    if (plan.dquery.data) phases.push_back({attention.tiles_of(part.head.batch), &add_shared_spans, &part});
  }
  run_phases(phases.data(), int(phases.size()), threads);
}

}  // namespace mha

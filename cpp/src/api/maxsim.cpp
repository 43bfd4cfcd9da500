// Late interaction: queries in groups that are packed together, documents in tasks.
#include "mha/maxsim.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "checks/maxsim.hpp"
#include "kernels/kernel_table.hpp"
#include "platform/cancellation.hpp"
#include "platform/dispatch.hpp"
#include "platform/floating_point_state.hpp"
#include "platform/layout.hpp"
#include "platform/parallel.hpp"

namespace mha {
namespace {

/// Packed tokens of a group: they share level 2 with the tokens of a document, on cores with 1 MiB or more of it.
constexpr Index kPanelsBytes = Index{256} << 10, kMostLanes = 1024, kMostQueries = 256;

/// Documents of a task, for which queries are packed once, and the multiply-adds that a task should have: 100 us.
constexpr Index kMostDocuments = 64;
constexpr double kWorkPerTask = 4e6;

/// Tokens of a call of the kernel, between which a task looks whether the call is to end.
constexpr Index kMostTokens = 256;

/// Multiply-adds that take as long as quantizing a number, and the rows that a task quantizes.
constexpr double kWorkPerQuantized = 4;
constexpr Index kRowsPerTask = 64;

/// Neighbouring queries that are packed together; a query with more tokens than fit is packed part by part.
struct Group {
  Index query, queries;
  Index first_item, items;  // documents, or pairs in the order of queries
  Index first_task, items_of_task;
};

struct MaxSimRun {
  const TokenMatrices& queries;
  const TokenMatrices& documents;
  const MutableTensorView& scores;
  const MaxSimKernel& kernel;
  const QueryAndDocument* pairs;  // null: all
  std::vector<Index> order;       // of pairs: by query
  std::vector<Group> groups;
  Index lanes;  // most packed tokens
  std::size_t panels_at, maxima_at, sums_at;
  Workers workers;

  Index document_of(Index item) const { return pairs ? pairs[order[std::size_t(item)]].document : item; }
};

TokenRows rows_of(const TokenMatrices& matrices) {
  const TensorView& tokens = matrices.tokens;
  return {tokens.data,
          tokens.strides[0],
          tokens.strides[1],
          size_of(tokens.dtype),
          static_cast<const float*>(matrices.scale.data),
          matrices.scale ? matrices.scale.strides[0] : 0};
}

/// The same from row `first` on.
TokenRows from_row(TokenRows rows, Index first) {
  rows.tokens = static_cast<const std::byte*>(rows.tokens) + first * rows.row * rows.element_bytes;
  if (rows.scale != nullptr) rows.scale += first * rows.scale_step;
  return rows;
}

/// The documents [first, first + count) of a group, for which T is the type of maxima and scores.
template <class T>
void score_documents(const MaxSimRun& run, const Group& group, Index first, Index count, std::byte* scratch) {
  const std::int64_t *const q = run.queries.cu_seqlens, *const d = run.documents.cu_seqlens;
  std::byte* const panels = scratch + run.panels_at;
  T* const maxima = reinterpret_cast<T*>(scratch + run.maxima_at);
  double* const sums = reinterpret_cast<double*>(scratch + run.sums_at);
  Cancellation& cancellation = Cancellation::of_this_thread();
  const TokenRows query_rows = rows_of(run.queries), document_rows = rows_of(run.documents);
  const Index columns = run.queries.tokens.extents[1];
  std::fill_n(sums, count * group.queries, 0.0);

  const Index end = q[group.query + group.queries];
  Index query = group.query;  // of the first packed token
  for (Index row = q[group.query], lanes; row < end; row += lanes) {
    lanes = std::min(run.lanes, end - row);
    run.kernel.pack(query_rows, row, lanes, columns, panels);
    while (q[query + 1] <= row) ++query;
    for (Index i = 0; i < count; ++i) {
      const Index document = run.document_of(group.first_item + first + i);
      std::fill_n(maxima, run.lanes, -std::numeric_limits<T>::infinity());
      for (Index token = d[document], tokens; token < d[document + 1]; token += tokens) {
        if (cancellation.is_set()) return;
        tokens = std::min<Index>(kMostTokens, d[document + 1] - token);
        run.kernel.raise({columns, panels, lanes, from_row(document_rows, token), tokens, maxima}, scratch);
      }
      double* const sums_of_document = sums + i * group.queries - group.query;
      for (Index lane = 0, at = query; lane < lanes; ++at) {
        const Index last = std::min<Index>(q[at + 1] - row, lanes);
        double sum = sums_of_document[at];
        for (; lane < last; ++lane) sum += double(maxima[lane]);
        sums_of_document[at] = sum;
      }
    }
  }
  T* const scores = static_cast<T*>(run.scores.data);
  const Index* const strides = run.scores.strides;
  for (Index i = 0; i < count; ++i)
    for (Index k = 0; k < group.queries; ++k) {
      const Index item = group.first_item + first + i;
      const Index at =
          run.pairs ? run.order[std::size_t(item)] * strides[0] : (group.query + k) * strides[0] + item * strides[1];
      scores[at] = static_cast<T>(sums[i * group.queries + k]);
    }
}

void maxsim_task(const void* context, Index task, int worker) {
  const MaxSimRun& run = *static_cast<const MaxSimRun*>(context);
  const Group& group = *(std::upper_bound(run.groups.begin(), run.groups.end(), task,
                                          [](Index t, const Group& g) { return t < g.first_task; }) -
                         1);
  const Index first = (task - group.first_task) * group.items_of_task,
              count = std::min(group.items_of_task, group.items - first);
  std::byte* const scratch = run.workers.scratch_of(worker);
  if (run.scores.dtype == DType::f64)
    score_documents<double>(run, group, first, count, scratch);
  else
    score_documents<float>(run, group, first, count, scratch);
}

/// Queries in groups, and their documents.
void form_groups(MaxSimRun& run, const MaxSimOptions& options) {
  const std::int64_t* const q = run.queries.cu_seqlens;
  if (!options.pairs) {
    for (Index query = 0, queries; query < run.queries.count; query += queries) {
      queries = 1;
      while (query + queries < run.queries.count && queries < kMostQueries &&
             q[query + queries + 1] - q[query] <= run.lanes)
        ++queries;
      run.groups.push_back({query, queries, 0, run.documents.count, 0, 0});
    }
    return;
  }
  run.order.resize(std::size_t(options.pair_count));
  for (std::size_t i = 0; i < run.order.size(); ++i) run.order[i] = Index(i);
  std::stable_sort(run.order.begin(), run.order.end(),
                   [&](Index a, Index b) { return options.pairs[a].query < options.pairs[b].query; });
  for (Index item = 0; item < options.pair_count; ++item) {
    const Index query = options.pairs[run.order[std::size_t(item)]].query;
    if (item == 0 || run.groups.back().query != query) run.groups.push_back({query, 1, item, 0, 0, 0});
    ++run.groups.back().items;
  }
}

/// The shared state of the tasks of quantize_tokens().
struct QuantizeRun {
  void (*kernel)(const QuantizeTile& tile);
  QuantizeTile all;
};

void quantize_task(const void* context, Index task, int) {
  const QuantizeRun& run = *static_cast<const QuantizeRun*>(context);
  const Index first = task * kRowsPerTask;
  QuantizeTile tile = run.all;
  tile.rows = std::min(kRowsPerTask, tile.rows - first);
  tile.x += first * tile.x_row;
  tile.out += first * tile.out_row;
  tile.scales += first;
  run.kernel(tile);
}

}  // namespace

void maxsim(const TokenMatrices& queries, const TokenMatrices& documents, const MutableTensorView& scores,
            const MaxSimOptions& options) {
  const FloatingPointState state;
  validate_maxsim(queries, documents, scores, options);
  const DType dtype = queries.tokens.dtype;
  const KernelTable& table = active_kernels();
  const MaxSimKernel& kernel = dtype == DType::int8 ? table.maxsim_int8 : table.kernels[static_cast<int>(dtype)].maxsim;
  const Index columns = queries.tokens.extents[1], panel_lanes = kernel.panel_lanes;
  const auto panel_bytes = static_cast<Index>(kernel.panel_bytes(columns));
  const Index rows = queries.cu_seqlens[queries.count];
  const Index panels = std::clamp<Index>(panel_bytes > 0 ? kPanelsBytes / panel_bytes : 1, 1, kMostLanes / panel_lanes);

  MaxSimRun run{queries, documents, scores, kernel, options.pairs, {}, {}, panels * panel_lanes, 0, 0, 0, {}};
  run.lanes = std::min(run.lanes, std::max<Index>((rows + panel_lanes - 1) / panel_lanes, 1) * panel_lanes);
  form_groups(run, options);

  const double tokens =
      documents.count > 0 ? double(documents.cu_seqlens[documents.count]) / double(documents.count) : 0;
  Index tasks = 0, most_sums = 0;
  double work = 0;
  for (Group& group : run.groups) {
    const Index lanes = queries.cu_seqlens[group.query + group.queries] - queries.cu_seqlens[group.query];
    const double of_item = std::max(double(lanes) * tokens * double(columns), 1.0);
    group.first_task = tasks;
    group.items_of_task = Index(std::clamp(kWorkPerTask / of_item, 1.0, double(kMostDocuments)));
    tasks += (group.items + group.items_of_task - 1) / group.items_of_task;
    most_sums = std::max(most_sums, group.items_of_task * group.queries);
    work += of_item * double(group.items);
  }
  if (tasks == 0) return;

  const int threads = threads_for(options.num_threads, tasks, work);
  Layout scratch;
  scratch.take(double(kernel.scratch_bytes(columns)));
  const Index most_panels = run.lanes / panel_lanes;
  run.panels_at = scratch.take(double(most_panels) * double(panel_bytes));
  run.maxima_at = scratch.take(double(run.lanes) * double(size_of(scores.dtype)));
  run.sums_at = scratch.take(double(most_sums) * sizeof(double));
  const CallMemory memory({}, threads, scratch.total());
  run.workers = memory.workers();
  const Phase phase{tasks, &maxsim_task, &run};
  run_phases(&phase, 1, threads);
}

void quantize_tokens(const TensorView& x, const MutableTensorView& integers, const MutableTensorView& scale,
                     int num_threads) {
  const FloatingPointState state;
  validate_quantize_tokens(x, integers, scale);
  const Index rows = x.extents[0], columns = x.extents[1];
  const QuantizeRun run{
      active_kernels().quantize_heads,
      {rows, columns, static_cast<const float*>(x.data), x.strides[0], x.strides[1],
       static_cast<std::int8_t*>(integers.data), integers.strides[0], static_cast<float*>(scale.data)}};
  const Phase phase{(rows + kRowsPerTask - 1) / kRowsPerTask, &quantize_task, &run};
  if (phase.tasks == 0) return;
  run_phases(&phase, 1, threads_for(num_threads, phase.tasks, double(rows) * double(columns) * kWorkPerQuantized));
}

}  // namespace mha

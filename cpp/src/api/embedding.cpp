// embed_tokens and mean_pool: how each is divided into tasks.
#include "mha/embedding.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "checks/embedding.hpp"
#include "execute/dense_rows.hpp"
#include "kernels/kernel_table.hpp"
#include "mha/half_precision.hpp"
#include "platform/cancellation.hpp"
#include "platform/dispatch.hpp"
#include "platform/floating_point_state.hpp"
#include "platform/layout.hpp"
#include "platform/parallel.hpp"
#include "views/sizes.hpp"

namespace mha {
namespace {

// Tokens in a task: enough that taking a task costs nothing next to it, few enough that threads share a short text.
constexpr Index kTaskTokens = 64;

// The time that one element from memory takes, in multiply-adds: at 28 GB/s a core reads one f32 in the time of eight.
constexpr double kWorkPerElement = 8;

/// The shared state of the tasks of embed_tokens().
struct EmbeddingRun {
  const std::int64_t *tokens, *places, *cu_seqlens;
  Index batch_size;
  const EmbeddingTables* tables;
  MutableTensorView out;
  void (*normalize)(const NormalizeTile& tile);
};

/// One task: kTaskTokens tokens, each the sum of a row of words and a row of positions, normalized.
void embed_run(const void* context, Index task, int) {
  const EmbeddingRun& run = *static_cast<const EmbeddingRun*>(context);
  const auto row = [](const TensorView& table, Index i) {
    return static_cast<const std::byte*>(table.data) + i * table.strides[0] * size_of(table.dtype);
  };
  const EmbeddingTables& tables = *run.tables;
  const Index first = task * kTaskTokens, last = std::min(first + kTaskTokens, run.out.extents[0]);
  // The last text that begins at or before the first token of the task. It is not empty: an empty text begins where the
  // next one does.
  const std::int64_t* text = std::upper_bound(run.cu_seqlens, run.cu_seqlens + run.batch_size + 1, first) - 1;
  NormalizeTile tile{};
  tile.rows = 1;
  tile.columns = tables.words.extents[1];
  tile.weight = tables.norm_weight.data;
  tile.bias = tables.norm_bias.data;
  tile.eps = tables.norm_eps;
  for (Index i = first; i < last; ++i) {
    while (i >= text[1]) ++text;
    tile.x = row(tables.words, run.tokens[i]);
    tile.residual = row(tables.positions, run.places == nullptr ? i - text[0] : run.places[i]);
    tile.out = const_cast<std::byte*>(row(run.out, i));
    run.normalize(tile);
  }
}

/// The shared state of the tasks of mean_pool().
struct PoolingRun {
  TensorView x;
  const std::int64_t* cu_seqlens;
  bool normalize;
  MutableTensorView out;
  Workers workers;  // scratch of each worker: E sums in double precision
};

template <class T, class Sum>
void pool_text(const PoolingRun& run, Index text, double* sums) {
  const Index width = run.x.extents[1], first = run.cu_seqlens[text], last = run.cu_seqlens[text + 1];
  const Index step = run.x.strides[1];
  std::fill_n(sums, width, 0.0);
  Cancellation& cancellation = Cancellation::of_this_thread();
  for (Index i = first; i < last; ++i) {
    if (i % kTaskTokens == 0 && cancellation.is_set()) return;  // a text of millions of rows takes seconds
    const T* const row = static_cast<const T*>(run.x.data) + i * run.x.strides[0];
    for (Index e = 0; e < width; ++e) sums[e] += to_double(row[e * step]);
  }
  // Scaled to length 1, the mean and the sum are the same vector, so the sum is divided by its own length.
  double divisor = double(last - first);
  if (run.normalize) {
    divisor = 0;
    for (Index e = 0; e < width; ++e) divisor += sums[e] * sums[e];
    divisor = std::sqrt(divisor);
  }
  const double scale = divisor == 0 ? 0 : 1 / divisor;
  auto* const out = static_cast<Sum*>(run.out.data) + text * run.out.strides[0];
  for (Index e = 0; e < width; ++e) out[e * run.out.strides[1]] = static_cast<Sum>(sums[e] * scale);
}

/// One task: one text.
void pool_run(const void* context, Index task, int worker) {
  const PoolingRun& run = *static_cast<const PoolingRun*>(context);
  auto* const sums = reinterpret_cast<double*>(run.workers.scratch_of(worker));
  switch (run.x.dtype) {
#define MHA_DTYPE(name, scalar, accumulator) \
  case DType::name:                          \
    return pool_text<scalar, accumulator>(run, task, sums);
#include "mha/dtypes.def"
#undef MHA_DTYPE
    case DType::boolean:
    case DType::int8:
      break;
  }
}

/// Rows of the table in a task of embedding_gradient().
constexpr Index kTaskIds = 64;

/// The shared state of the tasks of embedding_gradient().
struct TableGradientRun {
  void (*sum_rows)(const RowSelection& rows);
  TensorView dout;
  MutableTensorView out;
  const std::int64_t *starts, *order;  // the rows of id v are order[starts[v]] to order[starts[v + 1] - 1]
};

/// One task: kTaskIds rows of the table.
void sum_rows_of_ids(const void* context, Index task, int) {
  const TableGradientRun& run = *static_cast<const TableGradientRun*>(context);
  const Index last = std::min((task + 1) * kTaskIds, run.out.extents[0]);
  Cancellation& cancellation = Cancellation::of_this_thread();
  for (Index id = task * kTaskIds; id < last && !cancellation.is_set(); ++id)
    run.sum_rows({run.starts[id + 1] - run.starts[id], run.out.extents[1], run.dout.data, run.dout.strides[0],
                  run.order + run.starts[id],
                  static_cast<std::byte*>(run.out.data) + id * run.out.strides[0] * size_of(run.out.dtype), nullptr});
}

}  // namespace

void embedding_gradient(const std::int64_t* ids, const TensorView& dout, const MutableTensorView& out,
                        int num_threads) {
  const FloatingPointState state;
  const Index count = validate_embedding_gradient(ids, dout, out), table = out.extents[0];
  if (!has_elements(out)) return;
  Layout layout;
  const DenseInput given(dout, layout);
  const DenseOutput result(out, layout);
  const std::size_t starts_at = layout.take(double(table + 2) * sizeof(std::int64_t));
  const std::size_t order_at = layout.take(double(count) * sizeof(std::int64_t));
  const Index tasks = (table + kTaskIds - 1) / kTaskIds;
  const int threads = threads_for(num_threads, tasks, kWorkPerElement * double(count + table) * double(out.extents[1]));
  const CallMemory memory(layout, threads, 0);
  auto* const starts = reinterpret_cast<std::int64_t*>(memory.data() + starts_at);
  auto* const order = reinterpret_cast<std::int64_t*>(memory.data() + order_at);
  // Sorted by counting: first starts[v + 2] counts the rows of v, then starts[v + 1] is the place of its next row.
  std::fill_n(starts, table + 2, std::int64_t{0});
  for (Index i = 0; i < count; ++i) ++starts[ids[i] + 2];
  for (Index id = 2; id <= table; ++id) starts[id] += starts[id - 1];
  for (Index i = 0; i < count; ++i) order[starts[ids[i] + 1]++] = i;
  const TableGradientRun run{active_kernels().kernels[static_cast<int>(out.dtype)].rows.sum_rows,
                             given.gather(memory.data()), result.rows(memory.data()), starts, order};
  const Phase phase{tasks, &sum_rows_of_ids, &run};
  run_phases(&phase, 1, threads);
  result.scatter(memory.data());
}

void embed_tokens(const std::int64_t* tokens, const std::int64_t* places, const std::int64_t* cu_seqlens,
                  Index batch_size, const EmbeddingTables& tables, const MutableTensorView& out, int num_threads) {
  const FloatingPointState state;
  validate_embed_tokens(tokens, places, cu_seqlens, batch_size, tables, out);
  const DTypeKernels& kernels = active_kernels().kernels[static_cast<int>(out.dtype)];
  const EmbeddingRun run{tokens, places, cu_seqlens, batch_size, &tables, out, kernels.normalize};
  const Index tasks = (out.extents[0] + kTaskTokens - 1) / kTaskTokens;
  const double elements = double(out.extents[0]) * double(out.extents[1]);
  const Phase phase{tasks, &embed_run, &run};
  run_phases(&phase, 1, threads_for(num_threads, tasks, kWorkPerElement * elements));
}

void mean_pool(const TensorView& x, const std::int64_t* cu_seqlens, Index batch_size, bool normalize,
               const MutableTensorView& out, int num_threads) {
  const FloatingPointState state;
  validate_mean_pool(x, cu_seqlens, batch_size, out);
  if (!has_elements(out)) return;

  PoolingRun run{x, cu_seqlens, normalize, out, {}};
  const double elements = double(x.extents[0]) * double(x.extents[1]);
  const int threads = threads_for(num_threads, batch_size, kWorkPerElement * elements);
  Layout scratch;
  scratch.take(double(x.extents[1]) * sizeof(double));
  const CallMemory memory({}, threads, scratch.total());
  run.workers = memory.workers();
  const Phase phase{batch_size, &pool_run, &run};
  run_phases(&phase, 1, threads);
}

}  // namespace mha

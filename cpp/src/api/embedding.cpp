// embed_tokens and mean_pool: their preconditions, and how each is divided into tasks.
#include "mha/embedding.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "checks/rules.hpp"
#include "mha/errors.hpp"
#include "mha/half_precision.hpp"
#include "platform/cancellation.hpp"
#include "platform/dispatch.hpp"
#include "platform/floating_point_state.hpp"
#include "platform/layout.hpp"
#include "platform/parallel.hpp"
#include "views/describe.hpp"
#include "views/ragged_batch.hpp"

namespace mha {
namespace {

// Tokens in a task: enough that taking a task costs nothing beside it, few enough that threads share a short text.
constexpr Index kTaskTokens = 64;

// The time that one element from memory takes, in multiply-adds: at 28 GB/s a core reads one f32 in the time of eight.
constexpr double kWorkPerElement = 8;

void check_texts(const char* function, const std::int64_t* cu_seqlens, Index batch_size, const char* rows_of,
                 Index rows) {
  if (batch_size < 0)
    throw std::invalid_argument(std::string(function) + ": batch_size must not be negative; got " +
                                std::to_string(batch_size));
  check_offsets(function, "cu_seqlens", cu_seqlens, batch_size, rows_of, rows);
}

/// The preconditions of embed_tokens().
void check(const std::int64_t* tokens, const std::int64_t* places, const std::int64_t* cu_seqlens, Index batch_size,
           const EmbeddingTables& tables, const MutableTensorView& out) {
  const char* const function = "embed_tokens";
  const TensorView &words = tables.words, &positions = tables.positions;
  const Named inputs = {
      {"words", words}, {"positions", positions}, {"norm_weight", tables.norm_weight}, {"norm_bias", tables.norm_bias}};
  const Named views = {{"words", words},
                       {"positions", positions},
                       {"norm_weight", tables.norm_weight},
                       {"norm_bias", tables.norm_bias},
                       {"out", out}};
  check_dtypes(function, words.dtype, views);
  check_rank(function, "words", words, 2, 2, views);
  check_rank(function, "positions", positions, 2, 2, views);
  check_rank(function, "out", out, 2, 2, views);
  if (tables.norm_weight) check_rank(function, "norm_weight", tables.norm_weight, 1, 1, views);
  if (tables.norm_bias) check_rank(function, "norm_bias", tables.norm_bias, 1, 1, views);
  const Index width = words.extents[1];
  if (width < 1) fail(function, "words must have at least 1 feature", views);
  for (const auto& [name, view] : views) {
    if (!view) continue;
    if (view.extents[view.rank - 1] != width) fail(function, std::string(name) + " must be as wide as words", views);
    if (width > 1 && view.strides[view.rank - 1] != 1)
      fail(function, std::string(name) + " must have neighbours along E next to each other", views);
  }
  if (!(tables.norm_eps >= 0 && std::isfinite(tables.norm_eps)))
    throw std::invalid_argument(std::string(function) + ": norm_eps must be at least 0, and finite; got " +
                                text_of(tables.norm_eps));
  check_texts(function, cu_seqlens, batch_size, "out", out.extents[0]);
  if (tokens == nullptr && out.extents[0] > 0) fail(function, "tokens must be given, not be a null pointer", views);
  const Index rows = positions.extents[0];
  for (Index b = 0; places == nullptr && b < batch_size; ++b)
    if (cu_seqlens[b + 1] - cu_seqlens[b] > rows)
      fail(function,
           "a text must have no more tokens than positions has rows, and text " + std::to_string(b) + " has " +
               std::to_string(cu_seqlens[b + 1] - cu_seqlens[b]),
           views);
  for (Index i = 0; i < out.extents[0]; ++i)
    if (tokens[i] < 0 || tokens[i] >= words.extents[0])
      fail(function,
           "tokens must be rows of words, and token " + std::to_string(i) + " is " + std::to_string(tokens[i]), views);
  for (Index i = 0; places != nullptr && i < out.extents[0]; ++i)
    if (places[i] < 0 || places[i] >= rows)
      fail(function,
           "places must be rows of positions, and that of token " + std::to_string(i) + " is " +
               std::to_string(places[i]),
           views);
  check_output(function, "out", out, inputs);
}

/// What the tasks of embed_tokens() share.
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

/// What the tasks of mean_pool() share.
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

}  // namespace

void embed_tokens(const std::int64_t* tokens, const std::int64_t* places, const std::int64_t* cu_seqlens,
                  Index batch_size, const EmbeddingTables& tables, const MutableTensorView& out, int num_threads) {
  const FloatingPointState state;
  check(tokens, places, cu_seqlens, batch_size, tables, out);
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
  const char* const function = "mean_pool";
  const Named views = {{"x", x}, {"out", out}};
  check_dtypes(function, x.dtype, {{"x", x}});
  if (out.dtype != accumulator_of(x.dtype))
    throw DTypeError(std::string(function) + ": out must be float64 for x in float64, else float32; got " +
                     dtypes_of(views));
  check_rank(function, "x", x, 2, 2, views);
  check_texts(function, cu_seqlens, batch_size, "x", x.extents[0]);
  if (!has_shape(out, {batch_size, x.extents[1]}))
    fail(function, "out must be [" + std::to_string(batch_size) + ", " + std::to_string(x.extents[1]) + "]", views);
  check_output(function, "out", out, {{"x", x}});
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

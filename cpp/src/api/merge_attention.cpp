// merge_attention: each row is computed by itself, in double precision.
#include "mha/merge_attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "checks/merge_attention.hpp"
#include "mha/half_precision.hpp"
#include "platform/floating_point_state.hpp"
#include "platform/layout.hpp"
#include "platform/parallel.hpp"

namespace mha {
namespace {

// Columns of a row that are summed at once: the partial sums of 1000 shards are then 11 KiB, in the first-level cache.
constexpr Index kColumns = 128;

// The time that an element of a row takes, and that an exponential and the work around it take, in multiply-adds: 0.16
// ns and 8 ns on a core that computes a million multiply-adds in 8 us.
constexpr double kWorkPerElement = 20;
constexpr double kWorkPerExponential = 1000;

// Multiply-adds in a task: enough that taking a task costs nothing next to it, few enough that threads share the rows
// of a short call.
constexpr double kWorkPerTask = 1e5;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// The share of one shard in a row: `weight` times the elements of `row`, which are `step` elements apart.
template <class T>
struct Term {
  const T* row;
  Index step;
  double weight;
};

/// The sum of the weights, added up in the order of sum_rows().
template <class T>
double sum_weights(const Term<T>* terms, Index count) {
  if (count == 1) return terms->weight;
  const Index half = count / 2;
  return sum_weights(terms, half) + sum_weights(terms + half, count - half);
}

/// The sum of the weighted rows, in `columns` columns from `first` on. Terms are added in pairs, pairs of pairs and so
/// on, so that each goes through log2(count) roundings. After `sums` there must be room for kColumns more sums for
/// each level.
template <class T>
void sum_rows(const Term<T>* terms, Index count, Index first, Index columns, double* sums) {
  if (count > 2) {
    const Index half = count / 2;
    double* const others = sums + kColumns;
    sum_rows(terms, half, first, columns, sums);
    sum_rows(terms + half, count - half, first, columns, others);
    for (Index c = 0; c < columns; ++c) sums[c] += others[c];
    return;
  }
  const Term<T>&one = terms[0], &two = terms[count - 1];
  const T *const x = one.row + first * one.step, *const y = two.row + first * two.step;
  if (count == 2)
    for (Index c = 0; c < columns; ++c)
      sums[c] = one.weight * to_double(x[c * one.step]) + two.weight * to_double(y[c * two.step]);
  else
    for (Index c = 0; c < columns; ++c) sums[c] = one.weight * to_double(x[c * one.step]);
}

/// The shared state of the tasks of a call.
struct MergeRun {
  MergeArguments arguments;
  Index rows, task_rows;
  Workers workers;  // scratch of each worker: the terms of a row and, from byte sums_at on, its sums
  std::size_t sums_at;
};

/// The part of a view at the indices `row` of its first `axes` axes: of `outs` a row, of `lses` one element.
template <class T, class View>
T* part_of(const View& view, const Index* row, int axes) {
  T* part = static_cast<T*>(view.data);
  for (int axis = 0; axis < axes; ++axis) part += row[axis] * view.strides[axis];
  return part;
}

template <class T, class Lse>
void merge_row(const MergeRun& run, const Index* row, std::byte* scratch) {
  const MergeArguments& a = run.arguments;
  const int axes = a.out.rank - 1;
  auto* const terms = reinterpret_cast<Term<T>*>(scratch);
  auto* const sums = reinterpret_cast<double*>(scratch + run.sums_at);

  Index count = 0;
  double largest = -kInfinity;
  for (Index s = 0; s < a.shards; ++s) {
    const double score = *part_of<const Lse>(a.lses[s], row, axes);
    if (score == -kInfinity) continue;  // the row sees no key of this shard, and the shard's out may hold NaN
    terms[count++] = {part_of<const T>(a.outs[s], row, axes), a.outs[s].strides[axes], score};
    largest = std::max(largest, score);  // ignores NaN, which makes the total NaN below
  }
  for (Index s = 0; s < count; ++s) terms[s].weight = std::exp(terms[s].weight - largest);
  const double total = count > 0 ? sum_weights(terms, count) : 0;
  for (Index s = 0; s < count; ++s) terms[s].weight /= total;

  T* const out = part_of<T>(a.out, row, axes);
  const Index width = a.out.extents[axes], step = a.out.strides[axes];
  if (count == 0) std::fill_n(sums, kColumns, 0.0);
  for (Index first = 0; first < width; first += kColumns) {
    const Index columns = std::min(kColumns, width - first);
    if (count > 0) sum_rows(terms, count, first, columns, sums);
    for (Index c = 0; c < columns; ++c) out[(first + c) * step] = from_double<T>(sums[c]);
  }
  if (a.lse) *part_of<Lse>(a.lse, row, axes) = static_cast<Lse>(largest + std::log(total));
}

template <class T, class Lse>
void merge_rows(const void* context, Index task, int worker) {
  const MergeRun& run = *static_cast<const MergeRun*>(context);
  const MutableTensorView& out = run.arguments.out;
  const Index first = task * run.task_rows, last = std::min(first + run.task_rows, run.rows);
  for (Index i = first; i < last; ++i) {
    Index row[kMaxRank], rest = i;
    for (int axis = out.rank - 1; axis-- > 0; rest /= out.extents[axis]) row[axis] = rest % out.extents[axis];
    merge_row<T, Lse>(run, row, run.workers.scratch_of(worker));
  }
}

// By the dtype of outs, and by whether lses are f64.
constexpr decltype(Phase::run) kMergeRows[kNumDTypes][2] = {
#define MHA_DTYPE(name, scalar, accumulator) {&merge_rows<scalar, accumulator>, &merge_rows<scalar, double>},
#include "mha/dtypes.def"
#undef MHA_DTYPE
};

}  // namespace

void merge_attention(const TensorView* outs, const TensorView* lses, Index shards, const MutableTensorView& out,
                     const MutableTensorView& lse, int num_threads) {
  const FloatingPointState state;
  MergeRun run{{outs, lses, shards, out, lse}, 1, 1, {}, 0};
  validate(run.arguments);
  if (!has_elements(out) && !has_elements(lse)) return;
  const int axes = out.rank - 1;
  for (int axis = 0; axis < axes; ++axis) run.rows *= out.extents[axis];
  const double row_work = (double(shards) + 1) * (kWorkPerElement * double(out.extents[axes]) + kWorkPerExponential);
  run.task_rows = std::max<Index>(1, static_cast<Index>(kWorkPerTask / row_work));
  const Index tasks = (run.rows + run.task_rows - 1) / run.task_rows;
  const int threads = threads_for(num_threads, tasks, double(run.rows) * row_work);

  Layout scratch;
  scratch.take(double(shards) * sizeof(Term<double>));
  Index levels = 1;
  for (Index count = shards; count > 2; count = (count + 1) / 2) ++levels;
  run.sums_at = scratch.take(double(levels) * kColumns * sizeof(double));
  const CallMemory memory({}, threads, scratch.total());
  run.workers = memory.workers();
  const Phase phase{tasks, kMergeRows[static_cast<int>(out.dtype)][lses[0].dtype == DType::f64], &run};
  run_phases(&phase, 1, threads);
}

}  // namespace mha

#include "execute/head_rows.hpp"

#include <algorithm>
#include <cstring>

namespace mha {
namespace {

/// Positions of a task: their cosines and sines (64 of f32 each) and the rows of one head take 16 KB, half of level 1.
constexpr Index kTaskRows = 32;

/// Positions whose heads are normed together at once: 64 heads of 128 features of f32 take 128 KB, a part of level 2.
constexpr Index kJointRows = 4;

Index blocks_of(const HeadRows& rows) { return (rows.rows.extents[2] + kTaskRows - 1) / kTaskRows; }

std::byte* row_at(const MutableTensorView& view, Index b, Index head, Index row) {
  return static_cast<std::byte*>(view.data) +
         (b * view.strides[0] + head * view.strides[1] + row * view.strides[2]) * size_of(view.dtype);
}

/// In place.
void normalize(const NormWeights& norm, const DTypeKernels& kernels, Index rows, Index columns, std::byte* x,
               Index x_row) {
  NormalizeTile tile{};
  tile.rows = rows;
  tile.columns = columns;
  tile.x = tile.out = x;
  tile.x_row = tile.out_row = x_row;
  norm.write_to(tile);
  kernels.normalize(tile);
}

/// Rows of one sequence that follow one another, as their positions do: which row of the sequence the first is, and its
/// position.
struct Run {
  Index sequence, rows, row;
  std::int64_t position;
};

/// The first of the rows [first, last) of batch element b.
Run run_of(const HeadRows& rows, Index b, Index first, Index last) {
  Index sequence = b, start = 0;
  if (rows.starts) {
    // The last one that begins at `first` or before it: empty ones come before it.
    sequence = std::upper_bound(rows.starts, rows.starts + rows.sequences, first) - rows.starts - 1;
    start = rows.starts[sequence];
    last = std::min<Index>(last, rows.starts[sequence + 1]);
  }
  const Index row = first - start;
  if (!rows.positions) {
    const std::int64_t origin = rows.first_positions ? rows.first_positions[sequence] : rows.first_position;
    return {sequence, last - first, row, origin + row};
  }
  const std::int64_t* const positions = rows.positions + b * rows.rows.extents[2];
  Index end = first + 1;
  while (end < last && positions[end] == positions[end - 1] + 1) ++end;
  return {sequence, end - first, row, positions[first]};
}

}  // namespace

std::size_t HeadRowsRun::scratch_bytes(DType dtype, Index head_dim, Index joint_features) {
  const DType numbers = accumulator_of(dtype);
  const Index of_heads = numbers == dtype ? 0 : kTaskRows * head_dim;
  return static_cast<std::size_t>(std::max(of_heads, kJointRows * joint_features) * size_of(numbers));
}

void HeadRowsRun::add(const HeadRows& rows) {
  if (rows.steps || rows.cache) all_[count_++] = rows;
}

Phase HeadRowsRun::phase() const {
  Index tasks = 0;
  for (int i = 0; i < count_; ++i) tasks += all_[i].rows.extents[0] * blocks_of(all_[i]);
  return {tasks, &run_task, this};
}

void HeadRowsRun::run_task(const void* context, Index task, int worker) {
  const HeadRowsRun& run = *static_cast<const HeadRowsRun*>(context);
  const HeadRows* rows = run.all_;
  for (Index tasks; task >= (tasks = rows->rows.extents[0] * blocks_of(*rows)); ++rows) task -= tasks;
  const Index b = task / blocks_of(*rows), first = task % blocks_of(*rows) * kTaskRows;
  const Index count = rows->row_counts ? rows->row_counts[b] : rows->rows.extents[2];
  const Index last = std::min(first + kTaskRows, count);
  if (rows->has_joint_norm()) return run.run_joint(*rows, b, first, last, run.workers_.scratch_of(worker));
  for (Index head = 0; first < last && head < rows->rows.extents[1]; ++head)
    run.run_head(*rows, b, head, first, last, run.workers_.scratch_of(worker));
}

void HeadRowsRun::run_head(const HeadRows& rows, Index b, Index head, Index first, Index last,
                           std::byte* scratch) const {
  const DType dtype = rows.rows.dtype;
  const DType numbers = rows.steps ? accumulator_of(dtype) : dtype;  // rows without steps are only moved
  const Index columns = rows.rows.extents[3], size = size_of(numbers);
  std::byte* x = row_at(rows.rows, b, head, first);
  Index x_row = rows.rows.strides[2];
  if (numbers != dtype) {
    for (Index r = 0; r < last - first; ++r)
      table_.kernels[static_cast<int>(dtype)].widen(x + r * x_row * size_of(dtype), scratch + r * columns * size,
                                                    columns);
    x = scratch;
    x_row = columns;
  }
  if (const NormWeights* norm = rows.steps.norm)
    normalize(*norm, table_.kernels[static_cast<int>(numbers)], last - first, columns, x, x_row);
  turn_and_store(rows, b, head, first, last, x, x_row, numbers == dtype);
}

/// Rows under one norm for all heads: they are gathered in scratch memory first.
void HeadRowsRun::run_joint(const HeadRows& rows, Index b, Index first, Index last, std::byte* scratch) const {
  const DType dtype = rows.rows.dtype, numbers = accumulator_of(dtype);
  const Index heads = rows.rows.extents[1], columns = rows.rows.extents[3], size = size_of(numbers);
  const Index features = heads * columns;
  for (Index end; first < last; first = end) {
    end = std::min(first + kJointRows, last);
    for (Index row = first; row < end; ++row)
      for (Index head = 0; head < heads; ++head) {
        const std::byte* const from = row_at(rows.rows, b, head, row);
        std::byte* const to = scratch + ((row - first) * features + head * columns) * size;
        if (numbers == dtype)
          std::memcpy(to, from, static_cast<std::size_t>(columns * size));
        else
          table_.kernels[static_cast<int>(dtype)].widen(from, to, columns);
      }
    normalize(*rows.steps.norm, table_.kernels[static_cast<int>(numbers)], end - first, features, scratch, features);
    for (Index head = 0; head < heads; ++head)
      turn_and_store(rows, b, head, first, end, scratch + head * columns * size, features, false);
  }
}

/// Turns rows of one head, if there is a rotation, and stores them in the cache or, unless they are there, in `rows`.
void HeadRowsRun::turn_and_store(const HeadRows& rows, Index b, Index head, Index first, Index last, std::byte* x,
                                 Index x_row, bool is_in_place) const {
  const DType numbers = rows.steps ? accumulator_of(rows.rows.dtype) : rows.rows.dtype;
  const DTypeKernels& kernels = table_.kernels[static_cast<int>(numbers)];
  const Index columns = rows.rows.extents[3], size = size_of(numbers);
  const MutableTensorView& to = rows.cache ? rows.cache : rows.rows;
  const bool is_moved = rows.cache || !is_in_place;
  if (!rows.steps.rotary && !is_moved) return;
  for (Index row = first; row < last;) {
    const Run run = run_of(rows, b, row, last);
    std::byte* const x_of_run = x + (row - first) * x_row * size;
    if (const RotaryTable* table = rows.steps.rotary) {
      const std::byte* const cos = table->data.data() + run.position * table->row() * size;
      kernels.rotate({run.rows, table->num_pairs, x_of_run, x_row, cos, cos + table->num_pairs * size, table->row(),
                      table->pairs == RotaryPairs::neighbours, rows.is_backwards});
    }
    const Index sequence = !rows.cache            ? b
                           : rows.cache_sequences ? Index(rows.cache_sequences[run.sequence])
                                                  : run.sequence;
    for (Index r = 0; is_moved && r < run.rows; ++r) {
      const std::byte* const from = x_of_run + r * x_row * size;
      const Index place =
          !rows.cache ? row + r : rows.tables.row_of(sequence, rows.first_rows[run.sequence] + run.row + r);
      std::byte* const at = row_at(to, sequence, head, place);
      if (rows.cache_scales)
        table_.quantize_heads({1, columns, reinterpret_cast<const float*>(from), columns, 1,
                               reinterpret_cast<std::int8_t*>(at), columns,
                               reinterpret_cast<float*>(row_at(rows.cache_scales, sequence, head, place))});
      else if (to.dtype == numbers)
        std::memcpy(at, from, static_cast<std::size_t>(columns * size));
      else
        table_.kernels[static_cast<int>(to.dtype)].round(from, at, columns);
    }
    row += run.rows;
  }
}

}  // namespace mha

// Prefetching of the keys and values that decode reads.
#pragma once

#include "kernels/attention/key_value_source.hpp"

namespace mha::MHA_ISA {
namespace {

/// Rows that are evenly spaced in memory.
struct RowRun {
  const void* data;
  Index row, rows;  // bytes between rows; number of rows
};

/// The rows of a span in reading order, run by run, and then the memory that is read next.
struct RowStream {
  Index bytes;  // of each row
  int count = 0;
  RowRun runs[kSpanKeys / kKeyBlock + 2];

  explicit RowStream(Index row_bytes) : bytes(row_bytes) {}
  /// Rows that follow those before in memory make their run longer.
  void append(const StoredRows& from, Index rows) {
    RowRun* const last = runs + count - 1;
    if (count > 0 && static_cast<const char*>(last->data) + last->rows * last->row == from.data)
      last->rows += rows;
    else
      runs[count++] = {from.data, from.row, rows};
  }
  /// The last run has no end, and is its own successor.
  void close(const void* data, Index row) { runs[count] = runs[count + 1] = {data, row, PTRDIFF_MAX}; }
};

/// Prefetches the rows of a stream kAhead bytes before they are read: enough to cover the latency of memory, and in the
/// order of their addresses, which the hardware then follows (in the order of use it gives 25 % less bandwidth).
///
/// One is made for each block of keys. It goes on from the run that it begins in to the next one, no further: a run has
/// at least as many rows as a block, but for the last one of a span.
class ReadAhead {
 public:
  /// `first`: the row of the stream that is read first.
  ReadAhead(const RowStream& stream, Index first) : bytes_(stream.bytes) {
    first += kAhead / bytes_ + 1;
    const RowRun* run = stream.runs;
    for (; first >= run->rows; ++run) first -= run->rows;
    row_ = run->row;
    left_ = run->rows - first;
    current_ = static_cast<const char*>(run->data) + first * row_;
    next_ = static_cast<const char*>(run[1].data);
    next_row_ = run[1].row;
  }

  /// Prefetches the next `count` lines.
  MHA_INLINE void lines(int count) {
    for (int i = 0; i < count; ++i) {
      __builtin_prefetch(current_ + at_);
      at_ += 64;
      if (at_ < bytes_) continue;
      at_ = 0;
      step();
    }
  }
  /// Prefetches bytes [from, to) of the next row.
  MHA_INLINE void part_of_row(Index from, Index to) {
    for (; from < to; from += 64) __builtin_prefetch(current_ + from);
    step();
  }

 private:
  static constexpr Index kAhead = 12288;

  MHA_INLINE void step() {
    current_ += row_;
    if (--left_ == 0) {
      row_ = next_row_;
      current_ = next_;
    }
  }

  Index row_, bytes_, at_ = 0, left_;  // left_: rows of the run; below 0 in the next one
  const char *current_, *next_;
  Index next_row_;
};

}  // namespace
}  // namespace mha::MHA_ISA

// The steps on the rows of the heads of query and key between projection and attention: their norm, and the rotation by
// their position; and the copy of keys and values into a cache, if the projection cannot write there.
//
// It is a phase of its own. A task takes the rows of a few positions through all heads, so that a row of the table is
// read once for all of them. Rows lie in scratch memory, where the projection has left them. Rows of 16 bits are
// computed in f32 and rounded once.
#pragma once

#include "kernels/kernel_table.hpp"
#include "mha/varlen.hpp"
#include "platform/parallel.hpp"
#include "platform/workspace.hpp"
#include "views/cache_memory.hpp"
#include "weights/packed_attention.hpp"

namespace mha {

/// The rows of query or key in one call.
struct HeadRows {
  HeadSteps steps;
  MutableTensorView rows;  // [B, heads, T, D], neighbours along D next to each other: as they were projected
  // Row 0 of batch element b, or of sequence b of a ragged batch, stands at first_position, or at first_positions[b] if
  // that is not null; each next row one position further.
  std::int64_t first_position = 0;
  const std::int64_t* first_positions = nullptr;
  const std::int64_t* starts = nullptr;  // [sequences + 1]: a ragged batch, whose B is 1; null: a dense one
  Index sequences = 0;
  const std::int64_t* positions = nullptr;  // [B, T]: positions of the rows, which replace the others; null: none
  // If there is a cache, row t of batch element b, or of sequence b of a ragged batch, goes to row first_rows[b] + t of
  // its sequence cache_sequences[b] (null: b); else rows are changed in place.
  MutableTensorView cache = {};         // [sequences of the cache, heads, rows, D]
  MutableTensorView cache_scales = {};  // [sequences of the cache, heads, rows, 1] of f32, if it is of int8
  PageTables tables = {};               // of the cache: its rows are tokens in its pages
  const std::int64_t* first_rows = nullptr;
  const std::int64_t* cache_sequences = nullptr;
  const std::int64_t* row_counts = nullptr;  // [B]: only the first row_counts[b] rows count; null: all
  bool is_backwards = false;                 // rotary positions turn by minus their angle

  /// Whether one norm covers all heads of a row.
  bool has_joint_norm() const { return steps.norm && steps.norm->embed_dim != rows.extents[3]; }
};

/// The phase of one call. It refers to this object, which must outlive it and stay where it is.
class HeadRowsRun {
 public:
  HeadRowsRun(const KernelTable& table, const Workers& workers) : table_(table), workers_(workers) {}

  /// Of each worker.
  /// @param joint_features all features that one norm covers; 0: norms are of single heads, or there is none
  static std::size_t scratch_bytes(DType dtype, Index head_dim, Index joint_features = 0);

  /// Up to three: query, key, and values that go to a cache.
  void add(const HeadRows& rows);
  Phase phase() const;

 private:
  static void run_task(const void* run, Index task, int worker);
  void run_head(const HeadRows& rows, Index b, Index head, Index first, Index last, std::byte* scratch) const;
  void run_joint(const HeadRows& rows, Index b, Index first, Index last, std::byte* scratch) const;
  void turn_and_store(const HeadRows& rows, Index b, Index head, Index first, Index last, std::byte* x, Index x_row,
                      bool is_in_place) const;

  const KernelTable& table_;
  const Workers workers_;
  HeadRows all_[3];
  int count_ = 0;
};

}  // namespace mha

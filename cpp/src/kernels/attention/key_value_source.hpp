// Where keys and values lie. No other file of the kernels reads a KeyValueSource or computes where a key begins.
//
// The seam is a block of kKeyBlock keys. A form of source (dense here; pages, quantized or sparse blocks would be
// others) answers for each block: where its keys and values lie (`keys`, `values`), as operands too, with scales
// applied if it has any (`key_operands`, `value_operands`), whether any row of the tile sees the block (`is_seen`), how
// far rows go on evenly spaced (`run_end`), and what to prefetch (`next_keys`, `next_values`).
//
// The dense form is pointers and strides: every answer is inlined to one multiplication and one addition.
#pragma once

#include "kernels/kernel_table.hpp"
#include "kernels/products/kinds.hpp"
#include "kernels/products/strips.hpp"

namespace mha::MHA_ISA {
namespace {

/// The keys and values of a tile, whose elements are of type S.
template <class S>
class KeyValueRows {
 public:
  using Operands = OperandsOf<S>;
  using Operand = typename Operands::Operand;

  explicit KeyValueRows(const AttentionTile& tile) : tile_(tile) {}

  /// Rows from key `first` on, evenly spaced to the end of its block.
  Rows<S> keys(Index first) const {
    const KeyValueSource& source = tile_.source;
    return {static_cast<const S*>(source.key) + first * source.key_row, source.key_row, source.key_step};
  }
  Rows<S> values(Index first) const {
    const KeyValueSource& source = tile_.source;
    return {static_cast<const S*>(source.value) + first * source.value_row, source.value_row, source.value_step};
  }

  /// Where the rows that are evenly spaced from key `first` on end: `end` or before it, at the end of a block. Decode
  /// reads memory in such runs.
  Index run_end(Index, Index end) const { return end; }

  /// Whether any row of the tile sees a key of the block that begins at key `begin`, as far as the source knows. What
  /// nobody sees is neither read nor computed.
  bool is_seen(Index) const { return true; }

  /// Keys [first, last) of a block as operands: as they lie if they can be multiplied so, else converted to `near`,
  /// which holds near_keys() operands.
  Rows<Operand> key_operands(Index first, Index last, Operand* near) const {
    const Rows<S> rows = keys(first);
    if (Operands::lie_ready(rows.row, rows.step, tile_.head_dim))
      return {reinterpret_cast<const Operand*>(rows.data), rows.row / Operands::kElements, rows.step};
    const Index row = operand_row<S>(tile_.head_dim);
    for (Index i = 0; i < last - first; ++i)
      convert_row<S>(rows.data + i * rows.row, rows.step, tile_.head_dim, near + i * row);
    return {near, row, 1};
  }
  static constexpr Index near_keys(Index head_dim) {
    return Operands::kConverts ? kKeyBlock * operand_row<S>(head_dim) : 0;
  }

  /// Values of the keys [first, last) of a block likewise. Their operands run down the columns: one row of operands for
  /// kElements keys.
  Rows<Operand> value_operands(Index first, Index last, Operand* near) const {
    const Rows<S> rows = values(first);
    const Index row = near_value_row(tile_.value_dim), keys = last - first;
    if constexpr (!Operands::kConverts)
      return {rows.data, rows.row, rows.step};
    else if constexpr (!Operands::kJoins)
      for (Index i = 0; i < keys; ++i)
        convert_row<S>(rows.data + i * rows.row, rows.step, tile_.value_dim, near + i * row);
    else
      for (Index i = 0; i < keys; i += 2)
        Operands::join_rows(rows.data + i * rows.row, i + 1 < keys ? rows.data + (i + 1) * rows.row : nullptr,
                            rows.step, tile_.value_dim, near + i / 2 * row);
    return {near, row, 1};
  }
  static constexpr Index near_values(Index value_dim) {
    return kKeyBlock / Operands::kElements * near_value_row(value_dim);
  }

  /// What a tile reads soon, to be prefetched: `rows` keys of a block from `first` on, or the values of them. Nothing
  /// where they are probably near already, or are not contiguous.
  Upcoming next_keys(Index first, Index rows) const { return upcoming(keys(first), rows, tile_.head_dim); }
  Upcoming next_values(Index first, Index rows) const { return upcoming(values(first), rows, tile_.value_dim); }

 private:
  static constexpr Index near_value_row(Index value_dim) {
    constexpr Index L = kLanes<Compute<S>>;
    return Operands::kConverts ? (value_dim + L - 1) / L * L : 0;
  }

  Upcoming upcoming(const Rows<S>& from, Index rows, Index columns) const {
    if (!tile_.is_far || from.step != 1) return {};
    constexpr Index kSize = sizeof(S);
    return {from.data, from.row * kSize, rows, columns * kSize};
  }

  const AttentionTile& tile_;
};

}  // namespace
}  // namespace mha::MHA_ISA

// Where keys and values lie. No other file of the kernels reads a KeyValueSource or computes where a key begins.
//
// The seam is a block of kKeyBlock keys. A form of source (dense rows or pages of them, of numbers or of int8) answers
// for each block: where its keys and values lie (`keys`, `values`), as operands too, with scales applied if it has any
// (`key_operands`, `value_operands`), whether any row of the tile sees the block (`is_seen`), and the memory to
// prefetch (`next_keys`, `next_values`). Decode reads rows as they are stored (`stored_keys`, `stored_values`).
//
// Rows of int8 have a scale each. A number of such a row is integer * scale, rounded once to f32, and attention over
// the row has the same bits as over these numbers. Only kernels of f32 read int8.
//
// The dense form is pointers and strides: every answer is inlined to one multiplication and one addition, after a
// branch that is taken for pages. Pages hold whole blocks.
#pragma once

#include "kernels/kernel_table.hpp"
#include "kernels/products/kinds.hpp"
#include "kernels/products/strips.hpp"

namespace mha::MHA_ISA {
namespace {

/// Rows as they lie in memory.
struct StoredRows {
  const void* data;
  Index row;           // bytes between rows
  const float* scale;  // of each row, if they are of int8; else null
};

/// The numbers of rows of int8, whose elements are contiguous. Rows of `to` are aligned to vectors.
__attribute__((noinline)) inline void dequantize_rows(const StoredRows& from, Index rows, Index columns, float* to,
                                                      Index to_row) {
  constexpr Index L = kLanes<float>;
  for (Index r = 0; r < rows; ++r) {
    const auto* const integers = static_cast<const std::int8_t*>(from.data) + r * from.row;
    const Packet<float> scale = pset1<Packet<float>>(from.scale[r]);
    Index c = 0;
    for (; c + L <= columns; c += L) pstore(to + r * to_row + c, pmul(load_packet(integers + c), scale));
    for (; c < columns; ++c) to[r * to_row + c] = float(integers[c]) * from.scale[r];
  }
}

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
    return {static_cast<const S*>(source.key) + row_of(first) * source.key_row, source.key_row, source.key_step};
  }
  Rows<S> values(Index first) const {
    const KeyValueSource& source = tile_.source;
    return {static_cast<const S*>(source.value) + row_of(first) * source.value_row, source.value_row,
            source.value_step};
  }

  /// Whether rows are of int8; then there are no rows of S.
  bool are_int8() const { return kMayBeInt8 && tile_.source.key_scale; }
  static constexpr bool kMayBeInt8 = DTypeOf<S>::value == DType::f32;

  StoredRows stored_keys(Index first) const {
    const KeyValueSource& source = tile_.source;
    return stored(source.key, source.key_row, source.key_scale, row_of(first));
  }
  StoredRows stored_values(Index first) const {
    const KeyValueSource& source = tile_.source;
    return stored(source.value, source.value_row, source.value_scale, row_of(first));
  }
  /// Bytes of an element as it is stored.
  Index element_size() const { return are_int8() ? 1 : sizeof(S); }

  /// Whether any row of the tile sees a key of the block that begins at key `begin`, by the block masks. A block that no
  /// row sees is neither read nor computed.
  bool is_seen(Index begin) const { return !tile_.block_mask[0] || is_admitted(begin / kKeyBlock); }

  /// Keys [first, last) of a block as operands: as they lie if they can be multiplied so, else converted to `near`,
  /// which holds near_keys() operands.
  Rows<Operand> key_operands(Index first, Index last, Operand* near) const {
    const Index row = operand_row<S>(tile_.head_dim);
    if constexpr (kMayBeInt8)
      if (are_int8()) return numbers(stored_keys(first), last - first, tile_.head_dim, near, row);
    const Rows<S> rows = keys(first);
    if (Operands::lie_ready(rows.row, rows.step, tile_.head_dim))
      return {reinterpret_cast<const Operand*>(rows.data), rows.row / Operands::kElements, rows.step};
    for (Index i = 0; i < last - first; ++i)
      convert_row<S>(rows.data + i * rows.row, rows.step, tile_.head_dim, near + i * row);
    return {near, row, 1};
  }
  static constexpr Index near_keys(Index head_dim) { return kHasNear ? kKeyBlock * operand_row<S>(head_dim) : 0; }

  /// Values of the keys [first, last) of a block likewise. Their operands run down the columns: one row of operands for
  /// kElements keys; for tiles one row for each column, and beside(piece, pieces) is called between pieces of that
  /// work.
  Rows<Operand> value_operands(Index first, Index last, Operand* near) const {
    return value_operands(first, last, near, kNothingBeside);
  }
  template <class Beside>
  MHA_INLINE Rows<Operand> value_operands(Index first, Index last, Operand* near,
                                          [[maybe_unused]] Beside beside) const {
    const Index row = near_value_row(tile_.value_dim), keys = last - first;
    if constexpr (kMayBeInt8)
      if (are_int8()) return numbers(stored_values(first), keys, tile_.value_dim, near, row);
    const Rows<S> rows = values(first);
    if constexpr (!Operands::kConverts)
      return {rows.data, rows.row, rows.step};
    else if constexpr (kHasTiles<ProductsOf<S>>) {
      Operands::template transpose_values<kKeyBlock>(rows, keys, tile_.value_dim, row, near, beside);
      return {near, 1, kKeyBlock / Operands::kElements};
    } else if constexpr (!Operands::kJoins)
      for (Index i = 0; i < keys; ++i)
        convert_row<S>(rows.data + i * rows.row, rows.step, tile_.value_dim, near + i * row);
    else
      Operands::join_rows(rows.data, rows.row, rows.step, keys, tile_.value_dim, near, row);
    return {near, row, 1};
  }
  static constexpr Index near_values(Index value_dim) {
    return kKeyBlock / Operands::kElements * near_value_row(value_dim);
  }

  /// The memory to prefetch for a tile: `rows` keys of a block from `first` on, or their values. Nothing if they are
  /// probably in a near cache already, or are not contiguous.
  Upcoming next_keys(Index first, Index rows) const {
    return upcoming(stored_keys(first), tile_.source.key_step, rows, tile_.head_dim);
  }
  Upcoming next_values(Index first, Index rows) const {
    return upcoming(stored_values(first), tile_.source.value_step, rows, tile_.value_dim);
  }

 private:
  Index row_of(Index key) const { return tile_.source.pages ? row_in_page(key) : key; }

  // Not in line: that would be code in many places, to save nanoseconds for a block.
  __attribute__((noinline)) Index row_in_page(Index key) const {
    const KeyValueSource& source = tile_.source;
    return source.pages[key / source.page_rows] * source.page_rows + key % source.page_rows;
  }
  __attribute__((noinline)) bool is_admitted(Index block) const {
    const Index rows = tile_.block_masks_differ ? tile_.rows : 1, at = block * tile_.block_mask_step;
    for (Index r = 0; r < rows; ++r)
      if (tile_.block_mask[r][at]) return true;
    return false;
  }

  static constexpr Index near_value_row(Index value_dim) {
    constexpr Index L = kLanes<Compute<S>>;
    return kHasNear ? (value_columns<ProductsOf<S>>(value_dim) + L - 1) / L * L : 0;
  }
  static constexpr bool kHasNear = Operands::kConverts || kMayBeInt8;

  StoredRows stored(const void* data, Index row, const float* scale, Index first) const {
    row *= element_size();
    return {static_cast<const char*>(data) + first * row, row, scale ? scale + first : nullptr};
  }
  static Rows<float> numbers(const StoredRows& from, Index rows, Index columns, float* near, Index row) {
    dequantize_rows(from, rows, columns, near, row);
    return {near, row, 1};
  }

  Upcoming upcoming(const StoredRows& from, Index step, Index rows, Index columns) const {
    if (!tile_.is_far || step != 1) return {};
    return {from.data, from.row, rows, columns * element_size()};
  }

  const AttentionTile& tile_;
};

}  // namespace
}  // namespace mha::MHA_ISA

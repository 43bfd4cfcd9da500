// Masks that are arrays, for one block of keys: attn_mask, boolean or added to the scores, key_mask, and block masks
// that are not the same for all rows. They become a bias for each (key, query): 0, the entry of the mask, or minus
// infinity where the key is masked. A block mask that is the same for all rows needs no bias: the whole block is
// skipped, or not.
#pragma once

#include <stdint.h>

#include "kernels/kernel_table.hpp"
#include "kernels/products/packet_products.hpp"
#include "kernels/products/strips.hpp"
#include "kernels/vectors/transpose.hpp"

namespace mha::MHA_ISA {
namespace {

MHA_INLINE bool has_mask_arrays(const AttentionTile& tile) {
  return tile.attn_mask[0] || tile.key_mask || tile.block_masks_differ;
}

/// Whether a block mask hides the block of key `begin` from row r, but not from all rows.
MHA_INLINE bool hides_block(const AttentionTile& tile, Index r, Index begin) {
  return tile.block_masks_differ && !tile.block_mask[r][begin / kKeyBlock * tile.block_mask_step];
}

/// Reads `size` entries of a boolean mask: clears `all` if one of them is false, sets `any` if one of them is true.
MHA_INLINE void look_at_mask(const unsigned char* mask, Index size, Index step, bool& all, bool& any) {
  Index i = 0;
  if (step == 1)
    for (; i + 8 <= size; i += 8) {
      uint64_t eight;
      __builtin_memcpy(&eight, mask + i, 8);
      // NumPy writes 1 for true. Other values only make the block look masked, with the same results.
      all &= eight == 0x0101010101010101u;
      any |= eight != 0;
    }
  for (; i < size; ++i) {
    all &= mask[i * step] != 0;
    any |= mask[i * step] != 0;
  }
}

/// Entries of type M of an attn_mask that is added, for the keys [begin, begin + size), transposed to [key][query].
template <class M>
void load_bias_transposed(const AttentionTile& tile, Index begin, Index size, int vectors, Compute<M>* bias) {
  constexpr Index L = kLanes<Compute<M>>;
  for (int j = 0; j < vectors; ++j) {
    const M* rows[L];
    for (Index r = 0; r < L; ++r) {
      const Index row = j * L + r < tile.rows ? j * L + r : tile.rows - 1;
      rows[r] = static_cast<const M*>(tile.attn_mask[row]);
    }
    load_transposed<NumberOperands<M>>(rows, begin, size, tile.attn_mask_step, bias + j * L, kWidth<Compute<M>>);
  }
}

/// Asks for the entries of an attn_mask for the block of keys that begins at `begin`, if one does: a block of them is 4
/// KB of f32 in rows far from each other, and arrives while the products of the block before are computed.
template <class S>
void prefetch_mask(const AttentionTile& tile, Index begin, Index end) {
  if (!tile.attn_mask[0] || tile.attn_mask_step != 1 || begin >= end) return;
  const Index size = tile.attn_mask_is_boolean ? 1 : Index(tile.is_wide ? sizeof(Compute<S>) : sizeof(S));
  const Index bytes = (end - begin < kKeyBlock ? end - begin : kKeyBlock) * size;
  for (int r = 0; r < tile.rows; ++r)
    Upcoming{static_cast<const char*>(tile.attn_mask[r]) + begin * size, 0, 1, bytes}.prefetch(0, 1);
}

/// Masks `size` keys for the rows that a block mask hides their block from. `bias` is filled, or not yet: `is_filled`.
/// Returns whether it is now.
template <class T>
__attribute__((noinline)) bool hide_block_from_rows(const AttentionTile& tile, Index begin, Index size, int vectors,
                                                    T* bias, bool is_filled) {
  constexpr Index L = kLanes<T>, W = kWidth<T>;
  bool is_hidden[W], any_hidden = false;
  for (Index r = 0; r < vectors * L; ++r)
    any_hidden |= is_hidden[r] = hides_block(tile, r < tile.rows ? r : tile.rows - 1, begin);
  if (!any_hidden) return is_filled;
  for (Index i = 0; i < size; ++i)
    for (Index r = 0; r < vectors * L; ++r)
      if (is_hidden[r] || !is_filled) bias[i * W + r] = is_hidden[r] ? -kInfinity<T> : T(0);
  return true;
}

/// Fills the biases of the keys [begin, end), transposed to [key][kWidth]: 0 or the entry of the mask where a key is
/// visible, minus infinity where it is masked. Returns whether there is anything to apply: where boolean masks leave
/// all keys of the block visible there is not, and `bias` is not filled. Clears `any_visible` if no key is visible.
template <class S>
bool fill_bias_transposed(const AttentionTile& tile, Index begin, Index end, int vectors, Compute<S>* bias,
                          bool& any_visible) {
  using T = Compute<S>;
  using P = Packet<T>;
  constexpr Index L = kLanes<T>, W = kWidth<T>;
  constexpr T kMasked = -kInfinity<T>;
  const Index size = end - begin;
  bool any_masked = false;
  if (tile.attn_mask[0] && tile.attn_mask_is_boolean) {
    bool all_visible = true;
    any_visible = false;
    const unsigned char* masks[W];
    for (int j = 0; j < vectors; ++j)
      for (Index r = j * L; r < (j + 1) * L; ++r) {
        const Index row = r < tile.rows ? r : tile.rows - 1;
        masks[r] = static_cast<const unsigned char*>(tile.attn_mask[row]) + begin * tile.attn_mask_step;
        look_at_mask(masks[r], size, tile.attn_mask_step, all_visible, any_visible);
      }
    any_masked = !all_visible;
    for (int j = 0; j < vectors && any_masked; ++j) {
      alignas(kVectorBytes) T lines[L][kKeyBlock];
      const T* rows[L];
      for (Index r = 0; r < L; ++r) {
        const unsigned char* mask = masks[j * L + r];
        if (tile.attn_mask_step == 1)  // whole vectors at a time
          for (Index i = 0; i < size; ++i) lines[r][i] = mask[i] ? T(0) : kMasked;
        else
          for (Index i = 0; i < size; ++i) lines[r][i] = mask[i * tile.attn_mask_step] ? T(0) : kMasked;
        rows[r] = lines[r];
      }
      load_transposed<NumberOperands<T>>(rows, 0, size, 1, bias + j * L, W);
    }
  } else if (tile.attn_mask[0]) {
    any_masked = true;
    if (tile.is_wide)
      load_bias_transposed<T>(tile, begin, size, vectors, bias);
    else
      load_bias_transposed<S>(tile, begin, size, vectors, bias);
  }

  if (tile.key_mask && any_visible) {
    const unsigned char* mask = tile.key_mask + begin * tile.key_mask_step;
    bool all_visible = true;
    any_visible = false;
    look_at_mask(mask, size, tile.key_mask_step, all_visible, any_visible);
    for (Index i = 0; i < size && !all_visible; ++i) {
      const bool visible = mask[i * tile.key_mask_step];
      if (visible && any_masked) continue;  // keeps the entry of attn_mask
      for (int j = 0; j < vectors; ++j) pstore(bias + i * W + j * L, pset1<P>(visible ? T(0) : kMasked));
    }
    any_masked |= !all_visible;
  }
  if (tile.block_masks_differ && any_visible) return hide_block_from_rows(tile, begin, size, vectors, bias, any_masked);
  return any_masked;
}

/// The same for decode: [query][key], rows `row` elements apart, always filled. Returns whether any key is visible.
template <class S>
bool fill_bias_rows(const AttentionTile& tile, Index begin, Index end, Compute<S>* bias, Index row) {
  using T = Compute<S>;
  const unsigned char* key_mask = tile.key_mask;
  bool any_visible = false;
  for (int r = 0; r < tile.rows; ++r, bias += row) {
    const void* attn_mask = tile.attn_mask[r];
    const bool is_hidden = hides_block(tile, r, begin);
    for (Index key = begin; key < end; ++key) {
      const Index at = key * tile.attn_mask_step;
      bool visible = !is_hidden && (!key_mask || key_mask[key * tile.key_mask_step]);
      T entry = T(0);
      if (attn_mask && tile.attn_mask_is_boolean)
        visible &= static_cast<const unsigned char*>(attn_mask)[at] != 0;
      else if (attn_mask)
        entry =
            tile.is_wide ? static_cast<const T*>(attn_mask)[at] : load_element(static_cast<const S*>(attn_mask) + at);
      bias[key - begin] = visible ? entry : -kInfinity<T>;
      any_visible |= bias[key - begin] != -kInfinity<T>;
    }
  }
  return any_visible;
}

}  // namespace
}  // namespace mha::MHA_ISA

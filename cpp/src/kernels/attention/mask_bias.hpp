// Masks that are arrays, for one block of keys: attn_mask, boolean or added to the scores, and key_mask. What they say
// becomes a bias for each (key, query): 0, the entry of the mask, or minus infinity where the key is masked.
#pragma once

#include <stdint.h>

#include "kernels/kernel_table.hpp"
#include "kernels/products/packet_products.hpp"
#include "kernels/vectors/transpose.hpp"

namespace mha::MHA_ISA {
namespace {

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
    if (all_visible) return any_masked;
    for (Index i = 0; i < size; ++i) {
      const bool visible = mask[i * tile.key_mask_step];
      if (visible && any_masked) continue;  // keeps what attn_mask says
      for (int j = 0; j < vectors; ++j) pstore(bias + i * W + j * L, pset1<P>(visible ? T(0) : kMasked));
    }
    any_masked = true;
  }
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
    for (Index key = begin; key < end; ++key) {
      const Index at = key * tile.attn_mask_step;
      bool visible = !key_mask || key_mask[key * tile.key_mask_step];
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

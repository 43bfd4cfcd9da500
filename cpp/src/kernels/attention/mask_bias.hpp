// Masks that are arrays, for one block of keys: attn_mask, boolean or added to the scores, key_mask, and block masks
// that are not the same for all rows. The boolean ones become one bit for each (query, key), and an attn_mask that is
// added a bias for each (key, query): its entry, or minus infinity where the key is masked. A block mask that is the
// same for all rows needs neither: the whole block is skipped, or not.
#pragma once

#include <stdint.h>

#include "kernels/kernel_table.hpp"
#include "kernels/products/packet_products.hpp"
#include "kernels/products/strips.hpp"
#include "kernels/vectors/lane_bits.hpp"
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

/// The rows of an attn_mask of type M in vector j of queries.
template <class M>
MHA_INLINE void mask_rows(const AttentionTile& tile, int j, const M** rows) {
  constexpr Index L = kLanes<Compute<M>>;
  for (Index r = 0; r < L; ++r)
    rows[r] = static_cast<const M*>(tile.attn_mask[j * L + r < tile.rows ? j * L + r : tile.rows - 1]);
}

/// Entries of type M of an attn_mask that is added, for the keys [begin, begin + size), transposed to [key][query].
template <class M>
void load_bias_transposed(const AttentionTile& tile, Index begin, Index size, int vectors, Compute<M>* bias) {
  constexpr Index L = kLanes<Compute<M>>;
  for (int j = 0; j < vectors; ++j) {
    const M* rows[L];
    mask_rows(tile, j, rows);
    load_transposed<NumberOperands<M>>(rows, begin, size, tile.attn_mask_step, bias + j * L, kWidth<Compute<M>>);
  }
}

/// Adds biases to scores: minus infinity where the bias is, whatever the score is.
template <class T>
class BiasSum {
 public:
  using P = Packet<T>;

  MHA_INLINE P operator()(const P& score, const P& bias) {
    const P hidden = pset1<P>(-kInfinity<T>), is_hidden = pcmp_eq(bias, hidden);
    any_ = por(any_, is_hidden);
    return pselect(is_hidden, hidden, padd(score, bias));
  }
  /// Whether a bias so far was minus infinity.
  bool has_hidden() const { return predux_max(pand(any_, pset1<P>(T(1)))) != T(0); }

 private:
  P any_ = pset1<P>(T(0));
};

#ifdef EIGEN_VECTORIZE_AVX512
/// The same by registers of masks: Eigen would turn each comparison into a vector and back.
template <>
class BiasSum<float> {
 public:
  MHA_INLINE __m512 operator()(const __m512& score, const __m512& bias) {
    const __m512 hidden = _mm512_set1_ps(-kInfinity<float>);
    lowest_ = _mm512_min_ps(bias, lowest_);  // without NaN
    return _mm512_mask_add_ps(hidden, _mm512_cmp_ps_mask(bias, hidden, _CMP_NEQ_UQ), score, bias);
  }
  bool has_hidden() const { return predux_min(lowest_) == -kInfinity<float>; }

 private:
  __m512 lowest_ = _mm512_setzero_ps();
};
#endif

/// `upcoming`, and the entries of an attn_mask for up to kKeyBlock of the keys [begin, end) in all rows of the tile:
/// lines of memory far from each other.
template <class S>
MHA_INLINE Upcoming with_mask(Upcoming upcoming, const AttentionTile& tile, Index begin, Index end) {
  if (!tile.attn_mask[0] || tile.attn_mask_step != 1 || begin >= end) return upcoming;
  const Index size = tile.attn_mask_is_boolean ? 1 : Index(tile.is_wide ? sizeof(Compute<S>) : sizeof(S));
  upcoming.lone_rows = tile.attn_mask;
  upcoming.lone_count = tile.rows;
  upcoming.offset = begin * size;
  upcoming.lone_bytes = (end - begin < kKeyBlock ? end - begin : kKeyBlock) * size;
  return upcoming;
}

/// The keys of a block that the rows of a tile see as far as boolean masks tell.
template <class T>
class VisibleKeys {
 public:
  static constexpr Index L = kLanes<T>, W = kWidth<T>;
  static_assert(kKeyBlock == 64);  // bits of a lane

  /// Reads the masks of the keys [begin, end) for `vectors` vectors of rows.
  __attribute__((noinline)) void read(const AttentionTile& tile, Index begin, Index end, int vectors) {
    const bool differ = tile.attn_mask[0] && tile.attn_mask_is_boolean;
    are_all_ = !differ && !tile.key_mask && !tile.block_masks_differ;
    are_none_ = false;
    if (are_all_) return;
    const Index size = end - begin, step = tile.attn_mask_step, count = vectors * L;
    alignas(kVectorBytes) uint64_t rows[W];
    if (differ)
      for (Index r = 0; r < tile.rows; ++r)
        rows[r] = bits_of(static_cast<const unsigned char*>(tile.attn_mask[r]) + begin * step, size, step);
    else
      for (Index r = 0; r < tile.rows; ++r) rows[r] = up_to(size);
    for (Index r = 0; tile.block_masks_differ && r < tile.rows; ++r)
      if (hides_block(tile, r, begin)) rows[r] = 0;
    for (Index r = tile.rows; r < count; ++r) rows[r] = rows[tile.rows - 1];
    const uint64_t of_keys =
        tile.key_mask ? bits_of(tile.key_mask + begin * tile.key_mask_step, size, tile.key_mask_step) : up_to(size);
    uint64_t all = of_keys, any = 0;
    for (Index r = 0; r < count; ++r) {
      const uint64_t bits = rows[r] & of_keys;
      all &= bits;
      any |= bits;
      bits_.set(r, bits);
    }
    are_all_ = all == up_to(size);
    are_none_ = any == 0;
  }

  bool are_all() const { return are_all_; }
  bool are_none() const { return are_none_; }

  /// Whether the rows in `vectors` vectors of lanes from `lane` on see all keys [first, last) of the block.
  bool are_all(Index lane, int vectors, Index first, Index last) const {
    uint64_t all = ~uint64_t{0};
    for (Index r = lane; r < lane + vectors * L; ++r) all &= bits_.of(r);
    return (~all & up_to(last) & ~up_to(first)) == 0;
  }

  /// Minus infinity takes the place of the scores [key][kWidth] of hidden keys. `highest`: of each lane, raised by the
  /// scores of the others.
  template <int N>
  MHA_INLINE void hide(Index lane, Index first, Index last, T* scores, T* highest) const {
    using P = Packet<T>;
    const P zero = pset1<P>(T(0)), hidden = pset1<P>(-kInfinity<T>);
    P most[N];
    MHA_UNROLL
    for (Index n = 0; n < N; ++n) most[n] = pload<P>(highest + lane + n * L);
    bits_.template for_each<N>(lane, first, last, [&](Index i, auto select) MHA_INLINE_LAMBDA {
      MHA_UNROLL
      for (Index n = 0; n < N; ++n) {
        T* const s = scores + i * W + lane + n * L;
        const P score = select(n, padd(pload<P>(s), zero), hidden);
        pstore(s, score);
        most[n] = pmax(most[n], score);
      }
    });
    MHA_UNROLL
    for (Index n = 0; n < N; ++n) pstore(highest + lane + n * L, most[n]);
  }

  /// As biases of the keys [0, size) of a block: minus infinity for a hidden key, 0 for others, or what `bias` has
  /// already if it `is_filled`.
  __attribute__((noinline)) void write_bias(Index size, int vectors, T* bias, bool is_filled) const {
    using P = Packet<T>;
    const P zero = pset1<P>(T(0)), hidden = pset1<P>(-kInfinity<T>);
    for (Index lane = 0; lane < vectors * L; lane += L)
      bits_.template for_each<1>(lane, 0, size, [&](Index i, auto select) MHA_INLINE_LAMBDA {
        T* const at = bias + i * W + lane;
        pstore(at, select(0, is_filled ? pload<P>(at) : zero, hidden));
      });
  }

 private:
  /// The bits below `size`.
  static uint64_t up_to(Index size) { return size == 0 ? 0 : ~uint64_t{0} >> (64 - size); }

  LaneBits<T, W> bits_;
  bool are_all_ = true, are_none_ = false;
};

/// Fills the biases of an attn_mask that is added, for the keys [begin, end), transposed to [key][kWidth].
template <class S>
void fill_bias_transposed(const AttentionTile& tile, Index begin, Index end, int vectors, Compute<S>* bias) {
  if (tile.is_wide)
    load_bias_transposed<Compute<S>>(tile, begin, end - begin, vectors, bias);
  else
    load_bias_transposed<S>(tile, begin, end - begin, vectors, bias);
}

/// Fills the biases of all masks for decode: [query][key], rows `row` elements apart; 0 or the entry of the mask where
/// a key is visible, minus infinity where it is masked. Returns whether any key is visible.
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

// Scores of one tile, block of keys by block of keys: S^T = K Q^T with every mask applied, the running maximum, and the
// exponentials. What is done with the weights (attend_tile.hpp, weigh_tile.hpp) is not known here.
//
// Queries lie in the lanes: a row of S^T holds one key's scores with every query of the tile. Keys are read by broadcast
// from where they lie, only Q^T is packed, once per tile, and maximum, sum and rescaling are plain vector operations
// with no horizontal step (the transposed form of Dao et al., "FlashAttention", 2022, algorithm 1; online softmax after
// Milakov and Gimelshein, 2018, algorithm 3).
//
// One row, one answer: a lane never meets another lane, blocks end at multiples of kKeyBlock counted from key 0, sums
// inside a block are one chain in key order, and a masked key adds an exact 0. So a row's bits do not depend on which
// rows share its tile.
#pragma once

#include <math.h>
#include <stdint.h>

#include "exp2.hpp"
#include "kernel_table.hpp"
#include "modify_scores.hpp"
#include "score_strips.hpp"
#include "transpose.hpp"

namespace mha::MHA_ISA {

/// Keys in a block. S^T takes 16 KB (f32, AVX-512), as do a block of K or V at D = 64 and Q^T: level 1 (32 KB on Zen 4,
/// 48 KB on Zen 5) holds what a product works on. As many keys as a tile has queries, so that under a causal mask one block
/// in a tile is cut, not two. 96 and 128 keys are no faster without a mask and 2 to 3 % slower with one at T = 512:
/// docs/decisions/0003.
constexpr Index kKeyBlock = 64;

/// Takes the entries of a row of a boolean mask into account: whether all are set, whether any is.
MHA_INLINE void look_at_mask(const unsigned char* mask, Index size, Index step, bool& all, bool& any) {
  Index i = 0;
  if (step == 1)
    for (; i + 8 <= size; i += 8) {
      uint64_t eight;
      __builtin_memcpy(&eight, mask + i, 8);
      all &= eight ==
             0x0101010101010101u;  // NumPy writes 1; other values of true take the way of a mask, with the same bits
      any |= eight != 0;
    }
  for (; i < size; ++i) {
    all &= mask[i * step] != 0;
    any |= mask[i * step] != 0;
  }
}

/// Keys [begin, end) of a block for which the same vectors of queries have something to see.
struct Segment {
  Index begin, end;
  int first_vector, vectors;
  bool modified;  // modify_scores() has something to do
};

struct KeyBlock {
  Index begin, end;
  bool has_bias;   // the bias tile holds this block's mask entries
  bool is_masked;  // some lane must not see some key
  int segment_count;
  Segment segments[2 * kVectors + 1];
};

/// The state of one tile. Everything is [.][kWidth], a column to a query row.
template <class T>
class ScoreTile {
 public:
  static constexpr Index L = kLanes<T>, W = kWidth<T>;
  using P = Packet<T>;

  static std::size_t scratch_elements(Index head_dim) { return std::size_t(W * (head_dim + 2 * kKeyBlock + 8)); }

  ScoreTile(const AttentionTile& tile, T* scratch) : tile_(tile) {
    auto take = [&](Index rows) {
      T* part = scratch;
      scratch += rows * W;
      return part;
    };
    queries_ = take(tile.head_dim);
    scores_ = take(kKeyBlock);
    bias_ = take(kKeyBlock);
    row_max_ = take(1);
    row_sum_ = take(1);
    correction_ = take(1);
    block_max_ = take(1);
    first_ = take(1);
    last_ = take(1);
    slope_ = take(1);
    position_ = take(1);

    // A positive scale can wait for the exponent, where it costs nothing. What is capped or added to is the scaled score, and
    // a scale that is not positive turns the maximum around: then scores are scaled first, and every segment is modified.
    scale_first_ =
        (tile.attn_mask[0] && !tile.attn_mask_is_boolean) || tile.softcap != 0 || tile.has_alibi || !(tile.scale > 0);
    max_scale_ = scale_first_ ? 1.0 : tile.scale;
    exponent_scale_ = T(max_scale_ * 1.4426950408889634);  // log2(e)

    vectors_ = int((tile.rows + L - 1) / L);
    find_bounds();
    pack_queries();
    for (int j = 0; j < vectors_; ++j) {
      pstore(row_max_ + j * L, pset1<P>(kLowest<T>));
      pstore(row_sum_ + j * L, pset1<P>(T(0)));
    }
  }

  /// Calls `visit(block)` for every block of keys that some row sees, in order.
  template <class Visitor>
  MHA_INLINE void for_each_block(Visitor visit) {
    Index begin = last_key_, end = 0;
    for (int j = 0; j < vectors_; ++j) {
      if (any_first_[j] == any_last_[j]) continue;
      begin = any_first_[j] < begin ? any_first_[j] : begin;
      end = any_last_[j] > end ? any_last_[j] : end;
    }
    while (begin < end) {
      const Index edge = (begin / kKeyBlock + 1) * kKeyBlock;
      KeyBlock block{begin - begin % kKeyBlock, edge < end ? edge : end, false, false, 0, {}};
      if (plan_block(block, begin)) visit(block);
      begin = block.end;
    }
  }

  /// Fills the scores of the block's segments and the maximum of each lane over the block.
  void score(const KeyBlock& block) {
    static constexpr StripTable<ScoreKeys, T, ScoreArguments<T>> score_keys;
    const ScoreModification<T> modification{scale_first_ ? T(tile_.scale) : T(1),
                                            T(tile_.softcap),
                                            tile_.has_alibi ? slope_ : nullptr,
                                            position_,
                                            block.has_bias ? bias_ : nullptr,
                                            first_,
                                            last_};
    alignas(kVectorBytes) T unused[W];
    for (int j = 0; j < vectors_; ++j) {
      pstore(block_max_ + j * L, pset1<P>(kLowest<T>));
      pstore(unused + j * L, pset1<P>(kLowest<T>));
    }
    for (int i = 0; i < block.segment_count; ++i) {
      const Segment& segment = block.segments[i];
      const Index lane = segment.first_vector * L, offset = segment.begin - block.begin;
      const Index keys = segment.end - segment.begin;
      score_keys(segment.vectors, keys,
                 {tile_.head_dim, static_cast<const T*>(tile_.key) + segment.begin * tile_.key_row, tile_.key_row,
                  tile_.key_step, queries_ + lane, scores_ + offset * W + lane,
                  (segment.modified ? unused : block_max_) + lane},
                 upcoming(tile_.value, tile_.value_row, tile_.value_step, tile_.value_dim, segment.begin, keys));
      if (segment.modified)
        modify_scores(modification, offset, offset + keys, segment.first_vector, segment.vectors, scores_, block_max_);
    }
  }

  /// Moves the running maximum on to include the block; correction() then brings older sums to the new maximum.
  void raise_maximum() {
    const P scale = pset1<P>(exponent_scale_);
    for (int j = 0; j < vectors_; ++j) {
      const P before = pload<P>(row_max_ + j * L);
      const P after = pmax(before, pload<P>(block_max_ + j * L));
      pstore(row_max_ + j * L, after);
      pstore(correction_ + j * L, exp2_of_nonpositive(pmul(psub(before, after), scale)));
    }
  }

  /// Scores of the block become weights relative to the maximum. The sum takes them in when `accumulate` is set.
  void exponentiate(const KeyBlock& block, bool accumulate) {
    const P scale = pset1<P>(exponent_scale_);
    for (int j = 0; j < vectors_; ++j) {
      const P highest = pload<P>(row_max_ + j * L);
      P sum = pset1<P>(T(0));
      const Index end = last_in(block, j);
      for (Index key = first_in(block, j); key < end; ++key) {
        T* s = scores_ + (key - block.begin) * W + j * L;
        const P weight = exp2_of_nonpositive(pmul(psub(pload<P>(s), highest), scale));
        pstore(s, weight);
        sum = padd(sum, weight);
      }
      if (accumulate) pstore(row_sum_ + j * L, pmadd(pload<P>(row_sum_ + j * L), pload<P>(correction_ + j * L), sum));
    }
  }

  /// What exponentiate() raises 2 to for scores of vector j: log2 of the weight relative to the largest one.
  P log2_weight(const P& score, int j) const {
    return pmul(psub(score, pload<P>(row_max_ + j * L)), pset1<P>(exponent_scale_));
  }

  /// Keys of the block that vector j has scores for.
  Index first_in(const KeyBlock& block, int j) const {
    return any_first_[j] > block.begin ? any_first_[j] : block.begin;
  }
  Index last_in(const KeyBlock& block, int j) const { return any_last_[j] < block.end ? any_last_[j] : block.end; }

  /// What brings each lane of vector j from sums relative to the maximum to averages: 1 / sum, 0 for a row that saw nothing.
  P normalizer(int j) const {
    const P sum = pload<P>(row_sum_ + j * L), zero = pset1<P>(T(0));
    if (!tile_.has_sinks) return pselect(pcmp_eq(sum, zero), zero, pdiv(pset1<P>(T(1)), sum));
    alignas(kVectorBytes) T factors[L] = {};
    for (Index r = 0; r < L && j * L + r < tile_.rows; ++r) {
      const Total total = total_of(int(j * L + r));
      factors[r] = total.sum == 0 ? T(0) : T(total.kept / total.sum);
    }
    return pload<P>(factors);
  }

  /// The logarithm of the sum of exponentials of the masked scores of row r, and of its sink.
  T log_sum_exp(int r) const {
    const Total total = total_of(r);
    return total.sum == 0 ? -kInfinity<T> : T(total.highest + ::log(total.sum));
  }

  /// Before exponentiate(): writes over the bias tile which entries of the block are masked, all bits set where so.
  const T* mark_masked(const KeyBlock& block) {
    const P minus_infinity = pset1<P>(-kInfinity<T>);
    for (Index i = 0; i < (block.end - block.begin) * W; i += L)
      pstore(bias_ + i, pcmp_eq(pload<P>(scores_ + i), minus_infinity));
    return bias_;
  }

  /// Keys that follow the block.
  Upcoming next_keys(const KeyBlock& block) const {
    const Index left = last_key_ - block.end, keys = left < kKeyBlock ? left : kKeyBlock;
    return upcoming(tile_.key, tile_.key_row, tile_.key_step, tile_.head_dim, block.end, keys);
  }

  int vectors() const { return vectors_; }
  const T* weights() const { return scores_; }
  const T* correction() const { return correction_; }

 private:
  /// The exponentials of a row, relative to the largest score: their sum, and what a weight relative to row_max counts.
  struct Total {
    double highest, sum, kept;
  };
  Total total_of(int r) const {
    const double highest = double(row_max_[r]) * max_scale_, sum = double(row_sum_[r]);
    if (!tile_.has_sinks || tile_.sink[r] == -__builtin_inf()) return {highest, sum, 1};
    if (sum == 0) return {tile_.sink[r], 1, 0};
    const double top = highest > tile_.sink[r] ? highest : tile_.sink[r], kept = ::exp(highest - top);
    return {top, sum * kept + ::exp(tile_.sink[r] - top), kept};
  }

  Upcoming upcoming(const void* data, Index row, Index step, Index columns, Index first, Index rows) const {
    if (!tile_.is_far || step != 1) return {};
    constexpr Index kSize = sizeof(T);
    return {static_cast<const T*>(data) + first * row, row * kSize, rows, columns * kSize};
  }

  void find_bounds();
  void pack_queries();
  bool plan_block(KeyBlock& block, Index begin);
  void fill_lanes(const KeyBlock& block);
  bool fill_bias(const KeyBlock& block, bool& any_visible);

  const AttentionTile& tile_;
  bool scale_first_;
  T exponent_scale_;
  double max_scale_;  // natural scores per unit of row_max
  int vectors_;
  Index last_key_ = 0;
  // For each vector the keys that any of its lanes sees, and those that all of them see.
  Index any_first_[kVectors], any_last_[kVectors], all_first_[kVectors], all_last_[kVectors];
  T *queries_, *scores_, *bias_, *row_max_, *row_sum_, *correction_, *block_max_, *first_, *last_, *slope_, *position_;
};

template <class T>
void ScoreTile<T>::find_bounds() {
  for (int j = 0; j < vectors_; ++j) {
    any_first_[j] = all_last_[j] = PTRDIFF_MAX;
    any_last_[j] = all_first_[j] = 0;
    for (Index r = j * L; r < (j + 1) * L && r < tile_.rows; ++r) {
      const Index first = tile_.first_key[r], last = tile_.last_key[r];
      if (first < last) {
        any_first_[j] = first < any_first_[j] ? first : any_first_[j];
        any_last_[j] = last > any_last_[j] ? last : any_last_[j];
      }
      all_first_[j] = first > all_first_[j] ? first : all_first_[j];
      all_last_[j] = last < all_last_[j] ? last : all_last_[j];
    }
    if (any_last_[j] == 0) any_first_[j] = 0;
    last_key_ = any_last_[j] > last_key_ ? any_last_[j] : last_key_;
  }
}

template <class T>
void ScoreTile<T>::pack_queries() {
  // All requests at once: a transpose alone has no more than kLanes of them on the way.
  for (int r = 0; r < tile_.rows && tile_.query_step == 1; ++r)
    Upcoming{tile_.query[r], 0, 1, tile_.head_dim * Index(sizeof(T))}.prefetch(0, 1);
  for (int j = 0; j < vectors_; ++j) {
    const T* rows[L];  // lanes without a row of their own repeat the last one; nothing of theirs is stored
    for (Index r = 0; r < L; ++r) {
      const Index row = j * L + r < tile_.rows ? j * L + r : tile_.rows - 1;
      rows[r] = static_cast<const T*>(tile_.query[row]);
    }
    load_transposed<T>(rows, 0, tile_.head_dim, tile_.query_step, queries_ + j * L, W);
  }
}

/// Cuts the block where the set of vectors that see something changes. False if masks leave nothing of it.
template <class T>
bool ScoreTile<T>::plan_block(KeyBlock& block, Index begin) {
  if (tile_.attn_mask[0] || tile_.key_mask) {
    bool any_visible = true;
    block.has_bias = block.is_masked = fill_bias(block, any_visible);
    if (!any_visible) return false;
  }
  while (begin < block.end) {
    Index end = block.end;
    int first_vector = vectors_, last_vector = -1;
    bool cut = false;
    for (int j = 0; j < vectors_; ++j) {
      if (any_first_[j] > begin && any_first_[j] < end) end = any_first_[j];
      if (any_last_[j] > begin && any_last_[j] < end) end = any_last_[j];
    }
    for (int j = 0; j < vectors_; ++j) {
      if (any_first_[j] > begin || any_last_[j] <= begin) continue;
      first_vector = j < first_vector ? j : first_vector;
      last_vector = j;
      cut |= all_first_[j] > begin || all_last_[j] < end;
    }
    if (last_vector >= 0)
      block.segments[block.segment_count++] = {begin, end, first_vector, last_vector - first_vector + 1,
                                               scale_first_ || block.has_bias || cut};
    block.is_masked |= cut;
    begin = end;
  }
  if (block.is_masked || scale_first_) fill_lanes(block);
  return block.segment_count > 0;
}

/// What modify_scores() has to know of each lane, counted from the block's begin.
template <class T>
void ScoreTile<T>::fill_lanes(const KeyBlock& block) {
  const Index size = block.end - block.begin;
  const auto inside = [&](Index key) { return T(key < 0 ? 0 : key > size ? size : key); };
  for (Index r = 0; r < vectors_ * L; ++r) {
    const Index row = r < tile_.rows ? r : tile_.rows - 1;
    first_[r] = inside(tile_.first_key[row] - block.begin);
    last_[r] = inside(tile_.last_key[row] - block.begin);
    if (!tile_.has_alibi) continue;
    slope_[r] = T(tile_.alibi_slope[row]);
    position_[r] = T(tile_.position[row] - block.begin);
  }
}

/// The block's mask entries, transposed to [key][query]: 0 or the bias where visible, minus infinity where masked.
/// Returns whether there is anything to apply: a block that masks nothing, of boolean masks only, is better left plain.
template <class T>
bool ScoreTile<T>::fill_bias(const KeyBlock& block, bool& any_visible) {
  constexpr T kMasked = -kInfinity<T>;
  const Index size = block.end - block.begin, lanes = vectors_ * L;
  bool any_masked = false;
  if (tile_.attn_mask[0] && tile_.attn_mask_is_boolean) {
    bool all_visible = true;
    any_visible = false;
    const unsigned char* masks[W];
    for (Index r = 0; r < lanes; ++r) {
      const Index row = r < tile_.rows ? r : tile_.rows - 1;
      masks[r] = static_cast<const unsigned char*>(tile_.attn_mask[row]) + block.begin * tile_.attn_mask_step;
      look_at_mask(masks[r], size, tile_.attn_mask_step, all_visible, any_visible);
    }
    any_masked = !all_visible;
    for (int j = 0; j < vectors_ && any_masked; ++j) {
      alignas(kVectorBytes) T lines[L][kKeyBlock];
      const T* rows[L];
      for (Index r = 0; r < L; ++r) {
        const unsigned char* mask = masks[j * L + r];
        for (Index i = 0; i < size; ++i) lines[r][i] = mask[i * tile_.attn_mask_step] ? T(0) : kMasked;
        rows[r] = lines[r];
      }
      load_transposed<T>(rows, 0, size, 1, bias_ + j * L, W);
    }
  } else if (tile_.attn_mask[0]) {
    any_masked = true;
    for (int j = 0; j < vectors_; ++j) {
      const T* rows[L];
      for (Index r = 0; r < L; ++r) {
        const Index row = j * L + r < tile_.rows ? j * L + r : tile_.rows - 1;
        rows[r] = static_cast<const T*>(tile_.attn_mask[row]);
      }
      load_transposed<T>(rows, block.begin, size, tile_.attn_mask_step, bias_ + j * L, W);
    }
  }

  if (tile_.key_mask && any_visible) {
    const unsigned char* mask = tile_.key_mask + block.begin * tile_.key_mask_step;
    bool all_visible = true;
    any_visible = false;
    look_at_mask(mask, size, tile_.key_mask_step, all_visible, any_visible);
    if (all_visible) return any_masked;
    for (Index i = 0; i < size; ++i) {
      const bool visible = mask[i * tile_.key_mask_step];
      if (visible && any_masked) continue;  // as attn_mask has it
      for (int j = 0; j < vectors_; ++j) pstore(bias_ + i * W + j * L, pset1<P>(visible ? T(0) : kMasked));
    }
    any_masked = true;
  }
  return any_masked;
}

}  // namespace mha::MHA_ISA

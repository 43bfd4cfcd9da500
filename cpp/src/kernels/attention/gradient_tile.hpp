// The gradient of attention for one tile: its query rows with the keys of one span. For each block of 64 keys, with the
// logarithm of the sum of each row (lse) from the forward pass:
//
//   S^T  = K Q^T                           products, then scale, softcap, biases and masks, as in softmax_tile.hpp
//   P^T  = 2^((S^T - lse) log2 e)          weights, computed again instead of stored
//   dP^T = V dO^T
//   dS^T = P^T (dP^T - delta)              delta = sum of dO O of each row, less the gradient of lse
//   dV  += P^T dO,  dK += dS^T Q,  dQ += dS K
//
// dS is the gradient of a score after all that is added to it. So the gradients of masks, position biases and ALiBi
// slopes are sums of its elements. With dropout P^T is multiplied by 0 or 1 / (1 - p) for dV, and so is dP^T. Before the last two products it is multiplied by the derivative of the cap,
// 1 - tanh^2, if there is one. The scale multiplies dQ and dK once, when they are stored.
//
// Layout: no product transposes P or dS. In the first two products queries lie in the lanes, keys and values are read
// by broadcast from where they lie, and only Q^T and dO^T are packed. In the other three features lie in the lanes: P^T
// and dS^T are read by broadcast along a row for dV and dK, down a column for dQ, and dO, Q and K are loaded as they lie.
//
// Memory traffic of a block at D = Dv = 64 in f32 with 64 queries: 32 KB of K and V in, 32 KB of Q^T and dO^T in, 32 KB
// of Q and dO in, P and dS written once and read twice (64 KB), 48 KB of dQ, dK and dV in and out, for 1.3 million
// multiply-adds: five products where the forward pass has two. Everything but K, V, dK and dV is in level 1 or 2 for
// the whole tile; those four are 512 KB for a span, so the tiles of a head find them in level 2.
//
// Numerics: a product over the keys or the queries of a block is summed from zero and then added. dQ adds the blocks of
// a span in order, and the spans in order; dK and dV add the tiles of a head in order. So bits do not depend on threads,
// and rows of other sequences take no part. A weight of exactly 0, as masked keys have, takes part in no sum, whatever it
// would be multiplied by: NaN of masked keys, or of rows that see no key, goes nowhere.
//
// Source: Dao, "FlashAttention-2", 2023, algorithm 2, transposed (docs/decisions/0002), with queries inside of spans.
#pragma once

#include <math.h>

#include "kernels/attention/guard_values.hpp"
#include "kernels/attention/softmax_tile.hpp"
#include "kernels/products/add_products.hpp"

namespace mha::MHA_ISA {
namespace {

template <class Products>
struct WeightGradientArguments {
  using T = typename Products::Sum;
  Index depth;     // of the heads
  const T* value;  // first key of the segment
  Index value_row, value_step;
  const T* dout;     // dO^T; this and the next fields: at the first vector of queries of the segment
  const T* weights;  // P^T
  const T* delta;
  T* gradients;  // dS^T
};

/// M keys of dS^T = P^T (V dO^T - delta), against N vectors of queries.
template <class Products, int M, int N>
struct WeightGradients {
  static void run(const WeightGradientArguments<Products>& g, Index row) {
    using T = typename Products::Sum;
    using P = Packet<T>;
    constexpr Index L = kLanes<T>, W = kWidth<T>;
    Products::Tile::template multiply_long<M, N>(
        g.depth, g.value + row * g.value_row, g.value_row, g.value_step, g.dout, W,
        [&](int i, int j, const P& sum) MHA_INLINE_LAMBDA {
          const Index at = (row + i) * W + j * L;
          const P weight = pload<P>(g.weights + at), delta = pload<P>(g.delta + j * L);
          pstore(g.gradients + at, pandnot(pmul(weight, psub(sum, delta)), pcmp_eq(weight, pset1<P>(T(0)))));
        });
  }
};

template <class T>
class AttentionGradientTile {
 public:
  static constexpr Index L = kLanes<T>, W = kWidth<T>;
  using P = Packet<T>;

  /// Elements from one row of sums to the next: whole vectors of the widest set.
  static constexpr Index padded(Index columns) {
    constexpr Index kAligned = kVectorBytes / Index(sizeof(T));
    return (columns + kAligned - 1) / kAligned * kAligned;
  }

  static std::size_t scratch_elements(Index head_dim, Index value_dim) {
    return SoftmaxTile<T>::scratch_elements(head_dim) +
           std::size_t(W * (value_dim + 3 * kKeyBlock + 3) + (2 * W + kKeyBlock) * padded(head_dim) +
                       W * padded(value_dim));
  }

  AttentionGradientTile(const AttentionTile& tile, const GradientTile& gradients, T* scratch)
      : tile_(tile),
        g_(gradients),
        scores_(tile, take(scratch, Index(SoftmaxTile<T>::scratch_elements(tile.head_dim)))) {
    dout_transposed_ = take(scratch, W * tile.value_dim);
    score_gradients_ = take(scratch, W * kKeyBlock);
    cap_slopes_ = take(scratch, W * kKeyBlock);
    all_weights_ = take(scratch, W * kKeyBlock);
    delta_ = take(scratch, W);
    log2_sum_ = take(scratch, W);
    dslope_ = take(scratch, W);
    dquery_ = take(scratch, W * padded(tile.head_dim));
    T* const near_query = take(scratch, W * padded(tile.head_dim));
    near_key_ = take(scratch, kKeyBlock * padded(tile.head_dim));
    T* const near_dout = take(scratch, W * padded(tile.value_dim));
    pack_rows<T, NumberOperands<T>, T>(g_.dout, tile.rows, tile.value_dim, g_.dout_step, dout_transposed_);
    if (g_.dkey) query_ = as_features(tile.query, tile.query_step, tile.head_dim, near_query);
    if (g_.dvalue) dout_ = as_features(g_.dout, g_.dout_step, tile.value_dim, near_dout);
    read_rows();
  }

  void run() {
    bool starts = true;
    scores_.for_each_block([&](const KeyBlock& block) {
      const bool has_cap = scores_.modifications().has_cap && wants_score_gradients();
      if (has_cap) find_cap_slopes(block);
      const bool hides = scores_.score(block);
      scores_.exponentiate_by(block, log2_sum_, hides);
      if (tile_.has_dropout) drop(block);
      const bool guarded = hides && has_non_finite_rows(block);
      if (wants_weight_gradients()) {
        multiply_values(block);
        if (tile_.has_dropout) subtract_dropped(block);
        add_option_gradients(block);
        if (has_cap) apply_cap_slopes(block);
      }
      if (guarded) {
        add_guarded(block, starts);
      } else {
        add_keys(block);
        if (g_.dquery[0]) add_queries(block, starts);
      }
      starts = false;
    });
    store_rows(starts);
  }

 private:
  static T* take(T*& scratch, Index elements) {
    T* const part = scratch;
    scratch += elements;
    return part;
  }

  bool wants_score_gradients() const { return g_.dquery[0] || g_.dkey; }
  bool wants_weight_gradients() const {
    return wants_score_gradients() || g_.dattn_mask[0] || g_.dposition_bias[0] || g_.dalibi_slope[0];
  }

  /// Rows of the tile with features in the lanes: as they lie if they are evenly spaced and of whole vectors, else
  /// copied to `near`.
  Rows<T> as_features(const void* const* rows, Index step, Index columns, T* near) const {
    const auto row = [&](Index r) { return static_cast<const T*>(rows[r]); };
    const Index apart = tile_.rows > 1 ? row(1) - row(0) : 0;
    bool are_even = step == 1 && columns % L == 0;
    for (Index r = 2; r < tile_.rows && are_even; ++r) are_even = row(r) == row(0) + r * apart;
    if (are_even) return {row(0), apart, 1};
    for (Index r = 0; r < tile_.rows; ++r) copy_row(row(r), step, columns, near + r * padded(columns));
    return {near, padded(columns), 1};
  }

  /// A row with zeros up to the end of its last vector.
  static void copy_row(const T* from, Index step, Index columns, T* to) {
    convert_row<T>(from, step, columns, to);
    for (Index c = columns; c < padded(columns); ++c) to[c] = T(0);
  }

  /// Elements that lie `step` apart.
  static P load_strided(const T* from, Index step) {
    if (step == 1) return load_packet(from);
    alignas(kVectorBytes) T near[L];
    for (Index i = 0; i < L; ++i) near[i] = from[i * step];
    return pload<P>(near);
  }

  /// delta and lse of each row. In lanes without a row, and in rows that see no key, every weight becomes 0.
  void read_rows() {
    constexpr double kLog2OfE = 1.4426950408889634;
    for (Index r = 0; r < W; ++r) {
      delta_[r] = T(0);
      log2_sum_[r] = kInfinity<T>;
      dslope_[r] = T(0);
      if (r >= tile_.rows) continue;
      const T lse = *static_cast<const T*>(g_.lse[r]);
      const T* const out = static_cast<const T*>(g_.out[r]);
      const T* const dout = static_cast<const T*>(g_.dout[r]);
      T delta = g_.dlse[0] ? -*static_cast<const T*>(g_.dlse[r]) : T(0);
      P sums = pset1<P>(T(0));
      Index d = 0;
      // The same order for every step, so that bits do not depend on it.
      for (; d + L <= tile_.value_dim; d += L)
        sums = pmadd(load_strided(out + d * g_.out_step, g_.out_step),
                     load_strided(dout + d * g_.dout_step, g_.dout_step), sums);
      for (; d < tile_.value_dim; ++d) delta += out[d * g_.out_step] * dout[d * g_.dout_step];
      delta_[r] = delta + predux(sums);
      if (lse != -kInfinity<T>) log2_sum_[r] = T(double(lse) * kLog2OfE);
      if (g_.dsink[0] && lse != -kInfinity<T>) *g_.dsink[r] -= ::exp(tile_.sink[r] - double(lse)) * double(delta_[r]);
    }
  }

  /// 1 - tanh^2 of the capped scores: the products once more, since the cap has replaced them when biases are added.
  void find_cap_slopes(const KeyBlock& block) {
    scores_.multiply(block, cap_slopes_);
    const ModifyScores<T>& modify = scores_.modifications();
    for_each_vector(block, [&](Index at) MHA_INLINE_LAMBDA {
      const P t = tanh_of(pmul(pmul(pload<P>(cap_slopes_ + at), modify.scale), modify.inverse_cap));
      pstore(cap_slopes_ + at, psub(pset1<P>(T(1)), pmul(t, t)));
    });
  }
  void apply_cap_slopes(const KeyBlock& block) {
    for_each_vector(block, [&](Index at) MHA_INLINE_LAMBDA {
      const P gradient = pload<P>(score_gradients_ + at);
      // Selected, since the slope of a masked NaN is NaN.
      const P product = pmul(gradient, pload<P>(cap_slopes_ + at));
      pstore(score_gradients_ + at, pandnot(product, pcmp_eq(gradient, pset1<P>(T(0)))));
    });
  }

  template <class Visitor>
  MHA_INLINE void for_each_vector(const KeyBlock& block, Visitor visit) const {
    for (int j = 0; j < scores_.vectors(); ++j)
      for (Index i = first_in(block, j); i < last_in(block, j); ++i) visit(i * W + j * L);
  }
  /// Keys that vector j has scores for, from the begin of the block.
  Index first_in(const KeyBlock& block, int j) const { return scores_.first_in(block, j) - block.begin; }
  Index last_in(const KeyBlock& block, int j) const { return scores_.last_in(block, j) - block.begin; }

  bool has_non_finite_rows(const KeyBlock& block) const {
    const Index first = block.segments[0].begin;
    if (has_non_finite(scores_.source().keys(first), block.end - first, tile_.head_dim)) return true;
    for (int r = 0; r < tile_.rows; ++r)
      if (has_non_finite(Rows<T>{static_cast<const T*>(tile_.query[r]), 0, tile_.query_step}, 1, tile_.head_dim) ||
          has_non_finite(Rows<T>{static_cast<const T*>(g_.dout[r]), 0, g_.dout_step}, 1, tile_.value_dim))
        return true;
    return false;
  }

  /// Weights become the weights after dropout; the weights before it are kept.
  void drop(const KeyBlock& block) {
    for_each_vector(block,
                    [&](Index at) MHA_INLINE_LAMBDA { pstore(all_weights_ + at, pload<P>(scores_.scores() + at)); });
    scores_.drop(block, scores_.scores());
    const P factor = pset1<P>(T(tile_.dropout_factor));
    for_each_vector(block, [&](Index at) MHA_INLINE_LAMBDA {
      pstore(scores_.scores() + at, pmul(pload<P>(scores_.scores() + at), factor));
    });
  }
  /// dS^T with dropout: multiply_values() has used the weights after it for delta, too.
  void subtract_dropped(const KeyBlock& block) {
    for_each_vector(block, [&](Index at) MHA_INLINE_LAMBDA {
      const P weight = pload<P>(all_weights_ + at), change = psub(pload<P>(scores_.scores() + at), weight);
      const P added = pmadd(pload<P>(delta_ + at % W), change, pload<P>(score_gradients_ + at));
      pstore(score_gradients_ + at, pandnot(added, pcmp_eq(weight, pset1<P>(T(0)))));
    });
  }
  /// The weights that say which pairs take part.
  const T* all_weights() const { return tile_.has_dropout ? all_weights_ : scores_.scores(); }

  /// dS^T
  void multiply_values(const KeyBlock& block) {
    static constexpr StripTable<WeightGradients, PacketProducts<T>, WeightGradientArguments<PacketProducts<T>>> table;
    for (int i = 0; i < block.segment_count; ++i) {
      const Segment& segment = block.segments[i];
      const Index lane = segment.first_vector * L, at = (segment.begin - block.begin) * W + lane;
      const Rows<T> values = scores_.source().values(segment.begin);
      table(segment.vectors, segment.end - segment.begin,
            {tile_.value_dim, values.data, values.row, values.step, dout_transposed_ + lane, scores_.scores() + at,
             delta_ + lane, score_gradients_ + at},
            scores_.next_values(segment));
    }
  }

  Index key_in_span(const KeyBlock& block) const { return block.begin % kSpanKeys; }
  T* dkey(Index key) const { return static_cast<T*>(g_.dkey) + key * g_.dkey_row; }
  T* dvalue(Index key) const { return static_cast<T*>(g_.dvalue) + key * g_.dvalue_row; }

  /// dV and dK, segment by segment: only the queries that see some key of it.
  void add_keys(const KeyBlock& block) {
    for (int i = 0; i < block.segment_count; ++i) {
      const Segment& segment = block.segments[i];
      const Index lane = segment.first_vector * L, rows = segment.end - segment.begin;
      const Index last = lane + segment.vectors * L, depth = (last < tile_.rows ? last : tile_.rows) - lane;
      const Index key = segment.begin - block.begin, in_span = key_in_span(block) + key;
      if (g_.dvalue)
        add_products<T>(rows, tile_.value_dim,
                        {depth, scores_.scores() + key * W + lane, W, 1, dout_.data + lane * dout_.row, dout_.row,
                         dvalue(in_span), g_.dvalue_row, false});
      if (g_.dkey)
        add_products<T>(rows, tile_.head_dim,
                        {depth, score_gradients_ + key * W + lane, W, 1, query_.data + lane * query_.row, query_.row,
                         dkey(in_span), g_.dkey_row, false});
    }
  }

  /// dQ of the span, for neighbouring vectors of queries that see the same keys.
  void add_queries(const KeyBlock& block, bool starts) {
    const Index begin = block.segments[0].begin, row = padded(tile_.head_dim);
    Rows<T> keys = scores_.source().keys(begin);
    if (keys.step != 1 || tile_.head_dim % L != 0) {
      for (Index i = 0; i < block.end - begin; ++i)
        copy_row(keys.data + i * keys.row, keys.step, tile_.head_dim, near_key_ + i * row);
      keys = {near_key_, row, 1};
    }
    for (int j = 0, next; j < scores_.vectors(); j = next) {
      const Index first = first_in(block, j), last = last_in(block, j);
      for (next = j + 1; next < scores_.vectors(); ++next)
        if (first_in(block, next) != first || last_in(block, next) != last) break;
      const Index lane = j * L, end = next * L < tile_.rows ? next * L : tile_.rows;
      const Index depth = first < last ? last - first : 0;  // both may lie far outside of the block
      const Index from = depth > 0 ? first : 0;
      if (depth == 0 && !starts) continue;
      add_products<T>(
          end - lane, tile_.head_dim,
          {depth, score_gradients_ + from * W + lane, 1, W, keys.data + (block.begin + from - begin) * keys.row,
           keys.row, dquery_ + lane * row, row, starts},
          lane == 0 ? scores_.next_keys(block) : Upcoming{});
    }
  }

  /// The same three sums without pairs whose weight is 0, for rows that are not finite.
  __attribute__((noinline, cold)) void add_guarded(const KeyBlock& block, bool starts) {
    const Index row = padded(tile_.head_dim);
    if (starts)
      for (Index i = 0; i < tile_.rows * row; ++i) dquery_[i] = T(0);
    const Rows<T> keys = scores_.source().keys(block.begin);
    for (int j = 0; j < scores_.vectors(); ++j)
      for (Index i = first_in(block, j); i < last_in(block, j); ++i)
        for (Index r = j * L; r < (j + 1) * L && r < tile_.rows; ++r) {
          const T weight = scores_.scores()[i * W + r], gradient = score_gradients_[i * W + r];
          if (all_weights()[i * W + r] == T(0)) continue;
          const T* const query = static_cast<const T*>(tile_.query[r]);
          const T* const dout = static_cast<const T*>(g_.dout[r]);
          const Index in_span = key_in_span(block) + i;
          for (Index d = 0; g_.dvalue && d < tile_.value_dim; ++d)
            dvalue(in_span)[d] += weight * dout[d * g_.dout_step];
          for (Index d = 0; g_.dkey && d < tile_.head_dim; ++d)
            dkey(in_span)[d] += gradient * query[d * tile_.query_step];
          for (Index d = 0; g_.dquery[0] && d < tile_.head_dim; ++d)
            dquery_[r * row + d] += gradient * keys.data[i * keys.row + d * keys.step];
        }
  }

  /// Gradients of the options that are added to scores.
  void add_option_gradients(const KeyBlock& block) {
    if (g_.dalibi_slope[0]) add_slope_gradients(block);
    if (g_.dattn_mask[0])
      for_each_row(block, [&](Index r, Index key, const T* gradients, Index count) {
        const Index step = g_.dattn_mask_step;
        T* const to = static_cast<T*>(g_.dattn_mask[r]) + key * step;
        if (step == 1)
          for (Index i = 0; i < count; ++i) to[i] += gradients[i];
        else
          for (Index i = 0; i < count; ++i) to[i * step] += gradients[i];
      });
    if (g_.dposition_bias[0])
      for_each_row(block, [&](Index r, Index key, const T* gradients, Index count) {
        const Index farthest = tile_.farthest_distance, distance = key - tile_.position[r];
        T* const to = static_cast<T*>(g_.dposition_bias[r]) + farthest;
        if (distance >= -farthest && distance + count - 1 <= farthest)
          for (Index i = 0; i < count; ++i) to[distance + i] += gradients[i];
        else
          for (Index i = 0; i < count; ++i) {
            const Index at = distance + i;
            to[at < -farthest ? -farthest : at > farthest ? farthest : at] += gradients[i];
          }
      });
  }

  /// Calls visit(row, key, gradients, count) with the gradients of the scores of a row for `count` neighbouring keys.
  template <class Visitor>
  void for_each_row(const KeyBlock& block, Visitor visit) const {
    alignas(kVectorBytes) T lines[L][kKeyBlock];
    T* rows[L];
    for (Index r = 0; r < L; ++r) rows[r] = lines[r];
    for (int j = 0; j < scores_.vectors(); ++j) {
      const Index first = first_in(block, j), keys = last_in(block, j) - first;
      if (keys <= 0) continue;
      const Index count = tile_.rows - j * L < L ? tile_.rows - j * L : L;
      store_transposed<T>(score_gradients_ + first * W + j * L, W, pset1<P>(T(1)), rows, count, 0, keys, 1);
      for (Index r = 0; r < count; ++r) visit(j * L + r, block.begin + first, lines[r], keys);
    }
  }

  void add_slope_gradients(const KeyBlock& block) {
    alignas(kVectorBytes) T positions[W] = {};
    for (int r = 0; r < tile_.rows; ++r) positions[r] = T(tile_.position[r] - block.begin);
    for (int j = 0; j < scores_.vectors(); ++j) {
      P sum = pset1<P>(T(0));
      for (Index i = first_in(block, j); i < last_in(block, j); ++i) {
        const P distance = pabs(psub(pload<P>(positions + j * L), pset1<P>(T(i))));
        sum = pmadd(distance, pload<P>(score_gradients_ + i * W + j * L), sum);
      }
      pstore(dslope_ + j * L, psub(pload<P>(dslope_ + j * L), sum));
    }
  }

  void store_rows(bool is_empty) {
    const Index row = padded(tile_.head_dim);
    for (Index r = 0; r < tile_.rows; ++r) {
      if (g_.dalibi_slope[0]) *g_.dalibi_slope[r] += double(dslope_[r]);
      if (!g_.dquery[0] || is_empty) continue;
      T* const to = static_cast<T*>(g_.dquery[r]);
      for (Index d = 0; d < row; d += L) pstore(to + d, padd(pload<P>(to + d), pload<P>(dquery_ + r * row + d)));
    }
  }

  const AttentionTile& tile_;
  const GradientTile& g_;
  SoftmaxTile<T> scores_;
  Rows<T> query_{}, dout_{};  // with features in the lanes
  T *dout_transposed_, *score_gradients_, *cap_slopes_, *all_weights_, *delta_, *log2_sum_, *dslope_, *dquery_,
      *near_key_;
};

template <class T>
void gradient_tile(const AttentionTile& tile, const GradientTile& gradients, void* scratch) {
  AttentionGradientTile<T>(tile, gradients, static_cast<T*>(scratch)).run();
}
template <class T>
std::size_t gradient_scratch(Index head_dim, Index value_dim) {
  return sizeof(T) * AttentionGradientTile<T>::scratch_elements(head_dim, value_dim);
}

}  // namespace
}  // namespace mha::MHA_ISA

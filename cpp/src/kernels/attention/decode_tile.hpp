// Decode: O = softmax(S) V for up to kMaxDecodeRows query rows, of one group of heads at one or a few positions.
//
// Every element of K and V is used once for each row, so reading them takes the time: Tk * (D + Dv) elements, once for
// all rows. attend_tile.hpp would spend a multiply-add of whole vectors on each element, with most lanes idle. Here
// keys lie in the lanes of the scores, and columns of values in the lanes of the result (decode_strips.hpp).
//
// Order of work: the scores of a whole span of 512 keys, then its weights, then its values, so that memory is read in
// runs of 128 KB (f32, D = 64). Alternating between K and V every 64 keys, in runs of 16 KB, gives a quarter less
// bandwidth.
//
// Numerics: blocks, spans and the order of every sum are the same as in softmax_tile.hpp and attend_tile.hpp, and the
// result of a multiply-add does not depend on which factor is broadcast. So both kernels give a row the same bits.
// Different threads may compute the spans, since they are merged in order anyway.
//
// Source: Dao et al., "Flash-Decoding", 2023, for the split along the keys. Measurements: docs/decisions/0007.
#pragma once

#include "kernels/attention/decode_strips.hpp"
#include "kernels/attention/guard_values.hpp"
#include "kernels/attention/softmax_tile.hpp"

namespace mha::MHA_ISA {
namespace {

template <class S>
class DecodeTile {
 public:
  using T = Compute<S>;
  using Operands = OperandsOf<S>;
  using Products = typename Operands::Products;
  using Operand = typename Operands::Operand;
  static constexpr Index L = kLanes<T>;
  /// head_dim and value_dim must be multiples of this.
  static constexpr int kColumns =
      int(L * Operands::kElements > Operands::kGroup ? L * Operands::kElements : Operands::kGroup);
  using P = Packet<T>;
  static_assert(kMaxDecodeRows <= kRowFactors<T>);

  static std::size_t scratch_bytes(Index head_dim, Index value_dim) {
    return 2 * SpanSums<T>::bytes(value_dim) +
           sizeof(T) * std::size_t(kMaxDecodeRows * (head_dim + kInt8Chunk) + kPartialSums * head_dim +
                                   (Operands::kJoins ? 3 : 2) * kSpanKeys * kMaxDecodeRows +
                                   (KeyValueRows<S>::kMayBeInt8 ? KeyValueRows<S>::near_values(value_dim) : 0));
  }

  static std::size_t span_bytes(Index value_dim) { return SpanSums<T>::bytes(value_dim); }
  static void copy_span_rows(const void* from, Index first, Index rows, void* to, Index value_dim) {
    const SpanSums<T> source(const_cast<void*>(from)), target(to);
    target.copy_totals(source.maximum + first, source.sum + first, rows);
    __builtin_memcpy(target.out, source.out + first * value_dim, std::size_t(rows * value_dim) * sizeof(T));
  }

  DecodeTile(const AttentionTile& tile, void* scratch, const RowStart<T>& start = kFirstTime<T>)
      : tile_(tile),
        start_(start),
        source_(tile),
        scale_(tile),
        modify_(tile, scale_),
        total_(scratch),
        span_(static_cast<char*>(scratch) + SpanSums<T>::bytes(tile.value_dim)),
        scores_(span_.out + kMaxDecodeRows * tile.value_dim),
        bias_(scores_ + kMaxDecodeRows * kSpanKeys),
        weights_(operands_of(Operands::kJoins ? bias_ + kMaxDecodeRows * kSpanKeys : scores_)),
        queries_(operands_of(bias_ + (Operands::kJoins ? 2 : 1) * Index{kMaxDecodeRows} * kSpanKeys)),
        depth_(source_.are_int8() ? (tile.head_dim + kInt8Chunk - 1) / kInt8Chunk * kInt8Chunk
                                  : Operands::count(tile.head_dim)),
        last_keys_(reinterpret_cast<S*>(queries_ + kMaxDecodeRows * depth_)),
        near_values_(operands_of(reinterpret_cast<T*>(last_keys_ + kPartialSums * tile.head_dim))) {}

  void run() {
    pack_queries();
    find_bounds();
    if (tile_.span) {
      sum_span(SpanSums<T>(tile_.span), first_key_, last_key_);
      return;
    }
    Index begin = first_key_;
    for (bool starts = true; starts || begin < last_key_; starts = false) {
      const Index edge = (begin / kSpanKeys + 1) * kSpanKeys, end = edge < last_key_ ? edge : last_key_;
      sum_span(starts ? total_ : span_, begin, end);
      if (!starts) merge(span_);
      begin = end;
    }
    store();
  }

  /// Merges the spans in order.
  void merge_spans(void* spans, Index count) {
    const std::size_t bytes = SpanSums<T>::bytes(tile_.value_dim);
    total_ = SpanSums<T>(spans);
    for (Index i = 1; i < count; ++i) merge(SpanSums<T>(static_cast<char*>(spans) + std::size_t(i) * bytes));
    store();
  }

  /// Like the functions of AttendTile.
  bool has_overflowed() const { return !are_finite(total_.out, tile_.rows * tile_.value_dim / L, L); }
  RowStart<T> second_start() const { return {total_.maximum, total_.sum, tile_.rows}; }

 private:
  static constexpr Index kSpanOperands = kSpanKeys / Operands::kElements;
  /// Blocks begin at multiples of this number of keys.
  static constexpr Index kFirstKeys = kPartialSums > Operands::kGroup ? kPartialSums : Operands::kGroup;
  static Operand* operands_of(T* scratch) { return reinterpret_cast<Operand*>(scratch); }

  /// Keys [begin, end) of a block. `begin` is a multiple of kFirstKeys, and there are scores for whole groups of so
  /// many keys: those from `end` on are masked. The scores and biases of row r are at `scores` and `bias` + r *
  /// kSpanKeys.
  struct Block {
    Index begin, end;
    T *scores, *bias;
    Operand* weights;  // row r begins at `weights` + r * kSpanOperands
    Index row;         // of the streams, at which the block begins
    bool is_masked;    // some row does not see some key, or there are scores after the last key
    alignas(kVectorBytes) T correction[kRowFactors<T>];

    Index keys() const { return end - begin; }
    Index scored_keys() const { return (keys() + kPartialSums - 1) / kPartialSums * kPartialSums; }
    Index origin() const { return begin - begin % kKeyBlock; }
  };

  void pack_queries() {
    if (tile_.is_wide)
      pack_queries<OperandsOfNumbers<S>, T>();
    else
      pack_queries<Operands, S>();
  }
  template <class Load, class Element>
  void pack_queries() {
    if (source_.are_int8()) __builtin_memset(queries_, 0, sizeof(Operand) * std::size_t(kMaxDecodeRows * depth_));
    for (int r = 0; r < tile_.rows; ++r) {
      const Element* query = static_cast<const Element*>(tile_.query[r]);
      const Index step = tile_.query_step;
      for (Index u = 0, d = 0; d < tile_.head_dim; ++u, d += Operands::kElements)
        queries_[r * depth_ + u] = Load::load_one(query + d * step, step, tile_.head_dim - d);
    }
  }

  void find_bounds() {
    first_key_ = PTRDIFF_MAX;
    for (int r = 0; r < tile_.rows; ++r) {
      if (tile_.first_key[r] >= tile_.last_key[r]) continue;
      first_key_ = tile_.first_key[r] < first_key_ ? tile_.first_key[r] : first_key_;
      last_key_ = tile_.last_key[r] > last_key_ ? tile_.last_key[r] : last_key_;
    }
    first_key_ = last_key_ == 0 ? 0 : first_key_ / kFirstKeys * kFirstKeys;
  }

  /// Sums the keys [begin, end) of one span: all scores, then all weights, then all values.
  void sum_span(const SpanSums<T>& sums, Index begin, Index end) {
    for (Index r = 0; r < kRowFactors<T>; ++r) {
      sums.maximum[r] = r < tile_.rows ? start_.maximum[r] : kLowest<T>;
      sums.sum[r] = T(0);
    }
    if (begin == end) return clear(sums);
    RowStream keys(tile_.head_dim * source_.element_size()), values(tile_.value_dim * source_.element_size());
    Block blocks[kSpanKeys / kKeyBlock];
    int seen = 0;
    Index rows = 0;
    for (Index at = begin; at < end;) {
      const Index edge = (at / kKeyBlock + 1) * kKeyBlock, in_span = (edge - kKeyBlock) % kSpanKeys;
      Block& block = blocks[seen];
      block.begin = at;
      block.end = at = edge < end ? edge : end;
      if (!source_.is_seen(block.origin())) continue;
      block.scores = scores_ + in_span;
      block.bias = bias_ + in_span;
      block.weights = weights_ + in_span / Operands::kElements;
      block.is_masked = is_masked(block);
      block.row = rows;
      keys.append(source_.stored_keys(block.begin), block.keys());
      values.append(source_.stored_values(block.begin), block.keys());
      rows += block.keys();
      ++seen;
    }
    if (seen == 0) return clear(sums);
    keys.close(values.runs[0].data, values.runs[0].row);
    if (end < last_key_)
      values.close(source_.stored_keys(end).data, source_.stored_keys(end).row);
    else
      values.close(values.runs[0].data, 0);

    int count = 0;  // of those in which some key is not masked
    for (int i = 0; i < seen; ++i) {
      Block& block = blocks[i];
      if (has_bias() && !fill_bias_rows<S>(tile_, block.begin, block.end, block.bias, kSpanKeys)) continue;
      score(block, keys);
      if (count < i) blocks[count] = block;
      ++count;
    }
    for (int i = 0; i < count; ++i) {
      raise_maximum(blocks[i], sums);
      exponentiate(blocks[i], sums);
    }
    for (int i = 0; i < count; ++i) {
      const Block& block = blocks[i];
      if (block.is_masked && has_non_finite_value<S>(source_, tile_.value_dim, block.begin, block.end))
        add_guarded(block, sums, i == 0);
      else
        add_values(block, sums, i == 0, values);
    }
    if (count == 0) clear(sums);
  }

  /// The sums of values of no key.
  void clear(const SpanSums<T>& sums) const {
    for (Index i = 0; i < tile_.rows * tile_.value_dim; ++i) sums.out[i] = T(0);
  }

  bool has_bias() const { return has_mask_arrays(tile_); }

  bool is_masked(const Block& block) const {
    if (has_bias() || block.keys() % kPartialSums != 0) return true;
    for (int r = 0; r < tile_.rows; ++r)
      if (tile_.first_key[r] > block.begin || tile_.last_key[r] < block.end) return true;
    return false;
  }

  void score(const Block& block, const RowStream& stream) {
    const StoredRows rows = source_.stored_keys(block.begin);
    const Index whole = block.keys() / kPartialSums * kPartialSums, rest = block.keys() - whole;
    if (whole > 0) multiply(whole, rows, block.scores, stream, block.row);
    if (rest > 0) {  // the last few keys, copied and filled up to kPartialSums of them; the others are masked
      const StoredRows last{last_keys_, stream.bytes, rows.scale ? last_scales_ : nullptr};
      for (Index i = 0; i < kPartialSums; ++i) {
        const Index key = whole + (i < rest ? i : 0);
        __builtin_memcpy(reinterpret_cast<char*>(last_keys_) + i * last.row,
                         static_cast<const char*>(rows.data) + key * rows.row, std::size_t(last.row));
        if (rows.scale) last_scales_[i] = rows.scale[key];
      }
      multiply(kPartialSums, last, block.scores + whole, stream, block.row + whole);
    }
    if (block.is_masked || scale_.comes_first) modify(block);
  }

  /// Products of `keys` keys with all rows; `first` is the row of the stream that the first key is.
  void multiply(Index keys, const StoredRows& rows, T* scores, const RowStream& stream, Index first) const {
    if constexpr (KeyValueRows<S>::kMayBeInt8)
      if (rows.scale) return multiply_stored<std::int8_t>(keys, rows, scores, stream, first);
    multiply_stored<S>(keys, rows, scores, stream, first);
  }
  template <class Stored>
  void multiply_stored(Index keys, const StoredRows& rows, T* scores, const RowStream& stream, Index first) const {
    for (int r = 0, height; r < tile_.rows; r += height) {
      height = kStrips<Stored>.height(tile_.rows - r);
      kStrips<Stored>.score[height - 1](
          {keys, depth_, rows, queries_ + r * depth_, scores + r * kSpanKeys, stream, first, tile_.head_dim});
    }
  }

  /// Scores of products. In a masked block, 1 takes the place of the bias where a key is masked, else 0: the score does
  /// not tell, since a visible key may have minus infinity, too.
  void modify(const Block& block) {
    const Index origin = block.origin();  // keys are counted from there, as in SoftmaxTile: ALiBi rounds the same
    const auto inside = [&](Index key) {
      return pset1<P>(T((key < block.begin ? block.begin : key > block.end ? block.end : key) - origin));
    };
    for (int r = 0; r < tile_.rows; ++r) {
      const P first = inside(tile_.first_key[r]), last = inside(tile_.last_key[r]);
      const P slope = pset1<P>(tile_.has_alibi ? T(tile_.alibi_slope[r]) : T(0));
      const P position = pset1<P>(tile_.has_alibi ? T(tile_.position[r] - origin) : T(0));
      for (Index i = 0; i < block.scored_keys(); i += L) {
        T *const s = block.scores + r * kSpanKeys + i, *const bias = block.bias + r * kSpanKeys + i;
        const T* const given = has_bias() ? bias : nullptr;
        const P key = plset<P>(T(block.begin - origin + i)), visible = modify_.visible(key, first, last, given);
        const Index distance = block.begin + i - tile_.position[r];
        const P position_bias =
            modify_.has_position_bias ? position_biases_of_keys<T>(tile_, r, distance) : pset1<P>(T(0));
        pstore(s, modify_(pload<P>(s), key, visible, slope, position, position_bias, given));
        if (block.is_masked) pstore(bias, pselect(visible, pset1<P>(T(0)), pset1<P>(T(1))));
      }
    }
  }

  void raise_maximum(Block& block, const SpanSums<T>& sums) {
    alignas(kVectorBytes) T change[kRowFactors<T>] = {};
    for (int r = 0; r < tile_.rows; ++r) {
      const T* const scores = block.scores + r * kSpanKeys;
      P highest = pset1<P>(kLowest<T>);
      for (Index i = 0; i < block.scored_keys(); i += L) highest = pmax(highest, pload<P>(scores + i));
      const T before = sums.maximum[r], of_block = predux_max(highest);
      sums.maximum[r] = before < of_block ? of_block : before;
      change[r] = before - sums.maximum[r];
    }
    for (Index r = 0; r < kRowFactors<T>; r += L)
      pstore(block.correction + r, exp2_of_nonpositive(pmul(pload<P>(change + r), pset1<P>(scale_.exponent_scale))));
  }

  void exponentiate(const Block& block, const SpanSums<T>& sums) {
    alignas(kVectorBytes) T of_block[kRowFactors<T>] = {};
    for (int r = 0; r < tile_.rows; ++r) {
      T* const scores = block.scores + r * kSpanKeys;
      P highest = pset1<P>(sums.maximum[r]), scale = pset1<P>(scale_.exponent_scale);
      if (start_.halves)
        halve_weights(scores, block.scored_keys() / L, L, pset1<P>(start_.halvings[r]), highest, scale);
      P weights[kPartialSums / L];
      MHA_UNROLL
      for (P& part : weights) part = pset1<P>(T(0));
      for (Index i = 0; i < block.scored_keys(); i += kPartialSums) {
        MHA_UNROLL
        for (Index c = 0; c < kPartialSums; c += L) {
          const P weight = weight_of<S>(pmul(psub(pload<P>(scores + i + c), highest), scale));
          if constexpr (Operands::kJoins)
            store_pairs(block.weights + r * kSpanOperands + (i + c) / Operands::kElements, weight);
          else
            pstore(scores + i + c, weight);
          weights[c / L] = padd(weights[c / L], weight);
        }
      }
      alignas(kVectorBytes) T parts[kPartialSums];
      MHA_UNROLL
      for (Index c = 0; c < kPartialSums; c += L) pstore(parts + c, weights[c / L]);
      of_block[r] = add_partial_sums<0, 1>([&](Index c) MHA_INLINE_LAMBDA { return parts[c]; });
    }
    for (Index r = 0; r < kRowFactors<T>; r += L)
      pstore(sums.sum + r, pmadd(pload<P>(sums.sum + r), pload<P>(block.correction + r), pload<P>(of_block + r)));
  }

  void add_values(const Block& block, const SpanSums<T>& sums, bool starts, const RowStream& stream) {
    const StoredRows rows = source_.stored_values(block.begin);
    if constexpr (KeyValueRows<S>::kMayBeInt8)
      if (rows.scale) return add_stored<std::int8_t>(rows, block, sums, starts, stream);
    add_stored<S>(rows, block, sums, starts, stream);
  }
  template <class Stored>
  void add_stored(const StoredRows& rows, const Block& block, const SpanSums<T>& sums, bool starts,
                  const RowStream& stream) const {
    for (int r = 0, height; r < tile_.rows; r += height) {
      height = kStrips<Stored>.height(tile_.rows - r);
      Index d = 0;
      for (int i = 0; i < 4; ++i) {
        const auto strip = kStrips<Stored>.values[height - 1][i];
        for (const Index columns = (8 >> i) * L; strip && d + columns <= tile_.value_dim; d += columns)
          strip({block.keys(),
                 {static_cast<const Stored*>(rows.data) + d, rows.row, rows.scale},
                 block.weights + r * kSpanOperands,
                 block.correction + r,
                 sums.out + r * tile_.value_dim + d,
                 tile_.value_dim,
                 starts,
                 stream,
                 block.row,
                 d});
      }
    }
  }

  /// add_values() where values of masked keys may be NaN or infinite: zeros take their place.
  void add_guarded(const Block& block, const SpanSums<T>& sums, bool starts) {
    constexpr int N = int(Operands::kElements);
    Rows<S> rows = source_.values(block.begin);
    if constexpr (KeyValueRows<S>::kMayBeInt8) rows = source_.value_operands(block.begin, block.end, near_values_);
    for (int r = 0; r < tile_.rows; ++r)
      for (Index d = 0; d < tile_.value_dim; d += N * L) {
        const auto values_of = [&](Index i) {
          const bool is_visible = i < block.keys() && block.bias[r * kSpanKeys + i] == T(0);
          return is_visible ? rows.data + i * rows.row + d : kZeros<S, N * L>;
        };
        LongSum<Products> sum[N];
        const Operand* weight = block.weights + r * kSpanOperands;
        for (Index i = 0; i < block.keys(); i += N, ++weight) {
          P value[N];
          load_values<S, N>(values_of(i), values_of(i + N - 1), value);
          for (int n = 0; n < N; ++n) sum[n].add(value[n], Products::broadcast(weight));
        }
        T* const out = sums.out + r * tile_.value_dim + d;
        for (int n = 0; n < N; ++n) {
          const P before = pload<P>(out + n * L), total = sum[n].total();
          pstore(out + n * L, starts ? total : pmadd(before, pset1<P>(block.correction[r]), total));
        }
      }
  }

  /// Adds the sums of a span to the totals of the spans before.
  void merge(const SpanSums<T>& span) {
    alignas(kVectorBytes) T older[kRowFactors<T>], recent[kRowFactors<T>];
    for (Index r = 0; r < kRowFactors<T>; r += L) {
      const P total_max = pload<P>(total_.maximum + r), span_max = pload<P>(span.maximum + r);
      const P maximum = pmax(total_max, span_max);
      const MergeSums<T> merge(total_max, span_max, maximum, pset1<P>(scale_.exponent_scale));
      pstore(total_.maximum + r, maximum);
      pstore(total_.sum + r, merge(pload<P>(total_.sum + r), pload<P>(span.sum + r)));
      pstore(older + r, merge.older);
      pstore(recent + r, merge.recent);
    }
    for (int r = 0; r < tile_.rows; ++r) {
      const MergeSums<T> merge(pset1<P>(older[r]), pset1<P>(recent[r]));
      T* const total = total_.out + r * tile_.value_dim;
      for (Index d = 0; d < tile_.value_dim; d += L)
        pstore(total + d, merge(pload<P>(total + d), pload<P>(span.out + r * tile_.value_dim + d)));
    }
  }

  __attribute__((noinline)) void store() const {  // for run() and merge_spans()
    for (int r = 0; r < tile_.rows; ++r) {
      const Total total(tile_, scale_, r, total_.maximum[r], total_.sum[r], start_.halvings[r]);
      if (tile_.is_wide)
        store_row(r, T(total.normalizer()), static_cast<T*>(tile_.out[r]));
      else
        store_row(r, T(total.normalizer()), static_cast<S*>(tile_.out[r]));
      if (tile_.lse[r]) *static_cast<T*>(tile_.lse[r]) = T(total.log_sum_exp());
    }
  }

  template <class Element>
  void store_row(int r, T normalizer, Element* out) const {
    const P factor = pset1<P>(normalizer), zero = pset1<P>(T(0));
    for (Index d = 0; d < tile_.value_dim; d += L) {
      const P result = pmadd(pload<P>(total_.out + r * tile_.value_dim + d), factor, zero);
      if (tile_.out_step == 1) {
        store_packet(out + d, result);
      } else {
        alignas(kVectorBytes) Element lanes[L];
        store_packet(lanes, result);
        for (Index i = 0; i < L; ++i) out[(d + i) * tile_.out_step] = lanes[i];
      }
    }
  }

  template <class Stored>
  static constexpr DecodeTable<Stored> kStrips{};

  const AttentionTile& tile_;
  const RowStart<T>& start_;
  KeyValueRows<S> source_;
  ScoreScale<T> scale_;
  ModifyScores<T> modify_;
  SpanSums<T> total_, span_;
  T *scores_, *bias_;     // [rows][kSpanKeys]
  Operand* weights_;      // [rows][kSpanOperands]; where operands are numbers, they replace the scores
  Operand* queries_;      // [rows][depth_]
  Index depth_;           // operands along the head dimension
  S* last_keys_;          // [kPartialSums][D], see score()
  Operand* near_values_;  // of a block, if they are stored as int8
  float last_scales_[kPartialSums];
  Index first_key_ = 0, last_key_ = 0;
};

}  // namespace
}  // namespace mha::MHA_ISA

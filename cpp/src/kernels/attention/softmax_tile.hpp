// Scores and weights of one tile, block of keys by block of keys. For each block of 64 keys:
//
//   S^T = K Q^T                        products, then scale, softcap, biases and masks (modify_scores.hpp)
//   m'  = max(m, max of the block)     running maximum of each query
//   P^T = 2^((S^T - m') log2 e)        weights; sums so far are multiplied by 2^((m - m') log2 e)
//
// The kernels on top use the weights: attend_tile.hpp, write_weights.hpp, statistics_tile.hpp.
//
// Layout: queries lie in the lanes, so a row of S^T holds the scores of one key with every query of the tile. Keys are
// read by broadcast from where they lie. Only Q^T is packed, once for each tile. Maximum, sum and rescaling are plain
// vector operations without a step across lanes. This is the transposed form of Dao et al., "FlashAttention", 2022,
// algorithm 1, with the online softmax of Milakov and Gimelshein, 2018, algorithm 3.
//
// Memory traffic of a block at D = 64 in f32 with 64 queries: 16 KB of K in, 16 KB of Q^T in, 16 KB of S^T written and
// read, all in level 1 but K, for 262,144 multiply-adds. Why blocks have 64 keys: kKeyBlock in kernel_table.hpp.
//
// Numerics: the bits of a row depend neither on the rows that share its tile nor on the kernel that computes it. A lane
// never meets another lane. Blocks and spans end at multiples of their sizes, counted from key 0. The sums of a block
// are added in an order that the index of the key fixes, blocks in order within a span, spans in order within a row. A
// masked key adds exactly 0.
#pragma once

#include "kernels/attention/dropout.hpp"
#include "kernels/attention/exponentiate.hpp"
#include "kernels/attention/key_blocks.hpp"
#include "kernels/attention/mask_bias.hpp"
#include "kernels/attention/modify_scores.hpp"
#include "kernels/attention/overflow.hpp"
#include "kernels/attention/pack_queries.hpp"
#include "kernels/attention/position_bias.hpp"
#include "kernels/attention/score_strips.hpp"

namespace mha::MHA_ISA {
namespace {

/// The state of one tile. All arrays are [...][kWidth]: a column for each query.
template <class S>
class SoftmaxTile {
 public:
  using T = Compute<S>;
  using Operands = OperandsOf<S>;
  using Products = typename Operands::Products;
  using Operand = typename Operands::Operand;
  static constexpr Index L = kLanes<T>, W = kWidth<T>;
  using P = Packet<T>;

  static std::size_t scratch_elements(Index head_dim) {
    // Weights that are pairs lie in a place of their own, others replace the scores.
    const Index operands = Operands::kJoins ? kKeyBlock / Operands::kElements : 0;
    return std::size_t(W * (Operands::count(head_dim) + 3 * kKeyBlock + operands + 12) +
                       KeyValueRows<S>::near_keys(head_dim));
  }

  SoftmaxTile(const AttentionTile& tile, T* scratch, const RowStart<T>& start = kFirstTime<T>)
      : tile_(tile),
        start_(start),
        scale_(tile),
        modify_(tile, scale_),
        vectors_(int((tile.rows + L - 1) / L)),
        source_(tile),
        blocks_(tile, vectors_) {
    auto take = [&](Index rows) {
      T* part = scratch;
      scratch += rows * W;
      return part;
    };
    queries_ = reinterpret_cast<Operand*>(take(Operands::count(tile.head_dim)));
    scores_ = take(kKeyBlock);
    bias_ = take(kKeyBlock);
    weights_ = reinterpret_cast<Operand*>(Operands::kJoins ? take(kKeyBlock / Operands::kElements) : scores_);
    row_max_ = take(1);
    row_sum_ = take(1);
    correction_ = take(1);
    block_max_ = take(1);
    first_ = take(1);
    last_ = take(1);
    slope_ = take(1);
    position_ = take(1);
    total_max_ = take(1);
    total_sum_ = take(1);
    older_ = take(1);
    recent_ = take(1);
    position_bias_ = PositionBiasBlock<T>(take(kKeyBlock));
    near_keys_ = reinterpret_cast<Operand*>(scratch);

    if (tile.attn_mask_is_boolean)
      with_mask<S>({}, tile, blocks_.begin() - blocks_.begin() % kKeyBlock, blocks_.end()).prefetch_share(0, 1, 1);
    pack_queries<S>(tile, queries_);
    clear_sums();
  }

  /// Calls `visit(block)` for every block of keys that some row sees, in order.
  template <class Visitor>
  MHA_INLINE void for_each_block(Visitor visit) {
    [[maybe_unused]] const typename Products::State state;
    Index span = -1;
    blocks_.for_each(source_, [&](KeyBlock& block, Index begin) MHA_INLINE_LAMBDA {
      if (!plan_block(block, begin)) return;
      block.begins_span = block.begin / kSpanKeys != span;
      span = block.begin / kSpanKeys;
      visit(block);
    });
  }

  /// The keys of the block as operands, of which no score is known yet.
  Rows<Operand> begin_block(const KeyBlock& block) {
    for (int j = 0; j < vectors_; ++j) pstore(block_max_ + j * L, pset1<P>(kLowest<T>));
    return source_.key_operands(block.segments[0].begin, block.end, near_keys_);
  }

  /// Computes the scores of the segments of the block, and the largest score of each query in it. Returns whether some
  /// query does not see some key.
  bool score(const KeyBlock& block) {
    alignas(kVectorBytes) T unused[W];
    for (int j = 0; j < vectors_; ++j) pstore(unused + j * L, pset1<P>(kLowest<T>));
    const Rows<Operand> rows = begin_block(block);
    bool hides = false;
    for (int i = 0; i < block.segment_count; ++i) {
      const Segment& segment = block.segments[i];
      const Index keys = segment.end - segment.begin;
      score_segment<Products>(segment.vectors, keys, segment.first_vector * L,
                              arguments(block, segment, rows, segment.modified ? unused : block_max_),
                              i == 0 ? with_next_mask(next_values(segment), block) : next_values(segment));
      if (segment.modified) hides |= modify_scores(block, segment);
    }
    return hides;
  }

#ifdef MHA_TILES

  /// Keys of the block that the vectors [first, last) of queries have scores for, if they are the same ones for each of
  /// them and fill a tile; else none.
  Segment part(const KeyBlock& block, int first, int last) const {
    Segment part = {first_in(block, first), last_in(block, first), first, last - first, false, false};
    for (int j = first; j < last; ++j)
      if (first_in(block, j) != part.begin || last_in(block, j) != part.end) part.end = part.begin;
    if (part.end - part.begin < kTileRows) part.vectors = 0;
    for (int i = 0; i < block.segment_count; ++i) {
      part.modified |= block.segments[i].modified;
      part.is_cut |= block.segments[i].is_cut;
    }
    return part;
  }

  /// The product of score() for a part, to be multiplied in steps; `rows` by begin_block(). Call finish_scores() next,
  /// which returns whether some query does not see some key.
  TileBlock product(const KeyBlock& block, const Rows<Operand>& rows, const Segment& part) const {
    return score_block(arguments(block, part, rows, block_max_), part.end - part.begin, 0, part.vectors * L);
  }
  bool finish_scores(const KeyBlock& block, const Segment& part) {
    if (part.modified) return modify_scores(block, part);
    raise_block_maximum(arguments(block, part, {}, block_max_), part.end - part.begin, part.vectors * L);
    return false;
  }

#endif

  /// A whole pass over the keys, the first of two: maximum and sum of every row.
  void find_sums() {
    for_each_block([&](const KeyBlock& block) {
      if (block.begins_span) begin_span();
      score(block);
      raise_maximum(block);
      exponentiate(block);
    });
    close_span();
  }

  /// Closes the current span and begins the next one.
  void begin_span() {
    close_span();
    for (int j = 0; j < vectors_; ++j) {
      pstore(total_max_ + j * L, pload<P>(row_max_ + j * L));
      pstore(total_sum_ + j * L, pload<P>(row_sum_ + j * L));
    }
    clear_sums();
    ++spans_;
  }

  /// Merges maximum and sum of the current span into the totals of the spans before it, if any. span_merge() then gives
  /// the factors, which merge weighted sums, too.
  void close_span() {
    if (spans_ < 2) return;
    const P scale = pset1<P>(scale_.exponent_scale);
    for (int j = 0; j < vectors_; ++j) {
      const P total_max = pload<P>(total_max_ + j * L), span_max = pload<P>(row_max_ + j * L);
      const P maximum = pmax(total_max, span_max);
      const MergeSums<T> merge(total_max, span_max, maximum, scale);
      pstore(row_max_ + j * L, maximum);
      pstore(row_sum_ + j * L, merge(pload<P>(total_sum_ + j * L), pload<P>(row_sum_ + j * L)));
      pstore(older_ + j * L, merge.older);
      pstore(recent_ + j * L, merge.recent);
    }
  }
  MergeSums<T> span_merge(int j) const { return {pload<P>(older_ + j * L), pload<P>(recent_ + j * L)}; }

  /// Writes maximum and sum of the rows to `sums` [2][kWidth]; after close_span(), of all spans.
  void save_sums(T* sums) const {
    for (int j = 0; j < vectors_; ++j) {
      pstore(sums + j * L, pload<P>(row_max_ + j * L));
      pstore(sums + W + j * L, pload<P>(row_sum_ + j * L));
    }
  }
  /// Reads both back into the current span, after begin_span().
  void load_sums(const T* sums) {
    for (int j = 0; j < vectors_; ++j) {
      pstore(row_max_ + j * L, pload<P>(sums + j * L));
      pstore(row_sum_ + j * L, pload<P>(sums + W + j * L));
    }
  }

  /// Raises the running maximum by the maximum of the block. correction() is then the factor that makes older sums of
  /// the span relative to it: 0 in the first block of a span, which has no older sums. This function and the next ones
  /// work on all vectors of queries, or on [first, last).
  void raise_maximum(const KeyBlock& block) { raise_maximum(block, 0, vectors_); }
  void raise_maximum(const KeyBlock& block, int first, int last) {
    const P scale = pset1<P>(scale_.exponent_scale);
    for (int j = first; j < last; ++j) {
      const P before = pload<P>(row_max_ + j * L);
      const P after = pmax(before, pload<P>(block_max_ + j * L));
      pstore(row_max_ + j * L, after);
      pstore(correction_ + j * L,
             block.begins_span ? pset1<P>(T(0)) : exp2_of_nonpositive(pmul(psub(before, after), scale)));
    }
  }

  /// Turns the scores of the block into weights relative to the running maximum, and adds them to the sum of each row.
  void exponentiate(const KeyBlock& block) { exponentiate(block, 0, vectors_, kNothingBeside); }
  template <class Beside>
  MHA_INLINE void exponentiate(const KeyBlock& block, int first_vector, int last_vector, Beside beside) {
    for (int j = first_vector; j < last_vector; ++j) {
      const Index first = first_in(block, j) - block.begin, last = last_in(block, j) - block.begin;
      P highest = pload<P>(row_max_ + j * L), scale = pset1<P>(scale_.exponent_scale), sum;
      if (start_.halves)
        halve_weights(scores_ + first * W + j * L, last - first, W, pload<P>(start_.halvings + j * L), highest, scale);
      if constexpr (Operands::kJoins)
        sum =
            weights_to_operands<S>(scores_ + j * L, weights_ + j * L, first, last, highest, scale,
                                   [&](Index piece, Index pieces) MHA_INLINE_LAMBDA {
                                     beside(pieces * (j - first_vector) + piece, pieces * (last_vector - first_vector));
                                   });
      else
        sum = weights_in_place<S>(scores_ + j * L, first, last, highest, scale);
      pstore(row_sum_ + j * L, pmadd(pload<P>(row_sum_ + j * L), pload<P>(correction_ + j * L), sum));
    }
  }

  /// Turns the scores of vector j into weights, where they are. Returns their sum.
  P exponentiate_in_place(const KeyBlock& block, int j) {
    return weights_in_place<S>(scores_ + j * L, first_in(block, j) - block.begin, last_in(block, j) - block.begin,
                               pload<P>(row_max_ + j * L), pset1<P>(scale_.exponent_scale));
  }

  /// Turns the scores of the block into weights, where they are: 2^(score * scale - log2_sum), where `log2_sum`
  /// [kWidth] is the logarithm of the sum of each row to base 2. If the block `hides` keys, their weights are 0 even in a
  /// row whose sum is NaN.
  void exponentiate_by(const KeyBlock& block, const T* log2_sum, bool hides) {
    const P scale = pset1<P>(scale_.exponent_scale);
    for (int j = 0; j < vectors_; ++j) {
      const P offset = pnegate(pload<P>(log2_sum + j * L));
      T* const scores = scores_ + j * L;
      for (Index i = first_in(block, j) - block.begin; i < last_in(block, j) - block.begin; ++i) {
        const P score = pload<P>(scores + i * W);
        const P weight = exp2_of_nonpositive(pmadd(score, scale, offset));
        pstore(scores + i * W, hides ? pandnot(weight, pcmp_eq(score, modify_.minus_infinity)) : weight);
      }
    }
  }

  /// Clears the weights that dropout takes away, after exponentiate(); `weights` as operands. The others wait for their
  /// factor.
  __attribute__((noinline)) void drop(const KeyBlock& block, Operand* weights) const {
    constexpr Index kTogether = kLanes<float> / L;
    static_assert(kVectors % kTogether == 0);
    for (int j = 0; j < vectors_; j += int(kTogether)) {
      const KeptWeights kept(tile_, j * L);
      KeptWeights::Masks masks;
      Index first = block.end, last = block.begin;
      for (int i = j; i < j + kTogether && i < vectors_; ++i) {
        first = first_in(block, i) < first ? first_in(block, i) : first;
        last = last_in(block, i) > last ? last_in(block, i) : last;
      }
      for (Index key = first - first % kDropoutKeys; key < last; key += kDropoutKeys) {
        kept.of_keys(key, masks);
        Operand* const at = weights + (key - block.begin) / Operands::kElements * W + j * L;
        keep(at, W, masks);
      }
    }
  }
  void drop(const KeyBlock& block) { drop(block, weights_); }

  /// The products alone, before score(): `products` [keys of the block][kWidth].
  void multiply(const KeyBlock& block, T* products) {
    alignas(kVectorBytes) T unused[W];
    const Rows<Operand> rows = begin_block(block);
    for (int j = 0; j < vectors_; ++j) pstore(unused + j * L, pset1<P>(kLowest<T>));
    for (int i = 0; i < block.segment_count; ++i) {
      const Segment& segment = block.segments[i];
      ScoreArguments<Products> product = arguments(block, segment, rows, unused);
      product.scores = products + (segment.begin - block.begin) * W + segment.first_vector * L;
      score_segment<Products>(segment.vectors, segment.end - segment.begin, segment.first_vector * L, product, {});
    }
  }

  /// The logarithm to base 2 of the weights that exponentiate() makes of scores of vector j.
  P log2_weight(const P& score, int j) const {
    return pmul(psub(score, pload<P>(row_max_ + j * L)), pset1<P>(scale_.exponent_scale));
  }

  /// Keys of the block that vector j has scores for.
  Index first_in(const KeyBlock& block, int j) const { return blocks_.first_in(block, j); }
  Index last_in(const KeyBlock& block, int j) const { return blocks_.last_in(block, j); }

  /// The factor that turns weighted sums of vector j into averages: 1 / sum, sinks included; 0 for a row that sees no
  /// key.
  P normalizer(int j) const {
    const P sum = pload<P>(row_sum_ + j * L), zero = pset1<P>(T(0));
    if (!tile_.has_sinks) return pselect(pcmp_eq(sum, zero), zero, pdiv(pset1<P>(T(1)), sum));
    alignas(kVectorBytes) T factors[L] = {};
    for (Index r = 0; r < L && j * L + r < tile_.rows; ++r) factors[r] = T(total_of(int(j * L + r)).normalizer());
    return pload<P>(factors);
  }

  /// The start of the rows for the second pass.
  RowStart<T> second_start() const { return {row_max_, row_sum_, tile_.rows}; }

  /// The logarithm of the sum of exponentials of the masked scores of row r, and of its sink.
  T log_sum_exp(int r) const { return T(total_of(r).log_sum_exp()); }

  /// Which keys of a masked block are masked, [key][kWidth], all bits set where they are. The score does not tell,
  /// since a visible key may have minus infinity, too. Overwrites the biases, so call it after score().
  const T* mark_masked(const KeyBlock& block) {
    if (!block.is_filled) fill_bias(block);
    if (!fills_lanes(block)) fill_lanes(block);
    const bool has_bias = block.has_bits || block.has_bias;
    for (int j = 0; j < vectors_; ++j) {
      const P first = pload<P>(first_ + j * L), last = pload<P>(last_ + j * L);
      for (Index i = 0; i < block.end - block.begin; ++i) {
        T* const bias = bias_ + i * W + j * L;
        const P visible = modify_.visible(pset1<P>(T(i)), first, last, has_bias ? bias : nullptr);
        pstore(bias, pandnot(ptrue(visible), visible));
      }
    }
    return bias_;
  }

  /// Multiplies the weights of vector j by `normalizer`, after exponentiate(). Where `masked`, the result of
  /// mark_masked(), they become 0.
  void normalize(const KeyBlock& block, int j, const P& normalizer, const T* masked) {
    for (Index key = first_in(block, j); key < last_in(block, j); ++key) {
      const Index at = (key - block.begin) * W + j * L;
      pstore(scores_ + at, pandnot(pmul(pload<P>(scores_ + at), normalizer), pload<P>(masked + at)));
    }
  }

  /// The memory to prefetch while the keys of a segment are multiplied: its values.
  Upcoming next_values(const Segment& segment) const {
    return source_.next_values(segment.begin, segment.end - segment.begin);
  }
  /// `upcoming`, and the entries of an attn_mask that are read next: those that are added to the scores of this block,
  /// or those that the next block begins with.
  Upcoming with_next_mask(const Upcoming& upcoming, const KeyBlock& block) const {
    if (block.has_bias && !block.is_filled) return with_mask<S>(upcoming, tile_, block.begin, block.end);
    return with_mask<S>(upcoming, tile_, block.end, blocks_.end());
  }
  /// The memory to prefetch while the values of this block are multiplied: the keys of the next visible block.
  Upcoming next_keys(const KeyBlock& block) const {
    Index next = block.end;
    while (next < blocks_.end() && !source_.is_seen(next)) next += kKeyBlock;
    if (next >= blocks_.end()) return {};
    const Index left = blocks_.end() - next, keys = left < kKeyBlock ? left : kKeyBlock;
    return source_.next_keys(next, keys);
  }

  const KeyValueRows<S>& source() const { return source_; }
  int vectors() const { return vectors_; }
  /// [keys of the block][kWidth]
  const T* scores() const { return scores_; }
  T* scores() { return scores_; }
  const ModifyScores<T>& modifications() const { return modify_; }
  /// The weights as operands, after exponentiate(), from key `first` of the block on, with which an operand begins.
  const Operand* weights(Index first) const { return weights_ + first / Operands::kElements * W; }
  /// The factor that turns the results of score() into scaled scores.
  P score_scale() const { return pset1<P>(T(scale_.of_maximum)); }
  const T* correction() const { return correction_; }

 private:
  Total total_of(int r) const { return {tile_, scale_, r, row_max_[r], row_sum_[r], start_.halvings[r]}; }

  void clear_sums() {
    for (int j = 0; j < vectors_; ++j) {
      pstore(row_max_ + j * L, pload<P>(start_.maximum + j * L));
      pstore(row_sum_ + j * L, pset1<P>(T(0)));
    }
  }

  ScoreArguments<Products> arguments(const KeyBlock& block, const Segment& segment, const Rows<Operand>& rows,
                                     T* block_max) const {
    const Index lane = segment.first_vector * L;
    return {Operands::count(tile_.head_dim),
            rows.data + (segment.begin - block.segments[0].begin) * rows.row,
            rows.row,
            rows.step,
            queries_ + lane,
            scores_ + (segment.begin - block.begin) * W + lane,
            block_max + lane};
  }

  /// Products become scores. Returns whether some query does not see some key.
  bool modify_scores(const KeyBlock& block, const Segment& segment) {
    if (!block.is_filled && block.has_bits) return hide_keys(block, segment);
    if ((block.has_bias || block.is_filled) && !segment.is_cut && modify_.is_of_bias_alone()) {
      if constexpr (sizeof(S) < sizeof(T)) {
        if (tile_.is_wide) return add_bias<T>(block, segment);
      }
      return add_bias<S>(block, segment);
    }
    modify(block, segment);
    return block.is_masked;
  }

  bool plan_block(KeyBlock& block, Index begin);
  void modify(const KeyBlock& block, const Segment& segment);
  bool hide_keys(const KeyBlock& block, const Segment& segment);
  template <class M>
  bool add_bias(const KeyBlock& block, const Segment& segment);
  bool fills_lanes(const KeyBlock& block) const;
  void fill_bias(const KeyBlock& block);
  void fill_lanes(const KeyBlock& block);

  const AttentionTile& tile_;
  const RowStart<T>& start_;
  ScoreScale<T> scale_;
  ModifyScores<T> modify_;
  int vectors_;
  KeyValueRows<S> source_;
  KeyBlocks<S> blocks_;
  int spans_ = 0;  // begun so far
  Operand *queries_, *near_keys_, *weights_;
  T *scores_, *bias_, *row_max_, *row_sum_, *correction_, *block_max_, *first_, *last_, *slope_, *position_;
  T *total_max_, *total_sum_, *older_, *recent_;
  PositionBiasBlock<T> position_bias_{nullptr};
  VisibleKeys<T> visible_;
};

/// Reads the masks of the block and cuts it into segments. Returns whether any query sees any key of it.
template <class S>
bool SoftmaxTile<S>::plan_block(KeyBlock& block, Index begin) {
  if (has_mask_arrays(tile_)) {
    visible_.read(tile_, block.begin, block.end, vectors_);
    if (visible_.are_none()) return false;
    block.has_bits = !visible_.are_all();
    block.has_bias = tile_.attn_mask[0] && !tile_.attn_mask_is_boolean;
    block.is_masked = block.has_bits || block.has_bias;
  }
  blocks_.cut(block, begin, scale_.comes_first || block.has_bits || block.has_bias);
  if (block.has_bits || block.has_bias) block.is_filled = fills_lanes(block) || (block.has_bits && scale_.comes_first);
  if (block.is_filled) fill_bias(block);
  if (fills_lanes(block)) fill_lanes(block);
  return block.segment_count > 0;
}

/// Whether modify() is to be called.
template <class S>
bool SoftmaxTile<S>::fills_lanes(const KeyBlock& block) const {
  return block.is_cut() || (scale_.comes_first && !((block.has_bits || block.has_bias) && modify_.is_of_bias_alone()));
}

/// Writes all mask arrays as biases.
template <class S>
void SoftmaxTile<S>::fill_bias(const KeyBlock& block) {
  if (block.has_bias) fill_bias_transposed<S>(tile_, block.begin, block.end, vectors_, bias_);
  if (block.has_bits) visible_.write_bias(block.end - block.begin, vectors_, bias_, block.has_bias);
}

/// Modifies the scores of a segment in place and updates block_max_. The products are still in level 1, so this pass
/// takes 2 % of their time, and the strips stay free of masks.
template <class S>
void SoftmaxTile<S>::modify(const KeyBlock& block, const Segment& segment) {
  const P zero = pset1<P>(T(0));
  for (Index lane = segment.first_vector * L; lane < (segment.first_vector + segment.vectors) * L; lane += L) {
    const P first = pload<P>(first_ + lane), last = pload<P>(last_ + lane);
    const P slope = tile_.has_alibi ? pload<P>(slope_ + lane) : zero;
    const P position = tile_.has_alibi ? pload<P>(position_ + lane) : zero;
    const bool has_position_bias = modify_.has_position_bias;
    P highest = pload<P>(block_max_ + lane);
    for (Index i = segment.begin - block.begin; i < segment.end - block.begin; ++i) {
      T* s = scores_ + i * W + lane;
      const T* bias = block.is_filled ? bias_ + i * W + lane : nullptr;
      const P key = pset1<P>(T(i)), visible = modify_.visible(key, first, last, bias);
      const P position_bias = has_position_bias ? ploadu<P>(position_bias_.of_key(i) + lane) : zero;
      const P score = modify_(pload<P>(s), key, visible, slope, position, position_bias, bias);
      pstore(s, score);
      highest = pmax(highest, score);
    }
    pstore(block_max_ + lane, highest);
  }
}

/// modify() where boolean masks are all there is. Returns whether they hide some key.
template <class S>
bool SoftmaxTile<S>::hide_keys(const KeyBlock& block, const Segment& segment) {
  const Index first = segment.begin - block.begin, last = segment.end - block.begin, lane = segment.first_vector * L;
  if (segment.vectors == kVectors)
    visible_.template hide<kVectors>(0, first, last, scores_, block_max_);
  else
    for (Index j = 0; j < segment.vectors; ++j)
      visible_.template hide<1>(lane + j * L, first, last, scores_, block_max_);
  return !visible_.are_all(lane, segment.vectors, first, last);
}

/// modify() where an attn_mask to be added is all there is, and no bound: half of the work. Entries that have not been
/// written as biases are transposed here, in registers. Returns whether it hides some key.
template <class S>
template <class M>
bool SoftmaxTile<S>::add_bias(const KeyBlock& block, const Segment& segment) {
  using Load = NumberOperands<M>;
  BiasSum<T> sum;
  for (int j = segment.first_vector; j < segment.first_vector + segment.vectors; ++j) {
    P highest = pload<P>(block_max_ + j * L);
    const auto add = [&](Index i, const P& bias) MHA_INLINE_LAMBDA {
      T* const s = scores_ + i * W + j * L;
      const P score = sum(pmul(pload<P>(s), modify_.scale), bias);
      pstore(s, score);
      highest = pmax(highest, score);
    };
    Index i = segment.begin - block.begin;
    const Index last = segment.end - block.begin;
    if (!block.is_filled) {
      const M* rows[L];
      mask_rows(tile_, j, rows);
      for (; i + L <= last && tile_.attn_mask_step == 1; i += L) {
        PacketBlock<P, L> keys;
        MHA_UNROLL
        for (Index r = 0; r < L; ++r) keys.packet[r] = Load::load(rows[r] + block.begin + i);
        transpose(keys);
        MHA_UNROLL
        for (Index k = 0; k < L; ++k) add(i + k, keys.packet[k]);
      }
      load_transposed<Load>(rows, block.begin + i, last - i, tile_.attn_mask_step, bias_ + i * W + j * L, W);
    }
    for (; i < last; ++i) add(i, pload<P>(bias_ + i * W + j * L));
    pstore(block_max_ + j * L, highest);
  }
  return sum.has_hidden();
}

/// Fills the arguments of modify() for each lane: bounds and positions, from the begin of the block, and position
/// biases.
template <class S>
void SoftmaxTile<S>::fill_lanes(const KeyBlock& block) {
  if (modify_.has_position_bias) position_bias_.fill(tile_, block.begin, block.end);
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

}  // namespace
}  // namespace mha::MHA_ISA

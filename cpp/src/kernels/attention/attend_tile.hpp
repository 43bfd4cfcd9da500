// O = softmax(S) V for one tile: O^T = O^T * correction + V^T P^T for each block of keys, on top of softmax_tile.hpp;
// at the end O^T / sum. This is the kernel of scaled_dot_product_attention.
//
// Layout: the weights P^T lie as the scores did, queries in the lanes. So values are read by broadcast from where they
// lie and need no packing either. O^T [Dv][queries] stays in scratch and is transposed once, at the end.
//
// Memory traffic of a block of 64 keys at D = Dv = 64 in f32 with 64 queries: 32 KB of K and V in, 16 KB of O^T in and
// out, for half a million multiply-adds. That is compute-bound from any level of cache.
//
// Numerics: the contribution of a block is summed from zero and then added to the rescaled sum of its span, and the
// spans likewise to the whole. The rounding error of a long row grows with (keys of a block + blocks of a span + spans)
// instead of with the number of keys. Order and merging: softmax_sums.hpp, docs/numerics.md.
//
// Source: Dao et al., "FlashAttention", 2022, algorithm 1, transposed (docs/decisions/0002).
#pragma once

#include "kernels/attention/guard_values.hpp"
#include "kernels/attention/softmax_tile.hpp"
#include "kernels/attention/span_sums.hpp"

namespace mha::MHA_ISA {
namespace {

template <class Products>
struct ValueArguments {
  using Operand = typename Products::Operand;
  using T = typename Products::Sum;
  Index depth;           // operands along the keys
  const Operand* value;  // first key of the segment
  Index value_row, value_step;
  const Operand* weights;  // P^T at the segment's first key and vector
  const T* correction;     // at the segment's first vector
  T* out;                  // O^T, or the sum of the block alone
  bool starts;             // nothing has been written to `out` yet
};

/// M rows of O^T: out = out * correction + V^T P^T.
template <class Products, int M, int N>
struct MergeValues {
  static void run(const ValueArguments<Products>& g, Index row) {
    using T = typename Products::Sum;
    using P = Packet<T>;
    constexpr Index L = kLanes<T>, W = kWidth<T>;
    T* out = g.out + row * W;
    P sums[M][N];
    Products::Tile::template multiply<M, N>(
        g.depth, g.value + row * g.value_step, g.value_step, g.value_row, g.weights, W,
        [](int, int) MHA_INLINE_LAMBDA { return pset1<P>(T(0)); },
        [&](int i, int j, const P& sum) MHA_INLINE_LAMBDA { sums[i][j] = sum; });
    // One branch for all sums: the compiler would leave one for each.
    const auto store = [&](auto merged) MHA_INLINE_LAMBDA {
      MHA_UNROLL
      for (int i = 0; i < M; ++i) {
        MHA_UNROLL
        for (int j = 0; j < N; ++j) pstore(out + i * W + j * L, merged(out + i * W + j * L, j, sums[i][j]));
      }
    };
    if (g.starts)
      store([](const T*, int, const P& sum) MHA_INLINE_LAMBDA { return sum; });
    else {
      P correction[N];
      MHA_UNROLL
      for (int j = 0; j < N; ++j) correction[j] = pload<P>(g.correction + j * L);
      store([&](const T* before, int j, const P& sum)
                MHA_INLINE_LAMBDA { return pmadd(pload<P>(before), correction[j], sum); });
    }
  }
};

/// M rows of the sum of the block alone: out += V^T P^T, where each sum over keys goes on from the segment before.
template <class Products, int M, int N>
struct AddValues {
  static void run(const ValueArguments<Products>& g, Index row) {
    using T = typename Products::Sum;
    using P = Packet<T>;
    constexpr Index L = kLanes<T>, W = kWidth<T>;
    T* out = g.out + row * W;
    Products::Tile::template multiply<M, N>(
        g.depth, g.value + row * g.value_step, g.value_step, g.value_row, g.weights, W,
        [&](int i, int j) MHA_INLINE_LAMBDA { return g.starts ? pset1<P>(T(0)) : pload<P>(out + i * W + j * L); },
        [&](int i, int j, const P& sum) MHA_INLINE_LAMBDA { pstore(out + i * W + j * L, sum); });
  }
};

#ifdef MHA_TILES

/// The sum of the block alone by tiles, for queries that fill them: V^T is the first factor, in whole tiles of columns,
/// and P^T the second one: one or two columns of tiles from lane `lane` on, of which `lanes` are left.
inline TileBlock value_block(const ValueArguments<TileProducts>& g, Index value_dim, Index lane, Index lanes) {
  constexpr Index kRow = kWidth<float> * Index(sizeof(float));
  return {g.value,
          g.value_step * Index(sizeof(Pair)),
          value_columns<TileProducts>(value_dim),
          g.weights + lane,
          kRow,
          g.out + lane,
          kRow,
          g.depth / kTileColumns,
          lanes > kTileColumns,
          !g.starts};
}

__attribute__((noinline)) inline void add_values_by_tiles(const ValueArguments<TileProducts>& g, Index lanes,
                                                          Index value_dim, const Upcoming& upcoming) {
  for (Index lane = 0; lane < lanes; lane += kBlockColumns)
    multiply_tiles<PairInstruction>(value_block(g, value_dim, lane, lanes - lane), lane == 0 ? upcoming : Upcoming{});
}

#endif

template <class S>
class AttendTile {
 public:
  using T = Compute<S>;
  using Operands = OperandsOf<S>;
  using Products = typename Operands::Products;
  using Operand = typename Operands::Operand;
  static constexpr Index L = kLanes<T>, W = kWidth<T>;
  using P = Packet<T>;

  static std::size_t scratch_bytes(Index head_dim, Index value_dim) {
    return sizeof(T) *
           (SoftmaxTile<S>::scratch_elements(head_dim) + std::size_t(2 * W * value_dim + block_elements(value_dim)) +
            std::size_t(KeyValueRows<S>::near_values(value_dim)));
  }

  /// A span: maximum and sum of each row [2][kWidth], and O^T [Dv][kWidth].
  static std::size_t span_bytes(Index value_dim) { return sizeof(T) * std::size_t(W * (value_dim + 2)); }
  static void copy_span_rows(const void* from, Index first, Index rows, void* to, Index value_dim) {
    const T *const source = static_cast<const T*>(from) + first, *const out = source + 2 * W;
    const SpanSums<T> target(to);
    target.copy_totals(source, source + W, rows);
    for (Index r = 0; r < rows; ++r)
      for (Index d = 0; d < value_dim; ++d) target.out[r * value_dim + d] = out[d * W + r];
  }

  AttendTile(const AttentionTile& tile, void* scratch, const RowStart<T>& start = kFirstTime<T>)
      : tile_(tile),
        out_(static_cast<T*>(scratch)),
        total_out_(out_ + W * tile.value_dim),
        block_out_(total_out_ + W * tile.value_dim),
        near_values_(reinterpret_cast<Operand*>(block_out_ + block_elements(tile.value_dim))),
        scores_(tile, block_out_ + block_elements(tile.value_dim) + KeyValueRows<S>::near_values(tile.value_dim),
                start) {}

  void run() {
    bool starts = true;
    scores_.for_each_block([&](const KeyBlock& block) {
      if (block.begins_span) {
        scores_.begin_span();
        if (!starts) merge_span();
        starts = true;
      }
#ifdef MHA_TILES
      if constexpr (kHasTiles<Products>)
        if (!tile_.has_dropout && attend_overlapped(block, starts)) {
          starts = false;
          return;
        }
#endif
      const bool hides = scores_.score(block);
      scores_.raise_maximum(block);
      const bool guarded =
          hides && has_non_finite_value<S>(scores_.source(), tile_.value_dim, block.segments[0].begin, block.end);
      const T* masked = guarded ? scores_.mark_masked(block) : nullptr;
      scores_.exponentiate(block);
      if (tile_.has_dropout) scores_.drop(block);
      values_ = scores_.source().value_operands(block.segments[0].begin, block.end, near_values_);
      if (guarded) {
        add_guarded(block, masked);
        merge_block(starts);
      } else {
        add_block(block, starts);
      }
      starts = false;
    });
    scores_.close_span();
    if (starts)
      zero(total_out_);  // no row sees any key
    else
      merge_span();
    if (tile_.span)
      store_span(static_cast<T*>(tile_.span));
    else
      store();
  }

  /// Merges the spans in order.
  void merge_spans(void* spans, Index count) {
    for (Index i = 0; i < count; ++i) {
      T* const span = static_cast<T*>(spans) + i * W * (tile_.value_dim + 2);
      scores_.begin_span();
      if (i > 0) merge_span();
      scores_.load_sums(span);
      out_ = span + 2 * W;
    }
    scores_.close_span();
    merge_span();
    store();
  }

  /// After run() without a span, or merge_spans(): whether a sum has overflowed, and the start of the rows for a second
  /// run.
  bool has_overflowed() const {
    for (int j = 0; j < scores_.vectors(); ++j)
      if (!are_finite(total_out_ + j * L, tile_.value_dim, W)) return true;
    return false;
  }
  RowStart<T> second_start() const { return scores_.second_start(); }

 private:
  /// Of the sum of a block.
  static constexpr Index block_elements(Index value_dim) { return W * value_columns<Products>(value_dim); }

  ValueArguments<Products> arguments(const KeyBlock& block, const Segment& segment, T* out, bool starts) const {
    const Index lane = segment.first_vector * L, first = block.segments[0].begin;
    return {Operands::count(segment.end - segment.begin),
            values_.data + (segment.begin - first) / Operands::kElements * values_.row,
            values_.row,
            values_.step,
            scores_.weights(segment.begin - block.begin) + lane,
            scores_.correction() + lane,
            out + lane,
            starts};
  }

#ifdef MHA_TILES

  /// Computes a block in two halves of its queries: tiles multiply for one half while vectors work for the other:
  ///
  ///   tiles      K Q^T of half 1    K Q^T of half 2         V^T P^T of half 1       V^T P^T of half 2
  ///   vectors    transpose V        exponentials of 1       exponentials of 2       merge 1              merge 2
  ///
  /// The operations are the same as one after the other, and so are the bits. Returns false without any work if a half
  /// has few keys, or vectors that see different keys.
  __attribute__((noinline)) bool attend_overlapped(const KeyBlock& block, bool starts) {
    constexpr int kHalf = kVectors / 2;
    constexpr Index kHalfLanes = kHalf * L;
    static_assert(kHalfLanes % kTileColumns == 0);
    if (scores_.vectors() < kVectors) return false;
    const Segment one = scores_.part(block, 0, kHalf), two = scores_.part(block, kHalf, kVectors);
    if (one.vectors == 0 || two.vectors == 0) return false;
    const Index first = block.segments[0].begin;

    const Rows<Operand> keys = scores_.begin_block(block);
    Steps scores(scores_.product(block, keys, one),
                 scores_.with_next_mask(scores_.source().next_values(first, block.end - first), block));
    values_ = scores_.source().value_operands(first, block.end, near_values_, beside(scores));
    scores.finish();
    bool hides = scores_.finish_scores(block, one);
    scores_.raise_maximum(block, 0, kHalf);

    Steps more_scores(scores_.product(block, keys, two));
    exponentiate_overlapped(block, 0, kHalf, more_scores);
    hides |= scores_.finish_scores(block, two);
    scores_.raise_maximum(block, kHalf, kVectors);

    const bool guarded = hides && has_non_finite_value<S>(scores_.source(), tile_.value_dim, first, block.end);
    const Index value_dim = guarded ? 0 : tile_.value_dim;  // for tiles
    Steps sums(value_block(arguments(block, one, block_out_, true), value_dim, 0, kHalfLanes),
               scores_.next_keys(block));
    exponentiate_overlapped(block, kHalf, kVectors, sums);
    if (guarded) add_guarded(block, scores_.mark_masked(block));

    Steps more_sums(value_block(arguments(block, two, block_out_, true), value_dim, 0, kHalfLanes));
    merge_overlapped(starts, 0, kHalf, more_sums);
    merge_overlapped(starts, kHalf, kVectors, more_sums);
    return true;
  }

  using Steps = TileSteps<PairInstruction>;
  static auto beside(Steps& steps) {
    return [&steps](Index piece, Index pieces) MHA_INLINE_LAMBDA { steps.beside(piece, pieces); };
  }
  __attribute__((noinline)) void exponentiate_overlapped(const KeyBlock& block, int first, int last, Steps& steps) {
    scores_.exponentiate(block, first, last, beside(steps));
    steps.finish();
  }
  __attribute__((noinline)) void merge_overlapped(bool starts, int first, int last, Steps& steps) {
    merge_block(starts, first, last, beside(steps));
    steps.finish();
  }

#endif

  /// Adds the block to the sum of the span: at once by vectors, if one segment is all of it.
  void add_block(const KeyBlock& block, bool starts) {
    if constexpr (!kHasTiles<Products>) {
      static constexpr StripTable<MergeValues, Products, ValueArguments<Products>> merge;
      const Segment& segment = block.segments[0];
      if (block.segment_count == 1 && segment.vectors == scores_.vectors())
        return merge(segment.vectors, tile_.value_dim, arguments(block, segment, out_, starts),
                     scores_.next_keys(block));
    }
    add_segments(block);
    merge_block(starts);
  }

  /// The sum of the block, segment after segment. The first segment overwrites it if it has all vectors of queries, as
  /// under a causal mask; else it begins with zeros.
  void add_segments(const KeyBlock& block) {
    const bool starts = block.segments[0].vectors == scores_.vectors();
    if (!starts) zero(block_out_);
    for (int i = 0; i < block.segment_count; ++i) {
      const Segment& segment = block.segments[i];
      const bool is_only = block.segment_count == 1 && starts;
      add_segment(segment, arguments(block, segment, block_out_, starts && i == 0),
                  kHasTiles<Products> && is_only ? scores_.next_keys(block) : Upcoming{});
    }
  }

  /// By tiles where the queries of the segment fill columns of tiles, else by vectors: a vector may be half as wide as
  /// a tile, and a segment may have an odd number of them.
  void add_segment(const Segment& segment, const ValueArguments<Products>& values, const Upcoming& upcoming) const {
#ifdef MHA_TILES
    if constexpr (kHasTiles<Products>) {
      const Index lanes = segment.vectors * L;
      if (kVectorsFillTiles || fill_tiles(segment.first_vector * L, lanes))
        return add_values_by_tiles(values, lanes, tile_.value_dim, upcoming);
    }
#endif
    if constexpr (!kHasTiles<Products> || !kVectorsFillTiles) {
      static constexpr StripTable<AddValues, Products, ValueArguments<Products>> add;
      add(segment.vectors, tile_.value_dim, values, upcoming);
    }
  }

  /// The sum of the block without the values of masked keys, which are left out by selection.
  void add_guarded(const KeyBlock& block, const T* masked) {
    for (int j = 0; j < scores_.vectors(); ++j)
      for (Index d = 0; d < tile_.value_dim; ++d) {
        LongSum<Products> sum;
        for (Index key = scores_.first_in(block, j); key < scores_.last_in(block, j); key += Operands::kElements) {
          const Index i = key - block.begin, pair = (key - block.segments[0].begin) / Operands::kElements;
          P skip = pload<P>(masked + i * W + j * L);
          if constexpr (Operands::kJoins)
            skip = join_halves(skip, key + 1 < block.end ? pload<P>(masked + (i + 1) * W + j * L) : ptrue(skip));
          const P value = Products::broadcast(values_.data + pair * values_.row + d * values_.step);
          sum.add(pandnot(value, skip), Products::load(scores_.weights(i) + j * L));
        }
        pstore(block_out_ + d * W + j * L, sum.total());
      }
  }

  /// Adds the sum of the block to the sum of the span, for all vectors of queries or for [first, last).
  void merge_block(bool starts) { merge_block(starts, 0, scores_.vectors(), kNothingBeside); }
  template <class Beside>
  MHA_INLINE void merge_block(bool starts, int first, int last, Beside beside) {
    const Index rows = tile_.value_dim;
    for (int j = first; j < last; ++j) {
      const T* sum = block_out_ + j * L;
      T* out = out_ + j * L;
      const P correction = pload<P>(scores_.correction() + j * L);
      for (Index d = 0; d < rows; ++d, sum += W, out += W) {
        pstore(out, starts ? pload<P>(sum) : pmadd(pload<P>(out), correction, pload<P>(sum)));
        beside(rows * (j - first) + d, rows * (last - first));
      }
    }
  }

  /// Adds the sum of the span to the total of the spans before.
  void merge_span() {
    if (spans_++ == 0) {
      T* const first = out_;
      out_ = total_out_;
      total_out_ = first;
      return;
    }
    for (int j = 0; j < scores_.vectors(); ++j) {
      const MergeSums<T> merge = scores_.span_merge(j);
      for (T *total = total_out_ + j * L, *span = out_ + j * L; total < total_out_ + tile_.value_dim * W;
           total += W, span += W)
        pstore(total, merge(pload<P>(total), pload<P>(span)));
    }
  }

  void zero(T* rows) const {
    for (Index d = 0; d < tile_.value_dim; ++d)
      for (int j = 0; j < scores_.vectors(); ++j) pstore(rows + d * W + j * L, pset1<P>(T(0)));
  }

  void store_span(T* span) const {
    scores_.save_sums(span);
    for (T *to = span + 2 * W, *from = total_out_; from < total_out_ + tile_.value_dim * W; from += W, to += W)
      for (int j = 0; j < scores_.vectors(); ++j) pstore(to + j * L, pload<P>(from + j * L));
  }

  __attribute__((noinline)) void store() const {  // for run() and merge_spans()
    for (int r = 0; r < tile_.rows; ++r)
      if (tile_.lse[r]) *static_cast<T*>(tile_.lse[r]) = scores_.log_sum_exp(r);
    if constexpr (sizeof(S) < sizeof(T))
      if (!tile_.is_wide) return store_rows<S>();
    store_rows<T>();
  }

  template <class Element>
  void store_rows() const {
    for (int j = 0; j < scores_.vectors(); ++j) {
      const Index first = j * L, count = tile_.rows - first < L ? tile_.rows - first : L;
      Element* rows[L];
      for (Index r = 0; r < count; ++r) rows[r] = static_cast<Element*>(tile_.out[first + r]);
      const P normalizer = scores_.normalizer(j);
      const P factor = tile_.has_dropout ? pmul(normalizer, pset1<P>(T(tile_.dropout_factor))) : normalizer;
      if constexpr (Operands::kJoins && sizeof(Element) < sizeof(T))
        store_transposed_pairs(total_out_ + first, W, factor, rows, count, tile_.value_dim, tile_.out_step);
      else
        store_transposed<Element>(total_out_ + first, W, factor, rows, count, 0, tile_.value_dim, tile_.out_step);
    }
  }

  const AttentionTile& tile_;
  T *out_, *total_out_, *block_out_;  // O^T of the span, of all spans, of a block
  Operand* near_values_;
  Rows<Operand> values_{};  // of the block, as operands
  int spans_ = 0;
  SoftmaxTile<S> scores_;
};

}  // namespace
}  // namespace mha::MHA_ISA

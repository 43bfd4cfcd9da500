// The two products of decode, S = Q K^T and O = P V, for up to kMaxDecodeRows rows. Each byte of K and V goes through a
// register once, whatever the number of rows: keys lie in the lanes of the scores, columns of values in those of the
// result.
#pragma once

#include "kernels/products/kinds.hpp"
#include "kernels/vectors/transpose.hpp"

namespace mha::MHA_ISA {
namespace {

/// Rows that are evenly spaced in memory.
struct RowRun {
  const void* data;
  Index row, rows;  // bytes between rows; number of rows
};

/// The rows of a span in the order in which they are read, run by run, and then what is read after them.
struct RowStream {
  Index bytes;  // of each row
  int count = 0;
  RowRun runs[kSpanKeys / kKeyBlock + 2];

  explicit RowStream(Index row_bytes) : bytes(row_bytes) {}
  template <class S>
  void append(const Rows<S>& from, Index rows) {
    runs[count++] = {from.data, from.row * Index(sizeof(S)), rows};
  }
  /// The last run has no end, and is its own successor.
  void close(const void* data, Index row) { runs[count] = runs[count + 1] = {data, row, PTRDIFF_MAX}; }
};

/// Prefetches the rows of a stream kAhead bytes before they are read: enough to cover the latency of memory, and in the
/// order of their addresses, which the hardware then follows (in the order of use it gives 25 % less bandwidth).
///
/// One is made for each block of keys. It goes on from the run that it begins in to the next one, no further: a run has
/// at least as many rows as a block, but for the last one of a span.
class ReadAhead {
 public:
  /// `first`: the row of the stream that is read first.
  ReadAhead(const RowStream& stream, Index first) : bytes_(stream.bytes) {
    first += kAhead / bytes_ + 1;
    const RowRun* run = stream.runs;
    for (; first >= run->rows; ++run) first -= run->rows;
    row_ = run->row;
    left_ = run->rows - first;
    current_ = static_cast<const char*>(run->data) + first * row_;
    next_ = static_cast<const char*>(run[1].data);
    next_row_ = run[1].row;
  }

  /// Prefetches the next `count` lines.
  MHA_INLINE void lines(int count) {
    for (int i = 0; i < count; ++i) {
      __builtin_prefetch(current_ + at_);
      at_ += 64;
      if (at_ < bytes_) continue;
      at_ = 0;
      step();
    }
  }
  /// Prefetches bytes [from, to) of the next row.
  MHA_INLINE void part_of_row(Index from, Index to) {
    for (; from < to; from += 64) __builtin_prefetch(current_ + from);
    step();
  }

 private:
  static constexpr Index kAhead = 12288;

  MHA_INLINE void step() {
    current_ += row_;
    if (--left_ == 0) {
      row_ = next_row_;
      current_ = next_;
    }
  }

  Index row_, bytes_, at_ = 0, left_;  // left_: rows of the run; below 0 in the next one
  const char *current_, *next_;
  Index next_row_;
};

template <class S>
struct DecodeKeys {
  using Operand = typename OperandsOf<S>::Operand;
  Index keys, depth;  // depth: operands of the head dimension
  const S* key;       // first key
  Index key_row;
  const Operand* queries;  // [rows][depth]
  Compute<S>* scores;      // [rows][kSpanKeys], at the first key
  const RowStream& stream;
  Index first;  // row of the stream that `key` is
};

/// Scores of `keys` keys, whole vectors of them, against M rows. K is transposed in registers, kLanes x kLanes operands
/// at a time. The sum over the head dimension has the order of PacketTile::multiply_long. With a single row each
/// multiply-add of a vector of keys waits for the one before, so two vectors are computed side by side.
template <class S, int M>
void score_key_lanes(const DecodeKeys<S>& g) {
  using T = Compute<S>;
  using Operands = OperandsOf<S>;
  using Products = typename Operands::Products;
  using P = Packet<T>;
  constexpr Index L = kLanes<T>;
  constexpr Index kQuad = L < 4 ? L : 4;  // rows that share a pointer: there are not enough registers for one each
  constexpr int kBytes = L * L * Operands::kElements * sizeof(S), kLines = kBytes < 64 ? 1 : kBytes / 64;
  const Index row = g.key_row;
  constexpr int G = M == 1 ? 2 : 1;  // vectors of keys at a time
  ReadAhead ahead(g.stream, g.first);
  for (Index key = 0; key < g.keys; key += G * L) {
    const int groups = key + G * L <= g.keys ? G : 1;
    const S* quads[G][L / kQuad];
    MHA_UNROLL
    for (int i = 0; i < G; ++i) {
      MHA_UNROLL
      for (Index k = 0; k < L; k += kQuad) quads[i][k / kQuad] = g.key + (key + (i < groups ? i : 0) * L + k) * row;
    }
    P total[G][M];
    MHA_UNROLL
    for (int i = 0; i < G * M; ++i) total[i / M][i % M] = pset1<P>(T(0));
    const typename Products::Operand* query = g.queries;
    for (Index begin = 0; begin < g.depth; begin += Products::kPartialSumTerms) {
      const Index end = begin + Products::kPartialSumTerms < g.depth ? begin + Products::kPartialSumTerms : g.depth;
      P sum[G][M];
      MHA_UNROLL
      for (int i = 0; i < G * M; ++i) sum[i / M][i % M] = pset1<P>(T(0));
      for (Index d = begin; d < end; d += L, query += L) {
        MHA_UNROLL
        for (int i = 0; i < G; ++i) {
          PacketBlock<P, L> block;
          MHA_UNROLL
          for (Index k = 0; k < L; ++k) block.packet[k] = Operands::load(quads[i][k / kQuad] + k % kQuad * row);
          MHA_UNROLL
          for (const S*& quad : quads[i]) quad += L * Operands::kElements;
          transpose(block);
          // Keeps the compiler from holding broadcast queries in registers for both vectors: none are left.
          if (G > 1) asm("" : "+r"(query));
          MHA_UNROLL
          for (Index k = 0; k < L; ++k) {
            MHA_UNROLL
            for (int m = 0; m < M; ++m)
              sum[i][m] =
                  Products::multiply_add(block.packet[k], Products::broadcast(query + m * g.depth + k), sum[i][m]);
          }
          ahead.lines(kLines);
        }
      }
      MHA_UNROLL
      for (int i = 0; i < G * M; ++i) total[i / M][i % M] = padd(total[i / M][i % M], sum[i / M][i % M]);
    }
    for (int i = 0; i < groups; ++i) {
      MHA_UNROLL
      for (int m = 0; m < M; ++m) pstore(g.scores + m * kSpanKeys + key + i * L, total[i][m]);
    }
  }
}

template <class S>
struct DecodeValues {
  using Operand = typename OperandsOf<S>::Operand;
  Index keys;
  const S* value;  // first key and column
  Index value_row;
  const Operand* weights;        // [rows][kSpanKeys / elements of an operand], at the first key
  const Compute<S>* correction;  // for each row
  Compute<S>* out;               // sums [rows][out_row], at the first column
  Index out_row;
  bool starts;  // nothing has been written to `out` yet
  const RowStream& stream;
  Index first, column;  // row of the stream that `value` is in, and its element of that
};

/// N vectors of operands down the columns of values: of the key at `row`, and of that at `second` if an operand has
/// two.
template <class S, int N>
MHA_INLINE void load_values(const S* row, const S* second, Packet<Compute<S>> (&value)[N]) {
  constexpr Index L = kLanes<Compute<S>>;
  MHA_UNROLL
  for (int n = 0; n < N; n += int(OperandsOf<S>::kElements))
    OperandsOf<S>::load_columns(row + n * L, second + n * L, value + n);
}

/// M rows times N vectors of columns: out = out * correction + P V.
template <class S, int M, int N>
void merge_value_lanes(const DecodeValues<S>& g) {
  using T = Compute<S>;
  using Operands = OperandsOf<S>;
  using Products = typename Operands::Products;
  using P = Packet<T>;
  constexpr Index L = kLanes<T>, kKeys = Operands::kElements;
  P sum[M][N];
  MHA_UNROLL
  for (int m = 0; m < M; ++m) {
    MHA_UNROLL
    for (int n = 0; n < N; ++n) sum[m][n] = pset1<P>(T(0));
  }
  const S* row = g.value;
  ReadAhead ahead(g.stream, g.first);
  const Index from = g.column * Index(sizeof(S)), to = from + N * L * Index(sizeof(S));
  const typename Products::Operand* weights = g.weights;
  const auto add_operand = [&](const S* second) MHA_INLINE_LAMBDA {
    P value[N];
    load_values<S, N>(row, second, value);
    MHA_UNROLL
    for (int m = 0; m < M; ++m) {
      const P weight = Products::broadcast(weights + m * (kSpanKeys / kKeys));
      MHA_UNROLL
      for (int n = 0; n < N; ++n) sum[m][n] = Products::multiply_add(value[n], weight, sum[m][n]);
    }
    row += kKeys * g.value_row;
    ++weights;
  };
  for (Index key = 0; key + kKeys <= g.keys; key += kKeys) {
    for (Index k = 0; k < kKeys; ++k) ahead.part_of_row(from, to);
    add_operand(row + g.value_row);
  }
  if constexpr (Operands::kJoins)
    if (g.keys % kKeys != 0)
      add_operand(kZeros<S, N * L>);  // the last operand has one key; the weight of the other is 0
  MHA_UNROLL
  for (int m = 0; m < M; ++m) {
    MHA_UNROLL
    for (int n = 0; n < N; ++n) {
      T* out = g.out + m * g.out_row + n * L;
      pstore(out, g.starts ? sum[m][n] : pmadd(pload<P>(out), pset1<P>(g.correction[m]), sum[m][n]));
    }
  }
}

/// Most vectors of columns that merge_value_lanes takes at a time for m rows: enough independent sums to hide the
/// latency of a multiply-add, and no more than fit the registers.
constexpr int value_vectors(int m) {
  const int most = kVectors == 4 ? 20 : 10;
  return m * 8 <= most ? 8 : m * 4 <= most ? 4 : m * 2 <= most ? 2 : 1;
}

/// The functions for each number of rows, and for values for 8, 4, 2 and 1 vectors of columns at a time.
template <class S>
struct DecodeTable {
  void (*score[kMaxDecodeRows])(const DecodeKeys<S>&);
  void (*values[kMaxDecodeRows][4])(const DecodeValues<S>&);

  constexpr DecodeTable() : score{}, values{} { fill<1>(); }

 private:
  template <int M>
  constexpr void fill() {
    score[M - 1] = &score_key_lanes<S, M>;
    fill_values<M, value_vectors(M)>();
    if constexpr (M < kMaxDecodeRows) fill<M + 1>();
  }
  template <int M, int N>
  constexpr void fill_values() {
    values[M - 1][N == 8 ? 0 : N == 4 ? 1 : N == 2 ? 2 : 3] = &merge_value_lanes<S, M, N>;
    if constexpr (N > OperandsOf<S>::kElements) fill_values<M, N / 2>();
  }
};

}  // namespace
}  // namespace mha::MHA_ISA

// The two products of decode: keys, then value columns, lie in the lanes, so that each byte of K and V goes through a
// register once, whatever the number of query rows.
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

/// The rows of a span in the order in which they are read, run by run, and what is read after them.
struct RowStream {
  Index bytes;  // of each row
  int count = 0;
  RowRun runs[kSpanKeys / kKeyBlock + 1];

  explicit RowStream(Index row_bytes) : bytes(row_bytes) {}

  template <class S>
  void append(const Rows<S>& from, Index rows) {
    runs[count++] = {from.data, from.row * Index(sizeof(S)), rows};
  }
  /// Ends with a run that no reader reaches the end of.
  void close(const void* data, Index row) { runs[count] = {data, row, PTRDIFF_MAX}; }
};

/// Asks for the rows of a stream kAhead bytes before they are read: enough to cover the latency of memory, and in the
/// order of their addresses, which the hardware then follows (in the order of use it gives 25 % less bandwidth).
class ReadAhead {
 public:
  /// `first`: the row that is read first.
  ReadAhead(const RowStream& stream, Index first) : run_(stream.runs), bytes_(stream.bytes) {
    first += kAhead / bytes_ + 1;
    for (; first >= run_->rows; ++run_) first -= run_->rows;
    begin(first);
  }

  /// Asks for the next `count` lines.
  MHA_INLINE void lines(int count) {
    for (int i = 0; i < count; ++i) {
      __builtin_prefetch(current_ + at_);
      at_ += 64;
      if (at_ < bytes_) continue;
      at_ = 0;
      step();
    }
  }
  /// Asks for bytes [from, to) of the next row.
  MHA_INLINE void part_of_row(Index from, Index to) {
    for (; from < to; from += 64) __builtin_prefetch(current_ + from);
    step();
  }

 private:
  static constexpr Index kAhead = 12288;

  MHA_INLINE void step() {
    current_ += row_;
    if (--left_ > 0) return;
    ++run_;
    begin(0);
  }
  /// Goes on at row `first` of the run.
  MHA_INLINE void begin(Index first) {
    row_ = run_->row;
    current_ = static_cast<const char*>(run_->data) + first * row_;
    left_ = run_->rows - first;
  }

  const RowRun* run_;
  Index row_, bytes_, at_ = 0, left_;
  const char* current_;
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
  Index first;  // where `key` is in the stream
};

/// Scores of `keys` keys, whole vectors of them, against M rows: K is transposed in registers, kLanes x kLanes elements
/// at a time. The sum over the head dimension has the order of PacketTile::multiply_long. A single row has one chain of
/// multiply-adds for each vector of keys; two vectors at a time hide its latency.
template <class S, int M>
void score_key_lanes(const DecodeKeys<S>& g) {
  using T = Compute<S>;
  using Operands = OperandsOf<S>;
  using Products = typename Operands::Products;
  using P = Packet<T>;
  constexpr Index L = kLanes<T>;
  constexpr Index kQuad = L < 4 ? L : 4;  // Four addresses share a pointer: a pointer for each row does not fit.
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
          if (G > 1) asm("" : "+r"(query));  // or the broadcast queries stay in registers, which are all taken
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
  Index first, column;  // where `value` is in the stream: row, element
};

/// N vectors of columns of the values of one operand of keys; `row` of the first, `second` of the other one if it has two.
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
    if (g.keys % kKeys != 0) add_operand(kZeros<S, N * L>);  // the other key of the last operand weighs nothing
  MHA_UNROLL
  for (int m = 0; m < M; ++m) {
    MHA_UNROLL
    for (int n = 0; n < N; ++n) {
      T* out = g.out + m * g.out_row + n * L;
      pstore(out, g.starts ? sum[m][n] : pmadd(pload<P>(out), pset1<P>(g.correction[m]), sum[m][n]));
    }
  }
}

/// Vectors of columns of merge_value_lanes for m rows: with a chain of multiply-adds for each there are enough to hide
/// its latency, and no more than registers.
constexpr int value_vectors(int m) {
  const int most = kVectors == 4 ? 20 : 10;
  return m * 8 <= most ? 8 : m * 4 <= most ? 4 : m * 2 <= most ? 2 : 1;
}

/// The strips by number of rows; those of the values for 8, 4, 2 and 1 vectors.
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

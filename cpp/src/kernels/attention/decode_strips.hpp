// The two products of decode, S = Q K^T and O = P V, for up to kMaxDecodeRows rows. Each byte of K and V goes through a
// register once, for any number of rows: keys lie in the lanes of the scores, columns of values in the lanes of the
// result.
#pragma once

#include "kernels/attention/decode_keys.hpp"

namespace mha::MHA_ISA {
namespace {

template <class S>
struct DecodeValues {
  using Operand = typename OperandsOf<S>::Operand;
  Index keys;
  StoredRows rows;               // from the first key and column on
  const Operand* weights;        // [rows][kSpanKeys / elements of an operand], at the first key
  const Compute<S>* correction;  // for each row
  Compute<S>* out;               // sums [rows][out_row], at the first column
  Index out_row;
  bool starts;  // nothing has been written to `out` yet
  const RowStream& stream;
  Index first, column;  // row of the stream that the first key is, and the element of it
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
  typename Products::Sums sum[M][N];
  MHA_UNROLL
  for (int i = 0; i < M * N; ++i) sum[i / N][i % N] = Products::zero();
  const S* row = static_cast<const S*>(g.rows.data);
  const Index value_row = g.rows.row / Index(sizeof(S));
  [[maybe_unused]] const float* scale = g.rows.scale;
  ReadAhead ahead(g.stream, g.first);
  const Index from = g.column * Index(sizeof(S)), to = from + N * L * Index(sizeof(S));
  const typename Products::Operand* weights = g.weights;
  const auto add_operand = [&](const S* second) MHA_INLINE_LAMBDA {
    P value[N];
    load_values<S, N>(row, second, value);
    if constexpr (kIsInt8<S>) {
      const P factor = pset1<P>(*scale++);
      MHA_UNROLL
      for (P& number : value) number = pmul(number, factor);
    }
    MHA_UNROLL
    for (int m = 0; m < M; ++m) {
      const P weight = Products::broadcast(weights + m * (kSpanKeys / kKeys));
      MHA_UNROLL
      for (int n = 0; n < N; ++n) sum[m][n] = Products::multiply_add(value[n], weight, sum[m][n]);
    }
    row += kKeys * value_row;
    ++weights;
  };
  // A block has several partial sums where they are short.
  constexpr bool kHasParts = Products::kPartialSumTerms * kKeys < kKeyBlock;
  [[maybe_unused]] alignas(kVectorBytes) T parts[L * M * N] = {};
  for (Index key = 0; key + kKeys <= g.keys; key += kKeys) {
    if constexpr (kHasParts)
      if (key > 0 && key % (Products::kPartialSumTerms * kKeys) == 0) {
        MHA_UNROLL
        for (int i = 0; i < M * N; ++i) {
          pstore(parts + i * L, padd(pload<P>(parts + i * L), Products::total(sum[i / N][i % N])));
          sum[i / N][i % N] = Products::zero();
        }
      }
    for (Index k = 0; k < kKeys; ++k) ahead.part_of_row(from, to);
    add_operand(row + value_row);
  }
  if constexpr (Operands::kJoins)
    if (g.keys % kKeys != 0)
      add_operand(kZeros<S, N * L>);  // the last operand has one key; the weight of the other is 0
  MHA_UNROLL
  for (int m = 0; m < M; ++m) {
    MHA_UNROLL
    for (int n = 0; n < N; ++n) {
      T* out = g.out + m * g.out_row + n * L;
      P total = Products::total(sum[m][n]);
      if constexpr (kHasParts) total = padd(pload<P>(parts + (m * N + n) * L), total);
      pstore(out, g.starts ? total : pmadd(pload<P>(out), pset1<P>(g.correction[m]), total));
    }
  }
}

/// Registers of a sum.
template <class S>
constexpr int kSumVectors = int(sizeof(typename ProductsOf<S>::Sums) / sizeof(Packet<Compute<S>>));

/// Most vectors of columns that merge_value_lanes takes at a time for m rows: enough independent sums to hide the
/// latency of a multiply-add, and no more than fit the registers.
template <class S>
constexpr int value_vectors(int m) {
  const int most = (kVectors == 4 ? 20 : 10) / kSumVectors<S>, least = int(OperandsOf<S>::kElements);
  return m * 8 <= most ? 8 : m * 4 <= most ? 4 : m * 2 <= most || least == 2 ? 2 : 1;
}

/// The functions for each number of rows, and for values for 8, 4, 2 and 1 vectors of columns at a time. For int8 there
/// are 1, 2 and 4 rows only: other numbers of rows convert an integer twice, which saves code. The same holds where a
/// sum takes two registers, since more rows do not fit the registers.
template <class S>
struct DecodeTable {
  void (*score[kMaxDecodeRows])(const DecodeKeys<S>&);
  void (*values[kMaxDecodeRows][4])(const DecodeValues<S>&);

  constexpr DecodeTable() : score{}, values{} { fill<1>(); }

  /// How many of `rows` rows are computed at a time. There may be unused rows after the last one.
  static constexpr int height(int rows) { return (!kIsInt8<S> && kSumVectors<S> == 1) || rows < 3 ? rows : 4; }

 private:
  template <int M>
  constexpr void fill() {
    if constexpr (kIsInt8<S>)
      score[M - 1] = &score_int8_key_lanes<M>;
    else
      score[M - 1] = &score_key_lanes<S, M>;
    fill_values<M, value_vectors<S>(M)>();
    if constexpr (M < height(kMaxDecodeRows)) fill<height(M + 1)>();
  }
  template <int M, int N>
  constexpr void fill_values() {
    values[M - 1][N == 8 ? 0 : N == 4 ? 1 : N == 2 ? 2 : 3] = &merge_value_lanes<S, M, N>;
    if constexpr (N > OperandsOf<S>::kElements) fill_values<M, N / 2>();
  }
};

}  // namespace
}  // namespace mha::MHA_ISA

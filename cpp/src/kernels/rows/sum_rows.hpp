// Sums of chosen rows, which may have factors: gradients of embedding tables, and results of experts.
#pragma once

#include "kernels/vectors/elements.hpp"

namespace mha::MHA_ISA {
namespace {

/// Columns stay in registers while the rows are added, in the order of the list.
template <class S, bool kHasFactors>
void sum_chosen_rows(const RowSelection& rows) {
  using T = Compute<S>;
  using P = Packet<T>;
  constexpr Index L = kLanes<T>;
  constexpr int kSums = 4;
  const auto row = [&](Index i) { return static_cast<const S*>(rows.rows) + rows.chosen[i] * rows.row; };
  const auto add = [&](const P& sum, const P& term, Index i) MHA_INLINE_LAMBDA {
    if constexpr (kHasFactors) return pmadd(pset1<P>(static_cast<const T*>(rows.factors)[i]), term, sum);
    return padd(sum, term);
  };
  S* const out = static_cast<S*>(rows.out);
  Index c = 0;
  for (; c + kSums * L <= rows.columns; c += kSums * L) {
    P sums[kSums];
    MHA_UNROLL
    for (int k = 0; k < kSums; ++k) sums[k] = pset1<P>(T(0));
    for (Index i = 0; i < rows.count; ++i) {
      const S* const from = row(i) + c;
      MHA_UNROLL
      for (int k = 0; k < kSums; ++k) sums[k] = add(sums[k], load_packet(from + k * L), i);
    }
    MHA_UNROLL
    for (int k = 0; k < kSums; ++k) store_packet(out + c + k * L, sums[k]);
  }
  for (; c + L <= rows.columns; c += L) {
    P sum = pset1<P>(T(0));
    for (Index i = 0; i < rows.count; ++i) sum = add(sum, load_packet(row(i) + c), i);
    store_packet(out + c, sum);
  }
  if (c == rows.columns) return;
  alignas(kVectorBytes) S lanes[L] = {};
  P sum = pset1<P>(T(0));
  for (Index i = 0; i < rows.count; ++i) {
    for (Index lane = 0; lane < rows.columns - c; ++lane) lanes[lane] = row(i)[c + lane];
    sum = add(sum, load_packet(lanes), i);
  }
  store_packet(lanes, sum);
  for (Index lane = 0; lane < rows.columns - c; ++lane) out[c + lane] = lanes[lane];
}

template <class S>
void sum_rows(const RowSelection& rows) {
  return rows.factors ? sum_chosen_rows<S, true>(rows) : sum_chosen_rows<S, false>(rows);
}

}  // namespace
}  // namespace mha::MHA_ISA

// Sums of chosen rows: gradients of embedding tables.
#pragma once

#include "kernels/vectors/elements.hpp"

namespace mha::MHA_ISA {
namespace {

/// Columns stay in registers while the rows are added, in the order of the list.
template <class S>
void sum_rows(const RowSelection& rows) {
  using T = Compute<S>;
  using P = Packet<T>;
  constexpr Index L = kLanes<T>;
  constexpr int kSums = 4;
  const auto row = [&](Index i) { return static_cast<const S*>(rows.rows) + rows.chosen[i] * rows.row; };
  S* const out = static_cast<S*>(rows.out);
  Index c = 0;
  for (; c + kSums * L <= rows.columns; c += kSums * L) {
    P sums[kSums];
    MHA_UNROLL
    for (int k = 0; k < kSums; ++k) sums[k] = pset1<P>(T(0));
    for (Index i = 0; i < rows.count; ++i) {
      const S* const from = row(i) + c;
      MHA_UNROLL
      for (int k = 0; k < kSums; ++k) sums[k] = padd(sums[k], load_packet(from + k * L));
    }
    MHA_UNROLL
    for (int k = 0; k < kSums; ++k) store_packet(out + c + k * L, sums[k]);
  }
  for (; c + L <= rows.columns; c += L) {
    P sum = pset1<P>(T(0));
    for (Index i = 0; i < rows.count; ++i) sum = padd(sum, load_packet(row(i) + c));
    store_packet(out + c, sum);
  }
  for (; c < rows.columns; ++c) {
    T sum = 0;
    for (Index i = 0; i < rows.count; ++i) sum += load_element(row(i) + c);
    store_element(out + c, sum);
  }
}

}  // namespace
}  // namespace mha::MHA_ISA

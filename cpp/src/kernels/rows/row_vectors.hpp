// Rows of any number of columns, as vectors: loads and stores that touch nothing outside the row, and sums over it.
#pragma once

#include "kernels/vectors/elements.hpp"

namespace mha::MHA_ISA {
namespace {

/// A sum over the columns of a row: whole vector v is added to partial sum v mod kParts, the columns after the last
/// whole vector to a sum of their own. total() adds the partial sums in pairs.
template <class T>
struct RowSum {
  static constexpr int kParts = 4;  // as many additions at a time as hide the latency of one
  Packet<T> parts[kParts + 1];

  RowSum() {
    MHA_UNROLL
    for (int part = 0; part <= kParts; ++part) parts[part] = pset1<Packet<T>>(T(0));
  }
  MHA_INLINE T total() const {
    return predux(padd(padd(padd(parts[0], parts[1]), padd(parts[2], parts[3])), parts[kParts]));
  }
};

/// Squares whose mean is so small have lost terms to underflow, 2^-126 and 2^-1022 each: more than 2^-26 and 2^-62 of
/// it. `down` brings back rows whose squares overflow, `up` those that are too small, and neither goes too far.
template <class T>
struct SquareLimits {
  static constexpr bool kIsDouble = sizeof(T) == sizeof(double);
  static constexpr double least = kIsDouble ? 0x1p-960 : 0x1p-100;
  static constexpr double down = kIsDouble ? 0x1p-600 : 0x1p-80, up = kIsDouble ? 0x1p512 : 0x1p64;
};

/// The vectors of a row of `columns` elements.
template <class S>
class RowVectors {
  using T = Compute<S>;
  using P = Packet<T>;
  static constexpr Index L = kLanes<T>;
  static constexpr int kParts = RowSum<T>::kParts;

 public:
  explicit RowVectors(Index columns)
      : whole_(columns / L * L), rest_(columns - whole_), in_rest_(pcmp_lt(plset<P>(T(0)), pset1<P>(T(rest_)))) {}

  // A vector of columns is Whole, or it is the Rest: the last columns, fewer than a vector. Those go through a buffer,
  // so that nothing outside the row is read or written; the other lanes hold 0.
  struct Whole {};
  struct Rest {};
  MHA_INLINE P load(const S* at, Whole) const { return load_packet(at); }
  MHA_INLINE P load(const S* at, Rest) const {
    alignas(kVectorBytes) S lanes[L] = {};
    for (Index i = 0; i < rest_; ++i) lanes[i] = at[i];
    return load_packet(lanes);
  }
  MHA_INLINE void store(S* at, const P& value, Whole) const { store_packet(at, value); }
  MHA_INLINE void store(S* at, const P& value, Rest) const {
    alignas(kVectorBytes) S lanes[L];
    store_packet(lanes, value);
    for (Index i = 0; i < rest_; ++i) at[i] = lanes[i];
  }
  MHA_INLINE P without_padding(const P& value, Whole) const { return value; }
  MHA_INLINE P without_padding(const P& value, Rest) const { return pand(value, in_rest_); }

  /// Calls visit(column, partial sum, Whole or Rest) for every vector of a row.
  template <class Visit>
  MHA_INLINE void for_each_vector(Visit visit) const {
    Index column = 0;
    for (; column + kParts * L <= whole_; column += kParts * L) {
      MHA_UNROLL
      for (int part = 0; part < kParts; ++part) visit(column + part * L, part, Whole());
    }
    MHA_UNROLL
    for (int part = 0; part < kParts - 1; ++part)
      if (column + (part + 1) * L <= whole_) visit(column + part * L, part, Whole());
    if (rest_ > 0) visit(whole_, kParts, Rest());
  }

 private:
  Index whole_, rest_;  // columns in whole vectors; columns after them
  P in_rest_;           // all bits set in the lanes of the rest
};

}  // namespace
}  // namespace mha::MHA_ISA

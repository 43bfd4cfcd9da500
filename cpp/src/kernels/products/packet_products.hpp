// Products of numbers: the multiply-add of Eigen's packets, one product for each lane.
#pragma once

#include "kernels/products/packet_tile.hpp"
#include "kernels/vectors/elements.hpp"

namespace mha::MHA_ISA {
namespace {

template <class T>
struct PacketProducts {
  using Operand = T;
  using PanelOperand = T;
  using Vector = Packet<T>;
  using Sum = T;
  using Sums = Packet<T>;
  using Tile = PacketTile<PacketProducts>;
  struct State {};  // vector registers need none

  static constexpr Index kElements = 1;

  /// Longer sums are added up from partial sums of so many terms, which brings the rounding error of n terms from about
  /// sqrt(n / 2) units in the last place down to sqrt(kPartialSumTerms / 2 + n / (2 kPartialSumTerms)): at n = 512 from
  /// 16 to 8, where a matrix product of NumPy, with partial sums of some 300 terms, has 12. It costs 1.5 % of the time;
  /// 64 terms would cost 3 %.
  static constexpr Index kPartialSumTerms = 128;

  MHA_INLINE static Packet<T> load(const T* from) { return pload<Packet<T>>(from); }
  MHA_INLINE static void store(T* to, const Packet<T>& operands) { pstore(to, operands); }
  MHA_INLINE static Packet<T> broadcast(const T* from) { return pset1<Packet<T>>(*from); }
  MHA_INLINE static Packet<T> multiply_add(const Packet<T>& a, const Packet<T>& b, const Packet<T>& c) {
    return pmadd(a, b, c);
  }
  MHA_INLINE static Packet<T> zero() { return pset1<Packet<T>>(T(0)); }
  MHA_INLINE static Packet<T> total(const Packet<T>& sums) { return sums; }
};

/// Elements of type S as numbers: converted, if they are not numbers already.
template <class S>
struct NumberOperands {
  using T = Compute<S>;
  using Products = PacketProducts<T>;
  using Operand = T;
  static constexpr Index kElements = Products::kElements, kGroup = 1;
  static constexpr bool kJoins = false;
  static constexpr bool kConverts = sizeof(S) != sizeof(T);

  static constexpr bool lie_ready(Index, Index, Index) { return !kConverts; }
  static constexpr Index count(Index elements) { return elements; }
  MHA_INLINE static Packet<T> load(const S* from) { return load_packet(from); }
  MHA_INLINE static Operand load_one(const S* from, Index, Index) { return load_element(from); }
  MHA_INLINE static void load_columns(const S* row, const S*, Packet<T>* columns) { columns[0] = load_packet(row); }
};

}  // namespace
}  // namespace mha::MHA_ISA

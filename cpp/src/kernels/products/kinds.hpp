// The kinds of products, and the kind for each element type. A new kind is a file in this folder and a line below
// (docs/adding.md).
//
// A kind is a struct without data, and a template argument of all code that multiplies:
//
//   Operand             the first factor in memory, which is broadcast: a number, or a pair of bf16
//   PanelOperand        the same of the second factor, of which whole vectors are loaded; most kinds have one for both
//   kElements           elements in an operand, neighbours in the direction of the sum
//   Vector              operands in registers, one for each lane of sums
//   Sum, Sums           the accumulator of products; a vector of it, or several whose sum is in total()
//   load, store         a vector of operands
//   broadcast           one operand, to all lanes
//   multiply_add        a * b + c in each lane, with the bits of Tile: decode multiplies with these alone
//   zero, total         sums of nothing; the number that sums stand for
//   kPartialSumTerms    operands after which a long sum begins a new partial sum
//   Tile                how products fill the registers: rows(n), kMostRows, multiply() and multiply_long(), as in
//                       packet_tile.hpp
//   State               for kinds that attention uses: constructed before keys are scored and destroyed afterwards; it
//                       sets up and releases registers, which matrix units need
//
// How elements in memory become operands is a second struct:
//
//   Products            the kind
//   kGroup              sums of keys or features are cut at multiples of this number of elements
//   kJoins              whether an operand is of several elements
//   kConverts           whether there are elements that are no operands as they lie
//   lie_ready           whether rows of `columns` elements, `row` and `step` apart, are operands as they lie
//   count               operands of so many elements, whole groups of them
//   load                kLanes operands of elements that lie next to each other, at any address
//   load_one            the operand of `left` or more elements, `step` apart; of none, zeros
//   load_columns        kElements vectors of operands down the columns of kElements rows
//   join_rows           where kJoins: operands down the columns of rows, two by two; zeros follow an odd number of rows
#pragma once

#include "kernels/products/packet_products.hpp"
#include "kernels/products/pair_products.hpp"
#include "kernels/products/tile_products.hpp"

namespace mha::MHA_ISA {
namespace {

/// How elements of type S become operands, and of which kind.
template <class S>
struct OperandsOf : NumberOperands<S> {};

/// How numbers become operands of the kind that elements of type S become: queries of a tile that is_wide.
template <class S>
struct OperandsOfNumbers : NumberOperands<Compute<S>> {};

#if defined(MHA_TILES)
template <>
struct OperandsOf<BFloat16> : TileOperands {};
template <>
struct OperandsOfNumbers<BFloat16> : RoundedTileOperands {};
#elif defined(MHA_PAIRS)
template <>
struct OperandsOf<BFloat16> : PairOperands<PairProducts, PairProducts::kElements> {};
template <>
struct OperandsOfNumbers<BFloat16> : RoundedPairOperands<PairProducts, PairProducts::kElements> {};
#endif

template <class S>
using ProductsOf = typename OperandsOf<S>::Products;

/// Whether products of this kind have the bits of tiles, and are multiplied by tiles where there are enough.
template <class Products>
constexpr bool kHasTiles = false;
#ifdef MHA_TILES
template <>
constexpr bool kHasTiles<TileProducts> = true;
#endif
/// Columns of values, as sums have them: whole tiles of columns where tiles multiply.
template <class Products>
constexpr Index value_columns(Index value_dim) {
#ifdef MHA_TILES
  if (kHasTiles<Products>) return (value_dim + kTileRows - 1) / kTileRows * kTileRows;
#endif
  return value_dim;
}

/// Whether vectors of sums are as wide as tiles; else a part of a tile's columns is left to vectors.
constexpr bool kVectorsFillTiles = kLanes<float> == 16;

/// A vector of sums to which products are added one by one, in the order of the other kernels.
template <class Products>
struct LongSum {
  using P = Packet<typename Products::Sum>;
  typename Products::Sums sums = Products::zero();
  P parts = pset1<P>(0);
  Index terms = 0;

  MHA_INLINE void add(const typename Products::Vector& a, const typename Products::Vector& b) {
    if (terms == Products::kPartialSumTerms) {
      parts = padd(parts, Products::total(sums));
      sums = Products::zero();
      terms = 0;
    }
    sums = Products::multiply_add(a, b, sums);
    ++terms;
  }
  MHA_INLINE P total() const { return padd(parts, Products::total(sums)); }
};

/// Operands from one row to the next where rows are converted: whole vectors.
template <class S>
constexpr Index operand_row(Index columns) {
  constexpr Index L = kLanes<Compute<S>>;
  return (OperandsOf<S>::count(columns) + L - 1) / L * L;
}

/// The operands of a row of elements; `to` [operand_row(columns)], aligned to vectors.
template <class S>
void convert_row(const S* from, Index step, Index columns, typename OperandsOf<S>::Operand* to) {
  using Operands = OperandsOf<S>;
  constexpr Index L = kLanes<Compute<S>>;
  Index c = 0;
  if (step == 1)
    for (; (c + L) * Operands::kElements <= columns; c += L)
      Operands::Products::store(to + c, Operands::load(from + c * Operands::kElements));
  for (; c < Operands::count(columns); ++c) {
    const Index at = c * Operands::kElements;
    to[c] = Operands::load_one(from + at * step, step, columns - at);
  }
}

}  // namespace
}  // namespace mha::MHA_ISA

// The kinds of products, and which of them elements of each type take. A new kind is a file beside this one and a line
// below (docs/adding.md).
//
// A kind is a struct without data that everything which multiplies takes as a template argument:
//
//   Operand             what the first factor is in memory, which is broadcast: a number, or a pair of bf16
//   PanelOperand        the same of the second factor, of which whole vectors are loaded; most kinds have one for both
//   kElements           elements in an operand, neighbours in the direction of the sum
//   Vector              operands in registers, one for each lane of sums
//   Sum, Sums           what products are added up in; a vector of it
//   load, store         a vector of operands
//   broadcast           one operand, to all lanes
//   multiply_add        a * b + c in each lane, with the bits of Tile: decode multiplies with these alone
//   kPartialSumTerms    operands after which a long sum begins a new partial sum
//   Tile                how products fill the registers: rows(n), kMostRows, multiply() and multiply_long(), as in
//                       packet_tile.hpp
//   State               made at the begin of a kernel call and destroyed at its end: registers that must be set up and
//                       released, as matrix units have them
//
// How elements in memory become operands is a second struct:
//
//   Products            the kind
//   kJoins              whether an operand is of several elements
//   kConverts           whether there are elements that are no operands as they lie
//   lie_ready           whether rows of `columns` elements, `row` and `step` apart, are operands as they lie
//   count               operands of so many elements
//   load                kLanes operands of elements that lie next to each other, at any address
//   load_one            the operand of `left` or more elements, `step` apart
//   load_columns        kElements vectors of operands down the columns of kElements rows
//   join_rows           where kJoins: operands down all columns of two rows, the second one null if there is none
#pragma once

#include "kernels/products/packet_products.hpp"
#include "kernels/products/pair_products.hpp"

namespace mha::MHA_ISA {
namespace {

/// How elements of type S become operands, and of which kind.
template <class S>
struct OperandsOf : NumberOperands<S> {};

/// How numbers become operands of the kind that elements of type S become: queries of a tile that is_wide.
template <class S>
struct OperandsOfNumbers : NumberOperands<Compute<S>> {};

#ifdef __AVX512BF16__
template <>
struct OperandsOf<BFloat16> : PairOperands {};
template <>
struct OperandsOfNumbers<BFloat16> : RoundedPairOperands {};
#endif

template <class S>
using ProductsOf = typename OperandsOf<S>::Products;

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

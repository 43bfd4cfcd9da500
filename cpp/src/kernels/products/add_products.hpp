// Adds a product to sums in memory: C += A B, with the columns of C and B in the lanes.
//
// A is read by broadcast, along its rows or down its columns, so neither P nor dS of attention is transposed for its
// gradient, nor are rows for the gradient of a linear map. B has rows of neighbouring numbers, at any address.
//
// Numerics: an element of A B is summed from 0 in the order of the depth, and then added.
#pragma once

#include "kernels/products/packet_products.hpp"
#include "kernels/products/strips.hpp"

namespace mha::MHA_ISA {
namespace {

/// Products of numbers whose panels lie at any address.
template <class T>
struct LooseProducts : PacketProducts<T> {
  using Tile = PacketTile<LooseProducts>;
  MHA_INLINE static Packet<T> load(const T* from) { return ploadu<Packet<T>>(from); }
};

template <class Products>
struct FeatureArguments {
  using T = typename Products::Sum;
  Index depth;
  const T* a;  // read by broadcast
  Index a_row, a_step;
  const T* b;  // rows of features
  Index b_row;
  T* out;
  Index out_row;
  bool starts;  // nothing has been written to `out` yet
};

/// M rows of out += A B, N vectors of features wide.
template <class Products, int M, int N>
struct AddFeatures {
  static void run(const FeatureArguments<Products>& g, Index row) {
    using T = typename Products::Sum;
    using P = Packet<T>;
    constexpr Index L = kLanes<T>;
    T* out = g.out + row * g.out_row;
    Products::Tile::template multiply<M, N>(
        g.depth, g.a + row * g.a_row, g.a_row, g.a_step, g.b, g.b_row,
        [](int, int) MHA_INLINE_LAMBDA { return pset1<P>(T(0)); },
        [&](int i, int j, const P& sum) MHA_INLINE_LAMBDA {
          T* o = out + i * g.out_row + j * L;
          pstore(o, g.starts ? sum : padd(pload<P>(o), sum));
        });
  }
};

/// out += A B for `columns` features, up to the end of their last vector.
template <class T>
void add_products(Index rows, Index columns, FeatureArguments<LooseProducts<T>> g, const Upcoming& upcoming = {}) {
  static constexpr StripTable<AddFeatures, LooseProducts<T>, FeatureArguments<LooseProducts<T>>> table;
  constexpr Index L = kLanes<T>;
  const Index vectors = (columns + L - 1) / L;
  for (Index first = 0; first < vectors; first += kVectors) {
    table(int(vectors - first < kVectors ? vectors - first : kVectors), rows, g, first == 0 ? upcoming : Upcoming{});
    g.b += kWidth<T>;
    g.out += kWidth<T>;
  }
}

/// The kernel of a ProductTile.
template <class T>
void add_tile(const ProductTile& tile) {
  add_products<T>(tile.rows, tile.columns,
                  {tile.depth, static_cast<const T*>(tile.a), tile.a_row, tile.a_step, static_cast<const T*>(tile.b),
                   tile.b_row, static_cast<T*>(tile.out), tile.out_row, tile.starts});
}

}  // namespace
}  // namespace mha::MHA_ISA

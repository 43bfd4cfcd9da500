// The softmax weights of one tile, written out: out = softmax(scores).
//
// Two passes over the keys: the first finds the maximum and the sum of each row, the second computes the scores again
// and writes the weights. Scores are computed twice so that nothing of size Tk is kept but the result, and so that a
// weight has the bits that attend_tile.hpp multiplies values by, apart from the division by the sum.
#pragma once

#include "kernels/attention/softmax_tile.hpp"

namespace mha::MHA_ISA {
namespace {

template <class S, class Element>
void write_weights_as(const AttentionTile& tile, void* scratch) {
  using T = Compute<S>;
  constexpr Index L = kLanes<T>;
  Element zero;
  store_element(&zero, T(0));
  Element* rows[kMaxTileRows];
  for (int r = 0; r < tile.rows; ++r) {
    rows[r] = static_cast<Element*>(tile.out[r]);
    for (Index key = 0; key < tile.key_length; ++key) rows[r][key * tile.out_step] = zero;
  }
  SoftmaxTile<S> scores(tile, static_cast<T*>(scratch));
  scores.find_sums();
  Packet<T> normalizers[kVectors];
  for (int j = 0; j < scores.vectors(); ++j) normalizers[j] = scores.normalizer(j);
  scores.for_each_block([&](const KeyBlock& block) {
    scores.score(block);
    const T* masked = block.is_masked ? scores.mark_masked(block) : nullptr;
    for (int j = 0; j < scores.vectors(); ++j) {
      scores.exponentiate_in_place(block, j);
      const Index first = scores.first_in(block, j), columns = scores.last_in(block, j) - first;
      const Index count = tile.rows - j * L < L ? tile.rows - j * L : L;
      // In a row whose sum is NaN a masked weight is still 0. It is selected, since 0 times NaN would be NaN.
      if (masked) scores.normalize(block, j, normalizers[j], masked);
      store_transposed<Element>(scores.scores() + (first - block.begin) * kWidth<T> + j * L, kWidth<T>,
                                masked ? pset1<Packet<T>>(T(1)) : normalizers[j], rows + j * L, count, first, columns,
                                tile.out_step);
    }
  });
}

template <class S>
void write_weights(const AttentionTile& tile, void* scratch) {
  if (tile.is_wide)
    write_weights_as<S, Compute<S>>(tile, scratch);
  else
    write_weights_as<S, S>(tile, scratch);
}

}  // namespace
}  // namespace mha::MHA_ISA

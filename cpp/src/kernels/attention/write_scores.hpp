// The scores of one tile as the softmax takes them, written out: scaled, capped, biased, and minus infinity where a key
// is masked. One pass over the keys. Blocks that no row of the tile sees are filled with minus infinity.
#pragma once

#include "kernels/attention/softmax_tile.hpp"

namespace mha::MHA_ISA {
namespace {

template <class S, class Element>
void write_scores_as(const AttentionTile& tile, void* scratch) {
  using T = Compute<S>;
  constexpr Index L = kLanes<T>;
  Element nothing;
  store_element(&nothing, -kInfinity<T>);
  Element* rows[kMaxTileRows];
  for (int r = 0; r < tile.rows; ++r) {
    rows[r] = static_cast<Element*>(tile.out[r]);
    for (Index key = 0; key < tile.key_length; ++key) rows[r][key * tile.out_step] = nothing;
  }
  SoftmaxTile<S> scores(tile, static_cast<T*>(scratch));
  scores.for_each_block([&](const KeyBlock& block) {
    scores.score(block);
    for (int j = 0; j < scores.vectors(); ++j) {
      const Index first = scores.first_in(block, j), columns = scores.last_in(block, j) - first;
      const Index count = tile.rows - j * L < L ? tile.rows - j * L : L;
      store_transposed<Element>(scores.scores() + (first - block.begin) * kWidth<T> + j * L, kWidth<T>,
                                scores.score_scale(), rows + j * L, count, first, columns, tile.out_step);
    }
  });
}

template <class S>
void write_scores(const AttentionTile& tile, void* scratch) {
  if (tile.is_wide)
    write_scores_as<S, Compute<S>>(tile, scratch);
  else
    write_scores_as<S, S>(tile, scratch);
}

}  // namespace
}  // namespace mha::MHA_ISA

// The weights of a feed-forward network, packed.
#pragma once

#include "mha/activation.hpp"
#include "mha/transformer.hpp"
#include "weights/packed_linear.hpp"

namespace mha {

struct PackedFeedForward {
  PackedFeedForward(const FeedForwardWeights& w, Activation function, WeightFormat format)
      : activation(function),
        up(w.up, w.up.weight.extents[0], format),
        down(w.down, w.down.weight.extents[0], format) {}

  void unpack(const FeedForward::WeightOutputs& outputs) const {
    up.unpack(outputs.up);
    down.unpack(outputs.down);
  }

  /// Multiply-adds of a call with so many rows: PackedLinear::work() of both projections.
  double work(double rows) const { return up.work(rows) + down.work(rows); }

  Activation activation;
  PackedLinear up, down;  // [F, E], [E, F]
};

}  // namespace mha

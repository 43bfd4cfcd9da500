// The weights of a feed-forward network, packed.
#pragma once

#include "mha/activation.hpp"
#include "mha/transformer.hpp"
#include "weights/packed_linear.hpp"

namespace mha {

struct PackedFeedForward {
  PackedFeedForward(const FeedForwardWeights& w, Activation function, WeightFormat format)
      : activation(function),
        up(w.weight1, w.bias1, w.weight1.extents[0], format, w.scale1),
        down(w.weight2, w.bias2, w.weight2.extents[0], format, w.scale2) {}

  /// Multiply-adds of a call with so many rows: PackedLinear::work() of both projections.
  double work(double rows) const { return up.work(rows) + down.work(rows); }

  Activation activation;
  PackedLinear up, down;  // [F, E], [E, F]
};

}  // namespace mha

// The weights of a feed-forward network, packed.
#pragma once

#include <optional>

#include "mha/activation.hpp"
#include "mha/transformer.hpp"
#include "weights/packed_linear.hpp"

namespace mha {

struct PackedFeedForward {
  PackedFeedForward(const FeedForwardWeights& w, Activation function, WeightFormat format)
      : activation(function), up(w.up, w.up.out_features(), format), down(w.down, w.down.out_features(), format) {
    if (w.gate.weight) gate.emplace(w.gate, w.gate.out_features(), format);
  }

  void unpack(const FeedForward::WeightOutputs& outputs) const {
    up.unpack(outputs.up);
    down.unpack(outputs.down);
    if (gate) gate->unpack(outputs.gate);
  }

  /// Whether all matrices have the formats of the matrices of another network.
  bool has_formats_of(const PackedFeedForward& other) const {
    return up.format() == other.up.format() && down.format() == other.down.format() &&
           gate_format() == other.gate_format();
  }
  WeightFormat gate_format() const { return gate ? gate->format() : up.format(); }

  /// Multiply-adds of a call with so many rows: PackedLinear::work() of all projections.
  double work(double rows) const { return up.work(rows) + down.work(rows) + (gate ? gate->work(rows) : 0); }

  Activation activation;
  PackedLinear up, down;             // [F, E], [E, F]
  std::optional<PackedLinear> gate;  // [F, E]
};

}  // namespace mha

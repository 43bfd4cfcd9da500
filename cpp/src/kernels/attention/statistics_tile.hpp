// Statistics of the softmax weights of one tile, which are never stored: entropy, largest weight and its key, mean
// distance, and the sum of the weights that each key receives. Two passes over the keys, as in write_weights.hpp: the
// first finds the maximum and the sum of each row, the second computes the scores again and reads each weight once. It
// has the bits that write_weights() would have written.
//
// Entropy: a weight is w = 2^t c, where t <= 0 is the score minus the largest score in units of log 2, and c = 1 / sum.
// So
//   -sum w log w = -log 2 sum w t - log c sum w.
// Neither term is negative, so nothing cancels. Sums over the keys are made block by block, as in attend_tile.hpp.
//
// The weight that a key receives is summed row by row, in the order of the rows, in double precision. So it depends
// neither on where tiles end nor on the width of a vector.
#pragma once

#include <math.h>
#include <stdint.h>

#include "kernels/attention/softmax_tile.hpp"

namespace mha::MHA_ISA {
namespace {

/// sums[i] += terms[i]
template <class T>
void add_to_sums(double* __restrict__ sums, const T* __restrict__ terms, Index count) {
  for (Index i = 0; i < count; ++i) sums[i] += double(terms[i]);
}

template <class S>
class StatisticsTile {
 public:
  using T = Compute<S>;
  static constexpr Index L = kLanes<T>;
  using P = Packet<T>;

  StatisticsTile(const AttentionTile& tile, const StatisticsOutputs& outputs, void* scratch)
      : tile_(tile), outputs_(outputs), scores_(tile, static_cast<T*>(scratch)) {}

  void run() {
    scores_.find_sums();
    const P zero = pset1<P>(T(0));
    for (int j = 0; j < scores_.vectors(); ++j) sums_[j] = {scores_.normalizer(j), zero, zero, zero, zero};
    for (int64_t& key : max_key_) key = -1;
    scores_.for_each_block([&](const KeyBlock& block) {
      scores_.score(block);
      const T* masked = block.is_masked ? scores_.mark_masked(block) : nullptr;
      for (int j = 0; j < scores_.vectors(); ++j) add_block(block, j, masked);
    });
    store();
  }

 private:
  /// Sums of the rows of one vector, over the keys so far.
  struct Sums {
    P normalizer, weight;
    P log_weight;  // weight times log2 of the weight relative to the largest one
    P distance;    // weight times distance
    P largest;
  };

  /// `masked`: the result of mark_masked(); null if the block is not masked.
  void add_block(const KeyBlock& block, int j, const T* masked) {
    const Index first = scores_.first_in(block, j), last = scores_.last_in(block, j);
    if (first >= last) return;
    Sums& total = sums_[j];
    const P zero = pset1<P>(T(0)), nowhere = pset1<P>(T(-1));
    const P position = positions(block.begin, j);
    P weights = zero, log_weights = zero, distances = zero, largest = total.largest, largest_at = nowhere;
    alignas(kVectorBytes) T by_key[kKeyBlock * L];
    for (Index i = first - block.begin; i < last - block.begin; ++i) {
      const Index element = i * kWidth<T> + j * L;
      const P at = pset1<P>(T(i)), log2_weight = scores_.log2_weight(pload<P>(scores_.scores() + element), j);
      P weight = pmul(weight_of<S>(log2_weight), total.normalizer);
      // Selections: the weight of a masked key is 0 even in a row whose sum is NaN, and 0 log 0 counts as 0.
      if (masked) weight = pandnot(weight, pload<P>(masked + element));
      weights = padd(weights, weight);
      log_weights = padd(log_weights, pandnot(pmul(weight, log2_weight), pcmp_eq(weight, zero)));
      distances = pmadd(weight, pabs(psub(position, at)), distances);
      const P is_larger = pcmp_lt(largest, weight);
      largest = pselect(is_larger, weight, largest);
      largest_at = pselect(is_larger, at, largest_at);
      pstore(by_key + i * L, weight);
    }
    total.weight = padd(total.weight, weights);
    total.log_weight = padd(total.log_weight, log_weights);
    total.distance = padd(total.distance, distances);
    total.largest = largest;
    move_max_key(largest_at, block.begin, j);
    if (outputs_.received) add_received(by_key + (first - block.begin) * L, first, last - first, j);
  }

  /// The positions of the rows of vector j relative to key `begin`, the begin of a block. That is the same key whatever
  /// the other rows are, so distances are rounded alike.
  P positions(Index begin, int j) const {
    alignas(kVectorBytes) T lanes[L];
    for (Index r = 0; r < L; ++r) {
      const Index row = j * L + r < tile_.rows ? j * L + r : tile_.rows - 1;
      lanes[r] = T(tile_.position[row] - begin);
    }
    return pload<P>(lanes);
  }

  void move_max_key(const P& largest_at, Index begin, int j) {
    alignas(kVectorBytes) T lanes[L];
    pstore(lanes, largest_at);
    for (Index r = 0; r < L; ++r)
      if (lanes[r] >= T(0)) max_key_[j * L + r] = begin + Index(lanes[r]);
  }

  /// Adds the weights of vector j, by_key [keys][kLanes], to the received weights of keys from `first` on, row after
  /// row.
  void add_received(const T* by_key, Index first, Index keys, int j) {
    alignas(kVectorBytes) T lines[L][kKeyBlock];
    T* rows[L];
    for (Index r = 0; r < L; ++r) rows[r] = lines[r];
    const Index count = tile_.rows - j * L < L ? tile_.rows - j * L : L;
    store_transposed<T>(by_key, L, pset1<P>(T(1)), rows, count, 0, keys, 1);
    for (Index r = 0; r < count; ++r) add_to_sums(outputs_.received + first, lines[r], keys);
  }

  void store() const {
    for (int r = 0; r < tile_.rows; ++r) {
      const Sums& total = sums_[r / L];
      const Index lane = r % L;
      const double weight = double(lane_of(total.weight, lane));
      // A row that sees no key has the weight 0 and a normalizer of 0, whose logarithm does not count.
      const double log_of_largest = weight == 0 ? 0 : ::log(double(lane_of(total.normalizer, lane)));
      const double entropy = -(0.6931471805599453 * double(lane_of(total.log_weight, lane)) + weight * log_of_largest);
      const bool is_number = weight == weight;     // else no comparison found a largest weight
      put(outputs_.entropy[r], T(entropy + 0.0));  // never minus zero
      put(outputs_.max_weight[r], is_number ? lane_of(total.largest, lane) : T(weight));
      put(outputs_.mean_distance[r], lane_of(total.distance, lane));
      if (outputs_.max_key[r]) *outputs_.max_key[r] = max_key_[r];
    }
  }

  static T lane_of(const P& packet, Index lane) {
    alignas(kVectorBytes) T lanes[L];
    pstore(lanes, packet);
    return lanes[lane];
  }

  static void put(void* target, T number) {
    if (target) *static_cast<T*>(target) = number;
  }

  const AttentionTile& tile_;
  const StatisticsOutputs& outputs_;
  SoftmaxTile<S> scores_;
  Sums sums_[kVectors];
  int64_t max_key_[kMaxTileRows];
};

}  // namespace
}  // namespace mha::MHA_ISA

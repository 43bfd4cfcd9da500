// Statistics of the softmax weights, without storing the weights: entropy, maximum and mean distance of each row, and
// the weight that each key receives.
#pragma once

#include <cstdint>

#include "mha/attention.hpp"

namespace mha {

/// Where the statistics of the weights w_ij of query i and key j go. Each may be left out. Of the dtype of lse (f64 for
/// f64, else f32), but for max_key. All are functions of the weights that attention_weights() gives: with sinks these
/// sum to 1 less the weight of the sink, which counts nowhere here.
struct AttentionStatistics {
  /// [B, H, Tq]: -sum_j w_ij log w_ij, in nats.
  MutableTensorView entropy = {};
  /// [B, H, Tq]: the largest weight of the row.
  MutableTensorView max_weight = {};
  /// [B, H, Tq], dense, or null: the first key that has it; -1 if no key has any weight, or some weight is NaN.
  std::int64_t* max_key = nullptr;
  /// [B, H, Tq]: sum_j w_ij |query_offset + i - j|.
  MutableTensorView mean_distance = {};
  /// [B, H, Tk]: sum_i w_ij.
  MutableTensorView received_weight = {};
};

/// Statistics of softmax(scale * query key^T + masks), which is not stored: the results aside, memory is O(Tk) for each
/// thread.
///
/// @param query   [B, H, Tq, D], or [H, Tq, D], or [Tq, D]; any strides
/// @param key     [B, Hk, Tk, D]
/// @param results written whole; must not overlap an input, nor one another
///
/// A row that sees no key has zeros and a max_key of -1. A head is one task: no more threads work than there are heads
/// in the batch. Safe to call from several threads at once.
/// @throws std::invalid_argument, DTypeError, AllocationError before anything is written
MHA_API void attention_statistics(const TensorView& query, const TensorView& key, const AttentionStatistics& results,
                                  const AttentionOptions& options = {});
/// The same over the keys of a cache, as scaled_dot_product_attention() has it.
MHA_API void attention_statistics(const TensorView& query, const KVCache& cache, const AttentionStatistics& results,
                                  const AttentionOptions& options = {});

}  // namespace mha

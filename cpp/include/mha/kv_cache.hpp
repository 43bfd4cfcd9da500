// Keys and values of the tokens so far, in memory of a fixed size: what a decoder attends to step by step.
#pragma once

#include <cstdint>
#include <memory>

#include "mha/errors.hpp"
#include "mha/export.h"
#include "mha/tensor_view.hpp"

namespace mha {

/// Sizes of a cache. The dtype is any in which attention computes.
struct KVCacheConfig {
  Index batch_size = 1;      // B: sequences
  Index num_kv_heads = 1;    // Hk
  Index capacity = 0;        // most tokens of a sequence
  Index head_dim = 1;        // D
  Index value_head_dim = 0;  // Dv; 0: D
  DType dtype = DType::f32;
};

/// Preallocated keys [B, Hk, capacity, D] and values [B, Hk, capacity, Dv], dense and aligned to 64 bytes. Sequence b
/// holds lengths()[b] tokens, the oldest first; what lies behind them is not set. Attend to them with
///
///     options.key_lengths = cache.lengths();
///     options.query_offsets = ...  // lengths() before the tokens of the query were appended
///     scaled_dot_product_attention(query, cache.keys(), cache.values(), out, {}, options);
///
/// The memory is taken from the operating system as it is first written to, and it never moves. Whatever fails, fails
/// before anything is changed. One call at a time may use a cache; calls that only read it may go on side by side.
class MHA_API KVCache {
 public:
  /// @throws std::invalid_argument, DTypeError, AllocationError
  explicit KVCache(const KVCacheConfig& config);
  ~KVCache();
  KVCache(KVCache&&) noexcept;
  KVCache& operator=(KVCache&&) noexcept;

  /// The sizes with every zero resolved.
  const KVCacheConfig& config() const;
  /// [B, Hk, capacity, D], all of the memory; so is values(), [B, Hk, capacity, Dv].
  TensorView keys() const;
  TensorView values() const;
  MutableTensorView keys();
  MutableTensorView values();
  /// [B]: tokens of each sequence. The pointer stays valid, what it points to changes.
  const std::int64_t* lengths() const;
  /// The largest of lengths(); or what it will be once `count` tokens, or the first new_lengths[b] of them, are
  /// appended.
  Index longest(Index count = 0, const std::int64_t* new_lengths = nullptr) const;

  /// Copies tokens behind those of each sequence.
  ///
  /// @param key         [B, Hk, T, D], missing leading axes have length 1; any strides; must not overlap the cache
  /// @param value       [B, Hk, T, Dv]
  /// @param new_lengths [B] or null: sequence b takes the first new_lengths[b] of the T tokens only
  /// @throws std::invalid_argument if a sequence would outgrow the capacity
  void append(const TensorView& key, const TensorView& value, const std::int64_t* new_lengths = nullptr);
  /// The same without the copy: counts tokens as appended that the caller has written through keys() and values(),
  /// `count` of them or new_lengths[b] <= count.
  void advance(Index count, const std::int64_t* new_lengths = nullptr);
  /// Replaces everything: clear() and append(), or nothing at all.
  void assign(const TensorView& key, const TensorView& value, const std::int64_t* new_lengths = nullptr);

  /// Forgets the newest `count` tokens of each sequence, or counts[b] of sequence b: drafts that were rejected.
  void rollback(std::int64_t count);
  void rollback(const std::int64_t* counts);
  /// Sequence b becomes what sequence index[b] was: beams that live on, each as often as it is named. Only tokens are
  /// moved, and nothing for index[b] = b.
  void reorder(const std::int64_t* index);
  /// Forgets the oldest tokens of sequences that hold more than `count`. Positions count from the oldest token left,
  /// and masks and biases see differences of positions only. Each call moves what stays, so it should free many tokens
  /// at once: at twice the window as capacity a token is moved once on average.
  void keep_last(std::int64_t count);
  /// Forgets everything.
  void clear();

 private:
  struct MHA_LOCAL Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mha

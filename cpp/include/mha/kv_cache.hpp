// A key-value cache: keys and values of the tokens so far, in memory of a fixed size, for decoding step by step.
#pragma once

#include <cstdint>
#include <memory>

#include "mha/errors.hpp"
#include "mha/export.h"
#include "mha/tensor_view.hpp"

namespace mha {

class CacheStorage;

/// Sizes of a cache. The dtype is any in which attention computes, or int8: numbers of float32 as integers, with one
/// scale of float32 for each row of a head.
struct KVCacheConfig {
  Index batch_size = 1;      // B: sequences
  Index num_kv_heads = 1;    // Hk
  Index capacity = 0;        // most tokens of a sequence
  Index head_dim = 1;        // D
  Index value_head_dim = 0;  // Dv; 0: D
  DType dtype = DType::f32;
};

/// The dtype of tokens that go to a cache of `dtype`, and in which they are attended to.
constexpr DType attended_as(DType dtype) { return dtype == DType::int8 ? DType::f32 : dtype; }

/// Preallocated keys [B, Hk, capacity, D] and values [B, Hk, capacity, Dv], dense and aligned to 64 bytes. Sequence b
/// holds lengths()[b] tokens, the oldest first; memory after them is uninitialized. Attend to them with
///
///     options.key_lengths = cache.lengths();
///     options.query_offsets = ...  // lengths() before the tokens of the query were appended
///     scaled_dot_product_attention(query, cache.keys(), cache.values(), out, {}, options);
///
/// The operating system provides the memory when a call first writes to it, by 2 MiB where the rows of a head fill as
/// much; the memory never moves. A call that fails changes nothing. A call
/// that changes a cache must run alone on it; calls that only read it may run at the same time.
///
/// In a cache of int8 a number is integer * scale, rounded to float32, with scale = the largest magnitude of its row /
/// 127 and integer = its number / scale, rounded to nearest even. Tokens of float32 are quantized as they are written,
/// and layers of float32 attend to them, with the results, in every bit, of a cache of float32 that holds these
/// numbers.
class MHA_API KVCache {
 public:
  /// @throws std::invalid_argument, DTypeError, AllocationError
  explicit KVCache(const KVCacheConfig& config);
  /// A cache over the caller's memory, which must live as long as the cache: calls write and move tokens in it.
  ///
  /// @param keys     [B, Hk, capacity, D] of any dtype but int8; rows of a head are contiguous, heads and sequences may have
  ///                 any strides
  /// @param values   [B, Hk, capacity, Dv] likewise
  /// @param lengths  [B], the tokens that the memory holds already; null: none
  /// @throws std::invalid_argument, DTypeError, AllocationError
  KVCache(const MutableTensorView& keys, const MutableTensorView& values, const std::int64_t* lengths = nullptr);
  virtual ~KVCache();
  KVCache(KVCache&&) noexcept;
  KVCache& operator=(KVCache&&) noexcept;

  /// The sizes with every zero resolved.
  const KVCacheConfig& config() const;
  /// [B, Hk, capacity, D], all of the memory; so is values(), [B, Hk, capacity, Dv].
  TensorView keys() const;
  TensorView values() const;
  MutableTensorView keys();
  MutableTensorView values();
  /// The scales of a cache of int8, [B, Hk, capacity, 1]; no tensors, if it is of another dtype.
  TensorView key_scales() const;
  TensorView value_scales() const;
  /// [B]: tokens of each sequence. The pointer stays valid; calls change the numbers.
  const std::int64_t* lengths() const;
  /// Copies the tokens to dense rows in the dtype of the cache, out [B, Hk, T, D] or [B, Hk, T, Dv] with T of at least
  /// longest(), with zeros after the tokens of each sequence.
  void copy_keys(const MutableTensorView& out) const;
  void copy_values(const MutableTensorView& out) const;
  /// Likewise the scales of a cache of int8, [B, Hk, T, 1].
  void copy_key_scales(const MutableTensorView& out) const;
  void copy_value_scales(const MutableTensorView& out) const;
  /// The largest of lengths(), or its value after `count` more tokens, or the first new_lengths[b] of them, are
  /// appended.
  Index longest(Index count = 0, const std::int64_t* new_lengths = nullptr) const;

  /// Appends a copy of tokens to each sequence.
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
  /// The same with tokens of a cache of int8 as they are stored.
  ///
  /// @param key, value              of int8
  /// @param key_scale, value_scale  [B, Hk, T, 1] of float32
  void assign_stored(const TensorView& key, const TensorView& value, const TensorView& key_scale,
                     const TensorView& value_scale, const std::int64_t* new_lengths = nullptr);

  /// Forgets the newest `count` tokens of each sequence, or counts[b] of sequence b: drafts that were rejected.
  void rollback(std::int64_t count);
  void rollback(const std::int64_t* counts);
  /// Replaces sequence b by the old sequence index[b], as beam search does with the beams that continue. Copies tokens
  /// only, and none where index[b] = b.
  void reorder(const std::int64_t* index);
  /// Forgets the oldest tokens of sequences that hold more than `count`. Positions count from the oldest token left,
  /// and masks and biases see differences of positions only. Each call moves the tokens that stay, so free many tokens
  /// at once: with a capacity of twice the window a token moves once on average. Keys keep their rotation: from then on
  /// pass AttentionOptions::positions for new rows.
  void keep_last(std::int64_t count);
  /// Forgets everything.
  void clear();

  /// The library's own object, for its sources.
  CacheStorage& storage() { return *storage_; }
  const CacheStorage& storage() const { return *storage_; }

 protected:
  explicit KVCache(std::unique_ptr<CacheStorage> storage);

 private:
  std::unique_ptr<CacheStorage> storage_;
};

}  // namespace mha

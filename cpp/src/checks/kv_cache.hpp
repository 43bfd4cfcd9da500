// The preconditions of a KVCache: of its own functions, and of a layer call with a cache.
#pragma once

#include <vector>

#include "mha/multi_head_attention.hpp"
#include "mha/paged_kv_cache.hpp"
#include "views/arguments.hpp"

namespace mha {

/// Replaces the zeros of the config, which stand for defaults.
KVCacheConfig validate(KVCacheConfig config);
PagedKVCacheConfig validate(PagedKVCacheConfig config);

/// The sizes of a cache over memory of the caller's, with `lengths` tokens (null: none).
KVCacheConfig validate_memory(const MutableTensorView& keys, const MutableTensorView& values,
                              const std::int64_t* lengths);

/// A sequence, the argument `name`, is one of the cache.
void validate_sequence(const char* function, const char* name, const KVCacheConfig& config, Index sequence);

/// Of PagedKVCache::fork(). Returns how many tokens the two have in common.
Index validate_fork(const KVCacheConfig& config, const std::int64_t* lengths, Index sequence, Index into, Index length);

/// Each sequence b, which holds lengths[b] tokens (null: none), has room for new_lengths[b] more (null: for `count`
/// more); none of these is larger than `count`. Returns how many tokens the longest sequence will have.
/// @throws std::invalid_argument
Index validate_growth(const char* function, const KVCacheConfig& config, const std::int64_t* lengths, Index count,
                      const std::int64_t* new_lengths);

/// Each sequence b holds the tokens that it is to lose: counts[b], or `count` if `counts` is null.
void validate_rollback(const KVCacheConfig& config, const std::int64_t* lengths, std::int64_t count,
                       const std::int64_t* counts);

void validate_reorder(const KVCacheConfig& config, const std::int64_t* index);

void validate_keep_last(std::int64_t count);

/// The keys and values of new tokens, which it brings to [B, Hk, T, D] and [B, Hk, T, Dv].
void validate_tokens(const char* function, const KVCache& cache, TensorView& key, TensorView& value);

/// The same of tokens as a cache of int8 stores them, with their scales [B, Hk, T, 1].
void validate_stored_tokens(const char* function, const KVCache& cache, TensorView& key, TensorView& value,
                            TensorView& key_scale, TensorView& value_scale);

/// Pages as they are stored, and the pages of each sequence: PagedKVCache::assign_pages().
void validate_pages(const char* function, const PagedKVCache& cache, const TensorView& key, const TensorView& value,
                    const TensorView& key_scale, const TensorView& value_scale, const std::int64_t* tables,
                    Index table_columns, const std::int64_t* lengths);

/// `out` takes `sequences` of at least `least` tokens of `memory`, the keys, the values or their scales.
void validate_copy(const char* function, const KVCache& cache, const TensorView& memory, const MutableTensorView& out,
                   Index sequences, Index least);

/// Makes the tokens of a cache the keys, and if `with_values` the values, of a call that is yet to be validated. Memory
/// that the call needs lives as long as this object.
class CachedKeys {
 public:
  CachedKeys(AttentionArguments& call, const KVCache& cache, bool with_values);
  CachedKeys(const CachedKeys&) = delete;
  CachedKeys& operator=(const CachedKeys&) = delete;

 private:
  std::vector<std::int64_t> offsets_;  // [B], of the queries, if the call has not said where they are
};

/// A layer call with a cache, whose query, key and ragged batch have been checked. Returns Tk, the number of keys of
/// the longest sequence, with the new ones; of a ragged batch, of the longest one that it names.
Index validate_cache(const char* function, const MultiHeadAttentionConfig& layer, DType dtype,
                     const LayerArguments& call);

}  // namespace mha

// The preconditions of a KVCache: of its own functions, and of a layer call with a cache.
#pragma once

#include "mha/multi_head_attention.hpp"

namespace mha {

/// Replaces the zeros of the config, which stand for defaults.
KVCacheConfig validate(KVCacheConfig config);

/// Each sequence b, which holds lengths[b] tokens, has room for new_lengths[b] more (null: for `count` more); none of
/// these is larger than `count`. Returns how many tokens the longest sequence will have. @throws std::invalid_argument
Index validate_growth(const char* function, const KVCacheConfig& config, const std::int64_t* lengths, Index count,
                      const std::int64_t* new_lengths);

/// Each sequence b holds the tokens that it is to lose: counts[b], or `count` if `counts` is null.
void validate_rollback(const KVCacheConfig& config, const std::int64_t* lengths, std::int64_t count,
                       const std::int64_t* counts);

void validate_reorder(const KVCacheConfig& config, const std::int64_t* index);

void validate_keep_last(std::int64_t count);

/// The keys and values of new tokens, which it brings to [B, Hk, T, D] and [B, Hk, T, Dv].
void validate_tokens(const char* function, const KVCache& cache, TensorView& key, TensorView& value);

/// A layer call with a cache. `query` is empty if the call only appends, `key` if it only attends to what is there.
/// `key_lengths_name` is what messages call options.key_lengths. Returns Tk, the number of keys of the longest sequence,
/// with the new ones.
Index validate_cache(const char* function, const KVCache& cache, const MultiHeadAttentionConfig& layer, DType dtype,
                     const TensorView& query, const TensorView& key, const AttentionOptions& options,
                     const std::int64_t* new_lengths, const char* key_lengths_name);

}  // namespace mha

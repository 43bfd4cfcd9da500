// Preconditions of what is done to a KVCache, by itself and by a layer.
#pragma once

#include "mha/multi_head_attention.hpp"

namespace mha {

/// Resolves the zeros of the config.
KVCacheConfig validate(KVCacheConfig config);

/// Throws if one of the sequences, which hold lengths[b] tokens, cannot take new_lengths[b] (null: `count`) of `count`
/// new ones. Returns how many tokens the longest sequence will have.
Index validate_growth(const char* function, const KVCacheConfig& config, const std::int64_t* lengths, Index count,
                      const std::int64_t* new_lengths);

/// Every sequence must hold the tokens that it is to lose: `count`, or counts[b] where that is given.
void validate_rollback(const KVCacheConfig& config, const std::int64_t* lengths, std::int64_t count,
                       const std::int64_t* counts);

void validate_reorder(const KVCacheConfig& config, const std::int64_t* index);

void validate_keep_last(std::int64_t count);

/// Tokens for a cache: brings key and value to four axes.
void validate_tokens(const char* function, const KVCache& cache, TensorView& key, TensorView& value);

/// A layer call with a cache: query is empty if the call only appends, key if it only attends. Returns Tk, the length
/// of the longest sequence that is attended to.
Index validate_cache(const char* function, const KVCache& cache, const MultiHeadAttentionConfig& layer, DType dtype,
                     const TensorView& query, const TensorView& key, const AttentionOptions& options,
                     const std::int64_t* new_lengths);

}  // namespace mha

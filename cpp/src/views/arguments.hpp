// The arguments of one call, as plain data: checked by checks/, planned by plan/, kept by execute/.
#pragma once

#include "mha/attention.hpp"
#include "mha/attention_gradient.hpp"
#include "mha/attention_statistics.hpp"
#include "mha/kv_cache.hpp"
#include "mha/multi_head_attention.hpp"
#include "mha/varlen.hpp"
#include "views/cache_memory.hpp"

namespace mha {

/// The result of a call of attention in `out`.
enum class AttentionOutput { attended_values, weights, scores };

/// A call of scaled_dot_product_attention or attention_weights. validate() brings the views to [B, H, T, D].
struct AttentionArguments {
  const char* function;          // its name, for messages
  TensorView query, key, value;  // value is empty for attention_weights
  MutableTensorView out, lse;
  AttentionOptions options;
  const RaggedBatch* ragged = nullptr;  // null: a dense batch; otherwise views become [1, H, N, D]
  // Where keys and values lie if they belong to a cache; then `key` and `value` only give sizes.
  const CacheMemory* memory = nullptr;
  const std::int64_t* sequences = nullptr;  // [B]: which sequence of the cache a batch element is; null: its own
};

/// A call of attention_statistics. `inputs` has neither value nor outputs; validate() brings the results to [B, H, T].
struct StatisticsArguments {
  AttentionArguments inputs;
  AttentionStatistics results;
  bool has_elements_to_write;
};

/// A call of attention_gradient. `inputs` has no outputs; validate() brings all views to the axes of a dense call, apart
/// from gradients of options that are no mask.
struct GradientArguments {
  AttentionArguments inputs;
  TensorView out, lse, dout, dlse;
  AttentionGradients gradients;
};

/// The names of arguments in messages, which layers of a transformer change. In attention to a memory the options about
/// visible keys and scores are about the memory.
struct ArgumentNames {
  const char *attn_mask = "attn_mask", *key_mask = "key_mask", *block_mask = "block_mask";
  const char *key_lengths = "key_lengths", *scale = "scale";
  const char *query = "query", *key = "key";
};
constexpr ArgumentNames kNamesOfSelf = {"attn_mask", "key_mask", "block_mask", "key_lengths", "scale", "x", "x"};
constexpr ArgumentNames kNamesOfMemory = {
    "memory_attn_mask", "memory_key_mask", "memory_block_mask", "memory_lengths", "memory_scale", "x", "memory"};

/// A call of an attention layer. validate() brings query, key, value and out to [B, T, features], weights to [B, H, Tq,
/// Tk].
struct LayerArguments {
  TensorView query, key, value;  // no key and value: only attends to the tokens in the cache
  MutableTensorView out, weights;
  AttentionOptions options;
  const KVCache* cache = nullptr;             // its keys and values are attended to; null: the call's own
  KVCache* grows = nullptr;                   // the same cache if key and value are appended to it, else null
  const std::int64_t* new_lengths = nullptr;  // [B]: the first rows of each sequence that are no padding; null: all
  Index key_length = 0;                       // Tk, set by validate()
  const RaggedBatch* ragged = nullptr;        // null: a dense batch; otherwise B is 1, T is N, and weights are empty
  bool appends_only = false;                  // there is no query, and no result
  const char* part_of = nullptr;  // the function that this call is a part of, which has checked `out`; or null
  ArgumentNames names = {};
  const AttentionRecord* record = nullptr;  // null: the call keeps nothing
};

}  // namespace mha

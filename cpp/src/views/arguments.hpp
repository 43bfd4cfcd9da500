// The arguments of one call, as plain data: what checks/ looks at, plan/ reads and execute/ keeps.
#pragma once

#include "mha/attention.hpp"
#include "mha/attention_statistics.hpp"
#include "mha/kv_cache.hpp"
#include "mha/varlen.hpp"

namespace mha {

/// One call of the attention family, with views brought to [B, H, T, D] by validate().
struct AttentionArguments {
  const char* function;          // for messages
  TensorView query, key, value;  // value empty: attention_weights
  MutableTensorView out, lse;
  AttentionOptions options;
  const RaggedBatch* ragged = nullptr;  // views are [1, H, N, D]; null: a dense batch
};

/// One call of attention_statistics: `inputs` has no value and no outputs; results become [B, H, T].
struct StatisticsArguments {
  AttentionArguments inputs;
  AttentionStatistics results;
};

/// One call of a layer: query, key, value and out become [B, T, features], weights [B, H, Tq, Tk].
struct LayerArguments {
  TensorView query, key, value;  // query empty: only append to the cache; key and value empty: attend to what is in it
  MutableTensorView out, weights;
  AttentionOptions options;
  const KVCache* cache = nullptr;             // holds the keys and values attended to, if there is one
  KVCache* grows = nullptr;                   // the same if key and value are appended to it, else null
  const std::int64_t* new_lengths = nullptr;  // [B]: rows of each sequence that count; null: all
  Index key_length = 0;                       // Tk, set by validate()
  const RaggedBatch* ragged = nullptr;        // B is 1, T is N, and weights are not given; null: a dense batch
  const char* block = nullptr;  // the function that this attention is a part of, which has checked `out`; null: none
};

}  // namespace mha

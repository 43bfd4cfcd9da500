// Scaled dot-product attention over strided views.
//
// Axis letters used in every header: B batch, Tq / Tk query / key length, H / Hk query / key-value heads, D head_dim,
// Dv value head_dim, E embed_dim.
#pragma once

#include <cstdint>
#include <limits>

#include "mha/errors.hpp"
#include "mha/export.h"
#include "mha/kv_cache.hpp"
#include "mha/tensor_view.hpp"

namespace mha {

/// The keys that a query sees, and the changes of scores. All restrictions compose: a key takes part if every
/// restriction admits it. Scores are scaled, then capped, then biased (alibi_slopes, position_bias, attn_mask), then
/// masked.
struct AttentionOptions {
  /// [B|1, H|1, Tq|1, Tk|1], missing leading axes broadcast. DType::boolean: true takes part. The dtype of query: added
  /// to the scaled scores; minus infinity masks. Any strides, zero included; never expanded.
  TensorView attn_mask = {};
  /// [B|1, Tk], boolean: true takes part, for every head and query.
  TensorView key_mask = {};
  /// [B|1, H|1, ceil(Tq / 64), ceil(Tk / 64)], boolean, missing leading axes broadcast: false hides 64 keys, from a
  /// multiple of 64 on, from 64 rows of query. Keys and values of a block that no row sees are not read, so hidden
  /// blocks take no time.
  TensorView block_mask = {};
  /// Key j is visible to query i only if j <= query_offset + i.
  bool is_causal = false;
  /// Position of the first query row among the keys, for every batch element. In [-2^62, 2^62].
  std::int64_t query_offset = 0;
  /// [B] or null; replaces query_offset element by element.
  const std::int64_t* query_offsets = nullptr;
  /// [B] or null; keys j >= key_lengths[b] do not exist and their memory is not read. Values in [0, Tk].
  const std::int64_t* key_lengths = nullptr;
  /// query_offset + i - window_left <= j <= query_offset + i + window_right; -1 is unbounded.
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  /// Multiplies the scores; NaN, the default, stands for 1 / sqrt(D).
  double scale = std::numeric_limits<double>::quiet_NaN();
  /// Scores become softcap * tanh(score / softcap); 0: they stay as they are.
  double softcap = 0;
  /// [H] or [B|1, H], of the dtype of lse: head h adds -alibi_slopes[b, h] * |query_offset + i - j| to its scores. In a
  /// ragged batch B counts the sequences.
  TensorView alibi_slopes = {};
  /// [H, 2 R + 1], of the dtype of lse: head h adds position_bias[h, clamp(j - (query_offset + i), -R, R) + R] to the
  /// score of query i and key j. Any strides.
  TensorView position_bias = {};
  /// [H], of the dtype of lse or of query: one more score for each row of head h, which takes weight and has no value.
  /// It counts in lse; a row that sees no key gives zeros and an lse of the sink.
  TensorView sinks = {};
  /// The probability, in [0, 1), that a weight is replaced by 0; other weights are multiplied by 1 / (1 - dropout_p).
  /// `lse` is the logarithm of the sum of all of them. For training over arrays: calls that return weights or statistics,
  /// layers and caches refuse it.
  double dropout_p = 0;
  /// Which weights: those whose word of Philox4x32-10 (Salmon et al., 2011), over 2^32, is below dropout_p. Its key is the
  /// seed, its counter (j / 4, query_offset + i, b H + h) for key j, query i, head h and batch element or sequence b, and
  /// word j % 4 counts. So a gradient with the same seed has the same weights, and nothing is stored.
  std::int64_t dropout_seed = 0;
  /// [B, T], of a ragged batch [N], or null. For layers with a RotaryEmbedding only: where the rows of query and key,
  /// which are then as many, stand in its table, instead of at query_offset + i and at the length of a cache. Masks and
  /// biases do not go by it.
  const std::int64_t* positions = nullptr;
  /// Threads for this call; 0 takes the default of runtime.hpp. The result does not depend on it, not in one bit.
  int num_threads = 0;
};

/// softmax(scale * query key^T + masks) value.
///
/// @param query [B, H, Tq, D], or [H, Tq, D], or [Tq, D]; any strides
/// @param key   [B, Hk, Tk, D] with H a multiple of Hk: query head h reads key-value head h / (H / Hk)
/// @param value [B, Hk, Tk, Dv]; where B is 1 for query, or for key and value, those serve every element of the other
/// @param out   [B, H, Tq, Dv]; written whole; must not overlap an input
/// @param lse   [B, H, Tq] or empty: logarithm of the sum of the exponentials of the masked scores, in the accumulator's
///              dtype (f64 for f64, else f32)
///
/// A row that sees no key gives zeros and an lse of minus infinity. Masked memory never reaches the output, not even a
/// NaN. Safe to call from several threads at once.
/// @throws std::invalid_argument, DTypeError, AllocationError before anything is written
MHA_API void scaled_dot_product_attention(const TensorView& query, const TensorView& key, const TensorView& value,
                                          const MutableTensorView& out, const MutableTensorView& lse = {},
                                          const AttentionOptions& options = {});

/// The same over the tokens of a cache, in the dtype of the cache: sequence b is batch element b of the query, whose
/// batch size must match the cache. Tk is the longest of their lengths, and options.key_lengths must not be given.
/// Unless options say where the queries stand, by query_offsets or a query_offset other than 0, they are the last Tq
/// tokens of each sequence, and query_offset is its length less Tq. `out` and `lse` must not overlap the cache.
MHA_API void scaled_dot_product_attention(const TensorView& query, const KVCache& cache, const MutableTensorView& out,
                                          const MutableTensorView& lse = {}, const AttentionOptions& options = {});

/// How far attention_weights goes. Keys after key_lengths are not read at any stage: before the softmax they have a
/// score of minus infinity.
enum class ScoreStage {
  scaled,  // scale * query key^T, also where a mask hides the key
  capped,  // after softcap, likewise
  masked,  // after all that is added; minus infinity where the key is masked
  weights  // after the softmax
};

/// The softmax weights themselves, or the scores that they come from: weights [B, H, Tq, Tk], in the dtype of query.
/// Masked keys weigh exactly 0. Sinks have no part in the scores; all options are checked at every stage.
MHA_API void attention_weights(const TensorView& query, const TensorView& key, const MutableTensorView& weights,
                               const AttentionOptions& options = {}, ScoreStage stage = ScoreStage::weights);
/// The same over the keys of a cache, as scaled_dot_product_attention() has it; Tk is the length of the longest
/// sequence.
MHA_API void attention_weights(const TensorView& query, const KVCache& cache, const MutableTensorView& weights,
                               const AttentionOptions& options = {}, ScoreStage stage = ScoreStage::weights);

}  // namespace mha

// The multi-head attention layer: project, attend, concatenate, project out.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "mha/attention.hpp"
#include "mha/kv_cache.hpp"
#include "mha/linear_weights.hpp"
#include "mha/norm.hpp"
#include "mha/rotary.hpp"
#include "mha/varlen.hpp"
#include "mha/weight_format.hpp"

namespace mha {

/// Sizes of a layer, and the keys that it adds. Zero stands for the usual choice, given on each line.
struct MultiHeadAttentionConfig {
  Index embed_dim = 0;       // E: features of query
  Index num_heads = 0;       // H
  Index num_kv_heads = 0;    // Hk; 0: H
  Index head_dim = 0;        // D; 0: E / H
  Index value_head_dim = 0;  // Dv; 0: D
  Index kdim = 0;            // features of key; 0: E
  Index vdim = 0;            // features of value; 0: E
  Index out_dim = 0;         // features of the result; 0: E

  /// Adds keys that every row sees, after the keys of the call: one from the weights, then one of zeros. They have no
  /// position, no mask hides them, and no cache holds them.
  bool add_bias_kv = false;
  bool add_zero_attn = false;

  /// Of the four matrices of weights, but for those that are given in blocks.
  WeightFormat weight_format = WeightFormat::plain;

  /// How many keys add_bias_kv and add_zero_attn add.
  Index added_keys() const { return Index{add_bias_kv} + Index{add_zero_attn}; }
};

/// All of one dtype. `View` is the parameter of BasicLinearWeights.
///
/// With WeightFormat::int8 and int4 you may pass the matrices as they are stored, all four in int8 and with scales; the
/// other weights are then f32. Rows of integers that int4 cannot represent are quantized again.
template <class View>
struct BasicMultiHeadAttentionWeights {
  BasicLinearWeights<View> query;  // [H * D, E]
  BasicLinearWeights<View> key;    // [Hk * D, kdim]
  BasicLinearWeights<View> value;  // [Hk * Dv, vdim]
  BasicLinearWeights<View> out;    // [out_dim, H * Dv]

  /// With add_bias_kv, and only then: a key and its value as projections give them, bias_k and bias_v of torch.
  View added_key = {};    // [Hk * D]
  View added_value = {};  // [Hk * Dv]
};

using MultiHeadAttentionWeights = BasicMultiHeadAttentionWeights<TensorView>;

/// Steps between projection and attention, for each row of each head of query and key. Rows of 16 bits are rounded
/// once, after all steps.
///
/// Row i of query stands at query_offset(s) + i, or lengths()[b] + i of a cache that the call appends to; key i at i,
/// in a cache at lengths()[b] + i, in a ragged batch both counted from the begin of their sequence; or both at
/// positions of the options. A cache holds rotated keys: after KVCache::keep_last(), which counts rows anew, the caller
/// must pass positions. Keys that a layer adds are not rotated.
struct QueryKeySteps {
  // Of the dtype of the layer, before heads are turned: [D], of each head; or [H D] and [Hk D], of all heads together.
  std::optional<Norm> query_norm, key_norm;
  std::optional<RotaryEmbedding> rotary;  // f32; f64 of a layer in f64. Its R is at most D
};

struct PackedAttention;  // of the library itself

/// Where a call writes what its gradients need: the rows that attention reads, after all steps, and its results.
struct AttentionRecord {
  MutableTensorView query;  // [B, H, Tq, D]; of a ragged batch B is 1 and T is N. Neighbouring features lie together
  MutableTensorView key;    // [B, Hk, Tk, D]
  MutableTensorView value;  // [B, Hk, Tk, Dv]
  MutableTensorView heads;  // [B, Tq, H * Dv]: the heads, concatenated
  MutableTensorView lse;    // [B, H, Tq], with the keys that the layer adds
};

/// Immutable after construction: forward() may run on several threads at once. The weights are copied into panels once,
/// by the constructor; the caller's arrays may go away afterwards. Copies of a layer share them.
class MHA_API MultiHeadAttention {
 public:
  /// @throws std::invalid_argument, DTypeError if sizes or dtypes disagree; AllocationError
  MultiHeadAttention(const MultiHeadAttentionConfig& config, const MultiHeadAttentionWeights& weights,
                     const QueryKeySteps& steps = {});

  /// concat(head_1 ... head_H) W^O with head_i = attention(query W_i^Q, key W_i^K, value W_i^V).
  ///
  /// @param query   [B, Tq, E] or [Tq, E]
  /// @param key     [B, Tk, kdim]; pass the view of query for self-attention
  /// @param value   [B, Tk, vdim]
  /// @param out     [B, Tq, out_dim]; must not overlap an input
  /// @param weights [B, H, Tq, Tk] or empty: the softmax weights of each head; with added keys [B, H, Tq, Tk + added_keys],
  ///                the added keys last
  void forward(const TensorView& query, const TensorView& key, const TensorView& value, const MutableTensorView& out,
               const MutableTensorView& weights = {}, const AttentionOptions& options = {}) const;

  /// The same for a ragged batch, over its rows and no others. A row has the same bits as in forward() on its
  /// sequence.
  ///
  /// @param query [Nq, E]; key [Nk, kdim]; value [Nk, vdim]; out [Nq, out_dim]
  /// @param options with the masks of scaled_dot_product_attention_varlen()
  void forward_varlen(const TensorView& query, const TensorView& key, const TensorView& value, const RaggedBatch& batch,
                      const MutableTensorView& out, const AttentionOptions& options = {}) const;

  /// Either of these, with the same bits, which also writes `record`. No view of the record may be empty, or overlap
  /// another view of the call.
  ///
  /// @param batch null: forward()
  void forward_and_record(const TensorView& query, const TensorView& key, const TensorView& value,
                          const RaggedBatch* batch, const AttentionRecord& record, const MutableTensorView& out,
                          const AttentionOptions& options = {}) const;

  /// The same with the keys and values in a cache: projects the call's keys and values, appends them to the cache, and
  /// attends to all of it. Lengths grow at the end. Use it for a step of a decoder, or for its prompt.
  ///
  /// Row i of query stands at position lengths()[b] + i, with the lengths before the call: the cache determines
  /// query_offset and key_lengths, which must not be given. Tk, for masks and weights, is longest() after the call.
  ///
  /// @param key         [B, T, kdim]; pass the view of query for self-attention
  /// @param value       [B, T, vdim]
  /// @param new_lengths [B] or null: only the first new_lengths[b] rows of query, key and value count, which then have
  ///                    one length. The others are padding: they are not appended, and they give the results of rows
  ///                    that see no key, not even an added one
  /// @throws std::invalid_argument, with the cache unchanged, if a sequence would outgrow the capacity
  void forward(const TensorView& query, const TensorView& key, const TensorView& value, KVCache& cache,
               const MutableTensorView& out, const MutableTensorView& weights = {},
               const AttentionOptions& options = {}, const std::int64_t* new_lengths = nullptr) const;

  /// The same for a ragged batch: the rows of each sequence follow the tokens of the cache's sequence that
  /// batch.sequences names; the other sequences do not change. One call takes prompts of different length, chunks of
  /// prompts, and single steps. A row has the same bits as in forward() on its sequence.
  ///
  /// @param query   [Nq, E]; key [Nk, kdim]; value [Nk, vdim]; out [Nq, out_dim]
  /// @param options with the attn_mask of scaled_dot_product_attention_varlen() and a key_mask [B, Tk], where Tk is the
  ///                length of the longest sequence of the batch after the call
  void forward_varlen(const TensorView& query, const TensorView& key, const TensorView& value, const RaggedBatch& batch,
                      KVCache& cache, const MutableTensorView& out, const AttentionOptions& options = {}) const;

  /// The same without appending: the result of forward() without a cache for the keys and values in `cache`. Use it for
  /// cross-attention, after append_to() has projected the keys once for all steps.
  void attend(const TensorView& query, const KVCache& cache, const MutableTensorView& out,
              const MutableTensorView& weights = {}, const AttentionOptions& options = {}) const;

  /// Projects key [B, T, kdim] and value [B, T, vdim] into a cache and does nothing else.
  void append_to(KVCache& cache, const TensorView& key, const TensorView& value,
                 const std::int64_t* new_lengths = nullptr, int num_threads = 0) const;

  /// The sizes with every zero resolved.
  const MultiHeadAttentionConfig& config() const;
  DType dtype() const;
  const QueryKeySteps& steps() const;
  /// The formats of the matrices of query, key, value and out: of the config, or of the blocks that were given.
  std::array<WeightFormat, 4> weight_formats() const;

  using WeightOutputs = BasicMultiHeadAttentionWeights<MutableTensorView>;
  /// Copies the weights out again; empty views are skipped. The matrices have dtype(), with the rounding of their
  /// format; with WeightFormat::int8 and int4 they are integers and have scales; in a block format they are the bytes
  /// given.
  void copy_weights(const WeightOutputs& outputs) const;

  /// For the blocks of a transformer, which have a layer as a part.
  const PackedAttention& packed() const { return *packed_; }

 private:
  std::shared_ptr<const PackedAttention> packed_;
};

}  // namespace mha

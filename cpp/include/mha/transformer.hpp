// The blocks of a transformer around the attention, for inference: layer norm, feed-forward, encoder, decoder.
//
// F is the feed-forward width, Em the features of an encoder's memory; other letters are those of attention.hpp.
#pragma once

#include <memory>

#include "mha/activation.hpp"
#include "mha/multi_head_attention.hpp"

namespace mha {

struct NormWeights;        // of the library itself
struct PackedFeedForward;  // likewise
class EncoderStack;        // likewise
class DecoderStack;        // likewise

/// (x - mean) / sqrt(variance + eps) * weight + bias, over the last axis; the variance is that of the row, not an
/// estimate (Ba, Kiros, Hinton, "Layer Normalization", 2016).
///
/// Immutable, like all that is in this header: forward() may run on several threads at once. Copies share the weights.
class MHA_API LayerNorm {
 public:
  /// @param weight [E]; copied
  /// @param bias   [E] or empty: none
  /// @param eps    added to the variance; at least 0
  /// @throws std::invalid_argument, DTypeError, AllocationError
  explicit LayerNorm(const TensorView& weight, const TensorView& bias = {}, double eps = 1e-5);

  /// @param x   [..., E], up to four axes
  /// @param out the shape of x; x itself, or memory that x does not overlap
  void forward(const TensorView& x, const MutableTensorView& out, int num_threads = 0) const;

  Index embed_dim() const;  // E
  double eps() const;
  bool has_bias() const;
  DType dtype() const;
  /// Copies the weights out again, [E]; an empty view is passed over.
  void copy_weights(const MutableTensorView& weight, const MutableTensorView& bias) const;

  const NormWeights& weights() const { return *weights_; }

 private:
  std::shared_ptr<const NormWeights> weights_;
};

/// Weights in the [out_features, in_features] layout of torch.nn.Linear; biases may be empty. Of WeightFormat::int8 they
/// may be given with scales, as those of MultiHeadAttentionWeights.
struct FeedForwardWeights {
  TensorView weight1;      // [F, E]
  TensorView bias1;        // [F]
  TensorView weight2;      // [E, F]
  TensorView bias2;        // [E]
  TensorView scale1 = {};  // [F]
  TensorView scale2 = {};  // [E]
};

/// activation(x W1^T + b1) W2^T + b2, for each row. The F values in between are never stored for more rows than are in
/// cache at a time.
class MHA_API FeedForward {
 public:
  /// @throws std::invalid_argument, DTypeError, AllocationError
  FeedForward(const FeedForwardWeights& weights, Activation activation,
              WeightFormat weight_format = WeightFormat::plain);

  /// @param x   [..., E], up to four axes
  /// @param out the shape of x; x itself, or memory that x does not overlap
  void forward(const TensorView& x, const MutableTensorView& out, int num_threads = 0) const;

  Index embed_dim() const;        // E
  Index feedforward_dim() const;  // F
  Activation activation() const;
  bool has_bias1() const;
  bool has_bias2() const;
  DType dtype() const;
  WeightFormat weight_format() const;
  struct WeightOutputs {
    MutableTensorView weight1, bias1, weight2, bias2;
    MutableTensorView scale1 = {}, scale2 = {};
  };
  /// Copies the weights out again, as MultiHeadAttention does; empty views are passed over.
  void copy_weights(const WeightOutputs& outputs) const;

  const PackedFeedForward& packed() const { return *packed_; }

 private:
  std::shared_ptr<const PackedFeedForward> packed_;
};

/// One layer of an encoder, put together from parts of one dtype and one E.
///
/// norm_first false, as in "Attention Is All You Need" and BERT: y = norm1(x + self_attention(x)), and then
/// norm2(y + feed_forward(y)). True: y = x + self_attention(norm1(x)), and then y + feed_forward(norm2(y)).
struct EncoderLayer {
  MultiHeadAttention self_attention;
  FeedForward feed_forward;
  LayerNorm norm1, norm2;
  bool norm_first = false;
};

/// What a call of an Encoder may have besides rows and options.
struct EncoderExtras {
  /// [count] or null: the softmax weights of the heads of each layer, [B, H, T, Tk]; an empty view: not wanted.
  const MutableTensorView* weights = nullptr;
  /// [count] or null: a cache for each layer. Keys and values of the call join it, as in MultiHeadAttention::forward;
  /// with is_causal, the steps of a model that is a decoder only. If the call fails, none of them has changed.
  KVCache* const* caches = nullptr;
  /// [B] or null: with caches, only the first new_lengths[b] rows of x count.
  const std::int64_t* new_lengths = nullptr;
};

/// Layers one after another, and a last layer norm if there is one. Of one layer it is that layer.
///
/// Rows have the bits that they have alone, in any batch, for any number of threads, step by step over a cache or all
/// at once.
class MHA_API Encoder {
 public:
  /// @param layers     [count], of one dtype and one E
  /// @param final_norm null: none
  /// @throws std::invalid_argument, DTypeError
  Encoder(const EncoderLayer* layers, Index count, const LayerNorm* final_norm = nullptr);

  /// @param x       [B, T, E] or [T, E]
  /// @param out     the shape of x; x itself, or memory that x does not overlap
  /// @param options of the attention of every layer
  void forward(const TensorView& x, const MutableTensorView& out, const AttentionOptions& options = {},
               const EncoderExtras& extras = {}) const;

  /// The same for sequences one after another, without padding: the bits of a row are those of forward() on its
  /// sequence.
  ///
  /// @param x          [N, E]
  /// @param cu_seqlens [num_sequences + 1]: where sequences begin, and the end of the last, N
  void forward_varlen(const TensorView& x, const std::int64_t* cu_seqlens, Index num_sequences,
                      const MutableTensorView& out, const AttentionOptions& options = {}) const;

  Index num_layers() const;
  const EncoderLayer& layer(Index i) const;
  DType dtype() const;

 private:
  std::shared_ptr<const EncoderStack> stack_;
};

/// One layer of a decoder: causal self-attention, attention to an encoder's memory, feed-forward, each with its residual
/// sum and norm, in the order of EncoderLayer. kdim and vdim of cross_attention are Em.
struct DecoderLayer {
  MultiHeadAttention self_attention, cross_attention;
  FeedForward feed_forward;
  LayerNorm norm1, norm2, norm3;
  bool norm_first = false;
};

/// What the rows attend to.
struct DecoderContext {
  /// [B, S, Em] or [S, Em], or empty if there are memory_caches ...
  TensorView memory = {};
  /// ... [count]: for each layer what cross_attention.append_to() made of the memory.
  const KVCache* const* memory_caches = nullptr;
  /// [count] or null: keys and values of the rows so far, one cache for each layer, which those of the call join. If
  /// the call fails, none of them has changed.
  KVCache* const* caches = nullptr;
  /// [B] or null: with caches, only the first new_lengths[b] rows of x count.
  const std::int64_t* new_lengths = nullptr;
};

/// Layers one after another, and a last layer norm if there is one.
class MHA_API Decoder {
 public:
  /// @param layers     [count], of one dtype, one E and one Em
  /// @param final_norm null: none
  /// @throws std::invalid_argument, DTypeError
  Decoder(const DecoderLayer* layers, Index count, const LayerNorm* final_norm = nullptr);

  /// @param x              [B, T, E] or [T, E]
  /// @param out            the shape of x; x itself, or memory that x does not overlap
  /// @param options        of self-attention, is_causal for a decoder
  /// @param memory_options of cross-attention
  void forward(const TensorView& x, const DecoderContext& context, const MutableTensorView& out,
               const AttentionOptions& options, const AttentionOptions& memory_options = {}) const;

  Index num_layers() const;
  const DecoderLayer& layer(Index i) const;
  DType dtype() const;

 private:
  std::shared_ptr<const DecoderStack> stack_;
};

}  // namespace mha

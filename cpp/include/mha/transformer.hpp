// The other parts of a transformer, for inference: feed-forward, one layer, and a stack of layers.
//
// F is the feed-forward width, Em the features of the memory that a decoder reads; attention.hpp defines the
// other letters.
#pragma once

#include <memory>
#include <optional>

#include "mha/activation.hpp"
#include "mha/linear.hpp"
#include "mha/multi_head_attention.hpp"
#include "mha/norm.hpp"

namespace mha {

struct PackedFeedForward;  // of the library itself
struct PackedExperts;      // likewise
struct StackOfLayers;      // likewise

/// All of one dtype; WeightFormat::int8 as in BasicMultiHeadAttentionWeights.
template <class View>
struct BasicFeedForwardWeights {
  BasicLinearWeights<View> up;    // [F, E]
  BasicLinearWeights<View> down;  // [E, F]
  BasicLinearWeights<View> gate;  // [F, E], or empty: none

  BasicFeedForwardWeights() = default;
  BasicFeedForwardWeights(const BasicLinearWeights<View>& into_hidden, const BasicLinearWeights<View>& out_of_hidden,
                          const BasicLinearWeights<View>& gate_of_hidden = {})
      : up(into_hidden), down(out_of_hidden), gate(gate_of_hidden) {}
};

using FeedForwardWeights = BasicFeedForwardWeights<TensorView>;

/// down(activation(up(x))), or with a gate down(activation(gate(x)) * up(x)), for each row. The F values in between are
/// never stored for more rows than are in cache at a time.
///
/// Immutable, like all that is in this header: forward() may run on several threads at once. Copies share the weights.
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
  bool has_up_bias() const;
  bool has_down_bias() const;
  bool has_gate() const;
  bool has_gate_bias() const;
  DType dtype() const;
  WeightFormat weight_format() const;

  /// The linear maps, which share the weights. @throws std::invalid_argument for the gate of a layer that has none
  Linear up() const;
  Linear down() const;
  Linear gate() const;

  using WeightOutputs = BasicFeedForwardWeights<MutableTensorView>;
  /// Copies the weights out again, as MultiHeadAttention does; empty views are passed over.
  void copy_weights(const WeightOutputs& outputs) const;

  const PackedFeedForward& packed() const { return *packed_; }

 private:
  std::shared_ptr<const PackedFeedForward> packed_;
};

/// How each row chooses its experts.
struct ExpertsConfig {
  Index experts_per_token = 1;  // k
  /// Whether the scores of experts are the logistic function of the logits of the router, each by itself; else they are
  /// their softmax.
  bool is_sigmoid = false;
  /// Whether the k scores are divided by their sum.
  bool normalizes = true;
  double scale = 1;  // multiplies them then
};

/// A feed-forward network with experts: the sum of k of them, chosen for each row by a linear map, the router, and
/// weighted by its scores:
///
///   w_1 expert_1(x) + ... + w_k expert_k(x) + sigmoid(shared_gate(x)) shared(x)
///
/// The k experts with the largest scores are chosen; of equal ones the first. They are added in rising order. A row has
/// the same bits in any call. Only the weights of chosen experts are read.
class MHA_API Experts {
 public:
  /// @param router      [N, E], often in WeightFormat::plain
  /// @param experts     [N], all of one E, F and dtype, in any formats. Their weights are shared, as of all parts
  /// @param shared      an expert for all rows, of any F; null: none
  /// @param shared_gate [1, E], with `shared`; null: 1 in place of its logistic function
  /// @param correction  [N] in f32: added to scores where experts are chosen, not where they are weighted; empty: 0
  /// @throws std::invalid_argument, DTypeError
  Experts(const Linear& router, const FeedForward* experts, Index num_experts, const ExpertsConfig& config,
          const FeedForward* shared = nullptr, const Linear* shared_gate = nullptr, const TensorView& correction = {});

  /// x and out as for FeedForward::forward()
  void forward(const TensorView& x, const MutableTensorView& out, int num_threads = 0) const;

  Index num_experts() const;  // N
  Index embed_dim() const;    // E
  DType dtype() const;
  const ExpertsConfig& config() const;

  const PackedExperts& packed() const { return *packed_; }

 private:
  std::shared_ptr<const PackedExperts> packed_;
};

/// Where the norm of a sublayer stands.
enum class NormPlacement {
  after,   // norm(x + sublayer(x)), as in "Attention Is All You Need" and BERT
  before,  // x + sublayer(norm(x))
  // x + self_attention(norm1(x)) + feed_forward(norm2(x)), without a cross_attention. If there is no norm2 the
  // feed-forward reads norm1(x), too.
  parallel,
};

/// One layer of a transformer, put together from parts of one dtype and one E: self-attention, attention to a memory if
/// there is a cross_attention, and feed-forward. Each sublayer has its residual sum, and may have a norm, and an output
/// norm, which is applied to its result before the sum: x + output_norm(sublayer(norm(x))), or norm(x +
/// output_norm(sublayer(x))).
struct TransformerLayer {
  MultiHeadAttention self_attention;
  std::optional<MultiHeadAttention> cross_attention;  // kdim and vdim are Em; none: the layer reads no memory
  std::optional<FeedForward> feed_forward;            // either it or `experts`
  std::optional<Norm> norm1, norm2;                   // of the sublayers in the order in which they run
  std::optional<Norm> norm3;                          // of the third one, with a cross_attention
  NormPlacement norm_placement = NormPlacement::after;
  std::optional<Norm> output_norm1 = {}, output_norm2 = {}, output_norm3 = {};  // in the same order
  std::optional<Experts> experts = {};
};

/// Optional arguments of a call of a TransformerStack.
struct TransformerExtras {
  /// The memory that cross-attention reads: [B, S, Em] or [S, Em], or empty if there are memory_caches ...
  TensorView memory = {};
  /// ... [count]: for each layer the cache that cross_attention.append_to() filled from the memory.
  const KVCache* const* memory_caches = nullptr;
  /// Of cross-attention.
  AttentionOptions memory_options = {};
  /// [count] or null: options of the self-attention of each layer, instead of one for all; the call's num_threads
  /// counts.
  const AttentionOptions* layer_options = nullptr;
  /// [count] or null: one cache for each layer with keys and values of the rows so far; the call appends its own, as
  /// MultiHeadAttention::forward does. A call that fails changes no cache.
  KVCache* const* caches = nullptr;
  /// [B] or null: with caches, only the first new_lengths[b] rows of x count.
  const std::int64_t* new_lengths = nullptr;
  /// [num_sequences] or null: of a ragged batch over caches, as in RaggedBatch.
  const std::int64_t* sequences = nullptr;
  /// [num_sequences] or null: of a ragged batch with memory_caches, the sequence of them that each sequence reads.
  /// Several neighbours may read the same one; null: sequence b reads sequence b.
  const std::int64_t* memory_sequences = nullptr;
  /// [count] or null: the softmax weights of the heads of self-attention in each layer, [B, H, T, Tk]; an empty view:
  /// not wanted.
  const MutableTensorView* weights = nullptr;
};

/// Layers one after another, and a last norm if there is one: an encoder; with a cross_attention in each layer, a
/// decoder; without, but causal and over caches, a decoder that reads no memory. Of one layer it is that layer.
///
/// Rows have the bits that they have alone, in any batch, for any number of threads, step by step over a cache or all
/// at once.
class MHA_API TransformerStack {
 public:
  /// @param layers     [count], of one dtype and one E, all with a cross_attention of one Em, or none
  /// @param final_norm null: none
  /// @param name       the stack's name in messages; copied
  /// @throws std::invalid_argument, DTypeError
  TransformerStack(const TransformerLayer* layers, Index count, const Norm* final_norm = nullptr,
                   const char* name = "TransformerStack");

  /// @param x       [B, T, E] or [T, E]
  /// @param out     the shape of x; x itself, or memory that x does not overlap
  /// @param options of the self-attention of every layer
  void forward(const TensorView& x, const MutableTensorView& out, const AttentionOptions& options = {},
               const TransformerExtras& extras = {}) const;

  /// The same for sequences one after another, without padding. A row has the same bits as in forward() on its
  /// sequence. With caches the rows of each sequence follow its tokens: one call takes prompts of different length,
  /// chunks of prompts, and single steps. Cross-attention reads memory_caches; a memory has no ragged form.
  ///
  /// @param x          [N, E]
  /// @param cu_seqlens [num_sequences + 1]: where sequences begin, and the end of the last, N
  /// @param extras     caches with `sequences`, memory_caches with `memory_sequences`, memory_options, layer_options
  void forward_varlen(const TensorView& x, const std::int64_t* cu_seqlens, Index num_sequences,
                      const MutableTensorView& out, const AttentionOptions& options = {},
                      const TransformerExtras& extras = {}) const;

  Index num_layers() const;
  const TransformerLayer& layer(Index i) const;
  DType dtype() const;

 private:
  std::shared_ptr<const StackOfLayers> stack_;
};

}  // namespace mha

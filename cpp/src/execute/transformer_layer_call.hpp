// One call of a layer of an encoder or a decoder, as phases. The order of calls is as in attention_call.hpp.
#pragma once

#include <optional>

#include "execute/attention_call.hpp"
#include "execute/experts_call.hpp"
#include "execute/row_steps.hpp"
#include "weights/packed_transformer_layer.hpp"

namespace mha {

/// Most phases that a TransformerLayerCall has at a time: norm, two attentions, the steps after each of them, a part of
/// the experts, and the steps after those.
constexpr int kMostLayerPhases = 1 + 2 * kMostAttentionPhases + 3 * RowSteps::kMostSteps + ExpertsCall::kMostPhases;

/// The sizes of one call, before there is memory.
class SizedTransformerLayerCall {
 public:
  /// Takes its memory from `layout`. `self` and `cross` are validated; cross is null for an encoder's layer.
  SizedTransformerLayerCall(const PackedTransformerLayer& layer, const LayerArguments& self,
                            const LayerArguments* cross, const KernelTable& table, int threads, Layout& layout);

  /// Of each worker.
  std::size_t scratch_bytes() const;

 private:
  friend class TransformerLayerCall;

  SizedRowSteps row_steps(const KernelTable& table, int threads) const;
  TensorView matrix_at(const std::byte* data) const { return {data, dtype_, {batch_, length_, embed_dim_}}; }

  const PackedTransformerLayer layer_;
  const Index batch_, length_, embed_dim_;
  const DType dtype_;
  SizedAttentionCall self_;
  std::optional<SizedAttentionCall> cross_;
  SizedRowSteps before_, between_, after_, last_;
  std::optional<SizedExpertsCall> experts_;
  Rows joined_, hidden_;                                        // buffers of after_
  std::size_t normed_at_ = 0, between_at_ = 0, joined_at_ = 0;  // [B, T, E] each, in memory
};

/// The call, over memory.
///
/// Rows go through three lists of steps: the steps before attention (a norm, if any), the steps between
/// self- and cross-attention, and everything from the last projection out of attention to the end of the layer.
/// The residual stream passes through memory once for each of them. Experts, which do not take rows one by one, end
/// the third list; then there is a fourth after them.
class TransformerLayerCall {
 public:
  /// Multiply-adds, about.
  static double work(const PackedTransformerLayer& layer, const LayerArguments& self, const LayerArguments* cross);

  /// @param sized   must outlive the call
  /// @param memory  has the layout and the scratch that `sized` took
  /// @param x,out   [B, T, E], evenly spaced rows of neighbouring elements; out may be x
  /// @param context [B, S, Em], empty if cross-attention has a cache
  TransformerLayerCall(const SizedTransformerLayerCall& sized, const CallMemory& memory, const TensorView& x,
                       const TensorView& context, const MutableTensorView& out);
  TransformerLayerCall(const SizedTransformerLayerCall&& temporary, const CallMemory& memory, const TensorView& x,
                       const TensorView& context, const MutableTensorView& out) = delete;

  /// Runs the call.
  void run(int threads);

 private:
  int first_phases(Phase* phases) const;

  /// The input of a sublayer: the residual stream, or its norm if the sublayer has one before it.
  const TensorView& input(int sublayer, const TensorView& stream) const {
    return sized_.layer_.norm_before(sublayer) ? normed_ : stream;
  }
  Rows input_of_feed_forward(int sublayer, const Rows& x, const Rows& joined) const;
  void join(RowSteps& steps, int sublayer, const Rows& result, const Rows& residual) const;

  const SizedTransformerLayerCall& sized_;
  const TensorView normed_;  // [B, T, E]; used if a norm comes before a sublayer
  RowSteps before_, between_, after_, last_;
  std::optional<ExpertsCall> experts_;
  AttentionCall self_;
  std::optional<AttentionCall> cross_;
};

}  // namespace mha

// One call of a layer of an encoder or a decoder, as phases.
#pragma once

#include <optional>

#include "execute/attention_call.hpp"
#include "execute/row_chain.hpp"
#include "weights/layer_parts.hpp"

namespace mha {

/// Most phases that a BlockCall has: layer norm, two attentions, and the steps behind each of them.
constexpr int kMostBlockPhases = 1 + 2 * kMostAttentionPhases + 2 * RowChain::kMostSteps;

/// Used as AttentionCall is: sizes first, then pointers.
///
/// Rows go through three chains: what comes before attention (a layer norm, if that comes first), what lies between
/// self- and cross-attention, and everything from the last projection out of attention to the end of the layer. The
/// residual stream passes through memory once for each of them.
class BlockCall {
 public:
  /// Multiply-adds, about.
  static double work(const Block& block, const LayerArguments& self, const LayerArguments* cross);

  /// `self` and `cross` are validated; cross is null for an encoder's layer.
  BlockCall(const Block& block, const LayerArguments& self, const LayerArguments* cross, const KernelTable& table,
            int threads, Layout& layout);

  /// Of each worker.
  std::size_t scratch_bytes() const;

  /// `x` and `out` [B, T, E] have evenly spaced rows of neighbouring elements, and out may be x; `context` [B, S, Em] is
  /// empty if cross-attention has a cache.
  void place(std::byte* memory, const Workers& workers, const TensorView& x, const TensorView& context,
             const MutableTensorView& out);
  /// Returns how many it has written.
  int phases(Phase* phases);
  /// When the phases have been run: the cache has grown.
  void finish() const { self_.finish(); }

 private:
  RowChain new_chain(const KernelTable& table, int threads) const;
  void join(RowChain& chain, int sublayer, const Rows& result, const Rows& residual, const Rows& normed) const;

  const Block block_;
  const Index batch_, length_, embed_dim_;
  const DType dtype_;
  AttentionCall self_;
  std::optional<AttentionCall> cross_;
  RowChain before_, between_, after_;
  Rows joined_, hidden_;                        // buffers of after_
  std::size_t normed_at_ = 0, between_at_ = 0;  // [B, T, E] each, in memory
};

}  // namespace mha

// Stacks of layers: every layer is one run of phases, over rows that stay in one place from the first to the last.
#include "mha/transformer.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "checks/transformer.hpp"
#include "execute/dense_rows.hpp"
#include "execute/transformer_layer_call.hpp"
#include "platform/dispatch.hpp"
#include "views/ragged_batch.hpp"

namespace mha {
namespace {

Block block_of(const EncoderLayer& layer) {
  return {&layer.self_attention.packed(),
          nullptr,
          &layer.feed_forward.packed(),
          {&layer.norm1.weights(), &layer.norm2.weights()},
          layer.norm_first};
}

Block block_of(const DecoderLayer& layer) {
  return {&layer.self_attention.packed(),
          &layer.cross_attention.packed(),
          &layer.feed_forward.packed(),
          {&layer.norm1.weights(), &layer.norm2.weights(), &layer.norm3.weights()},
          layer.norm_first};
}

/// Layers that were found to fit each other.
template <class Layer>
struct Stack {
  Stack(const char* function, const Layer* first, Index count, const LayerNorm* norm) {
    if (count < 1) throw std::invalid_argument(std::string(function) + ": there must be at least 1 layer");
    for (Index i = 0; i < count; ++i) {
      const StackSizes found = validate_block(function, i, block_of(first[i]), i == 0 ? nullptr : &sizes);
      if (i == 0) sizes = found;
    }
    if (norm) validate_final_norm(function, norm->weights(), sizes);
    layers.assign(first, first + count);
    if (norm) final_norm = *norm;
  }

  Index count() const { return static_cast<Index>(layers.size()); }
  Block block(Index i) const {
    Block block = block_of(layers[static_cast<std::size_t>(i)]);
    if (final_norm && i + 1 == count()) block.final_norm = &final_norm->weights();
    return block;
  }

  StackSizes sizes;
  std::vector<Layer> layers;
  std::optional<LayerNorm> final_norm;
};

/// What one layer does in a call.
struct BlockArguments {
  Block block;
  LayerArguments self;
  std::optional<LayerArguments> cross;

  const LayerArguments* cross_or_null() const { return cross ? &*cross : nullptr; }
};

template <class Layer>
BlockArguments arguments_of(const Stack<Layer>& stack, Index i, const StackArguments& a) {
  const Block block = stack.block(i);
  BlockArguments arguments{block, self_arguments(a, i, block), {}};
  if (block.cross_attention) arguments.cross = cross_arguments(a, i, block);
  return arguments;
}

template <class Layer>
void run(const Stack<Layer>& stack, const StackArguments& given) {
  const StackArguments a = validate(stack.sizes, stack.count(), given);
  const KernelTable& table = active_kernels();
  Layout rows_layout;
  DenseRows rows(a.x, a.out, rows_layout);

  // All that can fail comes before the first layer runs and the first cache grows: rules, and memory.
  int threads = 0;
  std::size_t scratch_bytes = 0, bytes = 0;
  for (Index i = 0; i < stack.count(); ++i) {
    const BlockArguments of_layer = arguments_of(stack, i, a);
    if (i == 0)
      threads = threads_for(a.options.num_threads, std::numeric_limits<Index>::max(),
                            TransformerLayerCall::work(of_layer.block, of_layer.self, of_layer.cross_or_null()));
    Layout layout = rows_layout;
    const SizedTransformerLayerCall sized(of_layer.block, of_layer.self, of_layer.cross_or_null(), table, threads,
                                          layout);
    scratch_bytes = std::max(scratch_bytes, sized.scratch_bytes());
    bytes = std::max(bytes, layout.total());
  }
  Layout largest;
  largest.take(double(bytes));
  const CallMemory memory(largest, threads, scratch_bytes);

  rows.gather(memory.data());
  TensorView x = with_axes_of(rows.x(), a.x);
  const MutableTensorView out = with_axes_of(rows.out(), a.x);
  for (Index i = 0; i < stack.count(); ++i) {
    const BlockArguments of_layer = arguments_of(stack, i, a);
    Layout layout = rows_layout;
    const SizedTransformerLayerCall sized(of_layer.block, of_layer.self, of_layer.cross_or_null(), table, threads,
                                          layout);
    const TransformerLayerCall call(sized, memory, x, a.memory, out);
    Phase phases[kMostLayerPhases];
    run_phases(phases, call.phases(phases), threads);
    call.finish();
    x = out;
  }
  rows.scatter();
}

}  // namespace

class EncoderStack : public Stack<EncoderLayer> {
  using Stack::Stack;
};
class DecoderStack : public Stack<DecoderLayer> {
  using Stack::Stack;
};

Encoder::Encoder(const EncoderLayer* layers, Index count, const LayerNorm* final_norm)
    : stack_(std::make_shared<const EncoderStack>("Encoder", layers, count, final_norm)) {}

void Encoder::forward(const TensorView& x, const MutableTensorView& out, const AttentionOptions& options,
                      const EncoderExtras& extras) const {
  StackArguments arguments{"Encoder", x, out, options, {}, {}};
  arguments.weights = extras.weights;
  arguments.caches = extras.caches;
  arguments.new_lengths = extras.new_lengths;
  run(*stack_, arguments);
}

void Encoder::forward_varlen(const TensorView& x, const std::int64_t* cu_seqlens, Index num_sequences,
                             const MutableTensorView& out, const AttentionOptions& options) const {
  const RaggedBatch batch{num_sequences, cu_seqlens, cu_seqlens};
  StackArguments arguments{"Encoder", x, out, options, {}, {}};
  arguments.ragged = &batch;
  run(*stack_, arguments);
}

Index Encoder::num_layers() const { return stack_->count(); }
const EncoderLayer& Encoder::layer(Index i) const { return stack_->layers[static_cast<std::size_t>(i)]; }
DType Encoder::dtype() const { return stack_->sizes.dtype; }

Decoder::Decoder(const DecoderLayer* layers, Index count, const LayerNorm* final_norm)
    : stack_(std::make_shared<const DecoderStack>("Decoder", layers, count, final_norm)) {}

void Decoder::forward(const TensorView& x, const DecoderContext& context, const MutableTensorView& out,
                      const AttentionOptions& options, const AttentionOptions& memory_options) const {
  StackArguments arguments{"Decoder", x, out, options, context.memory, memory_options};
  arguments.memory_caches = context.memory_caches;
  arguments.caches = context.caches;
  arguments.new_lengths = context.new_lengths;
  run(*stack_, arguments);
}

Index Decoder::num_layers() const { return stack_->count(); }
const DecoderLayer& Decoder::layer(Index i) const { return stack_->layers[static_cast<std::size_t>(i)]; }
DType Decoder::dtype() const { return stack_->sizes.dtype; }

}  // namespace mha

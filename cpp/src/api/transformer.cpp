// Stacks of layers: every layer is one run of phases, over rows that stay in one place from the first to the last.
#include "mha/transformer.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "cache/cache_growth.hpp"
#include "checks/transformer.hpp"
#include "execute/dense_rows.hpp"
#include "execute/transformer_layer_call.hpp"
#include "platform/dispatch.hpp"
#include "platform/floating_point_state.hpp"
#include "views/ragged_batch.hpp"

namespace mha {
namespace {

const NormWeights* weights_of(const std::optional<Norm>& norm) { return norm ? &norm->weights() : nullptr; }

PackedTransformerLayer packed(const TransformerLayer& layer) {
  return {&layer.self_attention.packed(),
          layer.cross_attention ? &layer.cross_attention->packed() : nullptr,
          layer.feed_forward ? &layer.feed_forward->packed() : nullptr,
          {weights_of(layer.norm1), weights_of(layer.norm2), weights_of(layer.norm3)},
          {weights_of(layer.output_norm1), weights_of(layer.output_norm2), weights_of(layer.output_norm3)},
          layer.norm_placement,
          layer.experts ? &layer.experts->packed() : nullptr};
}

}  // namespace

/// Layers that were found to fit each other.
struct StackOfLayers {
  StackOfLayers(const char* called, const TransformerLayer* first, Index count, const Norm* norm) : name(called) {
    if (count < 1) throw std::invalid_argument(name + ": there must be at least 1 layer");
    for (Index i = 0; i < count; ++i) sizes = validate_layer(called, i, packed(first[i]), i == 0 ? nullptr : &sizes);
    if (norm) validate_final_norm(called, norm->weights(), sizes);
    if (sizes.memory_dim) cross_attention = name + ", attention to memory";
    layers = std::vector<TransformerLayer>(first, first + count);  // assign() would be more code
    if (norm) final_norm = *norm;
  }

  Index count() const { return static_cast<Index>(layers.size()); }
  PackedTransformerLayer layer(Index i) const {
    PackedTransformerLayer layer = packed(layers[static_cast<std::size_t>(i)]);
    if (final_norm && i + 1 == count()) layer.final_norm = &final_norm->weights();
    return layer;
  }
  StackArguments arguments(const TensorView& x, const MutableTensorView& out, const AttentionOptions& options,
                           const TransformerExtras& extras) const {
    return {name.c_str(), cross_attention.c_str(), x, out, options, extras};
  }

  std::string name, cross_attention;  // names of the stack, and of its attention to memory, in messages
  StackSizes sizes;
  std::vector<TransformerLayer> layers;
  std::optional<Norm> final_norm;
};

namespace {

/// One layer in a call: its weights, and the arguments of its attentions.
struct PartsOfCall {
  PackedTransformerLayer layer;
  LayerArguments self;
  std::optional<LayerArguments> cross;

  const LayerArguments* cross_or_null() const { return cross ? &*cross : nullptr; }
};

PartsOfCall parts_of(const StackOfLayers& stack, Index i, const StackArguments& a) {
  const PackedTransformerLayer layer = stack.layer(i);
  PartsOfCall parts{layer, self_arguments(a, i, layer), {}};
  if (layer.cross_attention) parts.cross = cross_arguments(a, i, layer);
  return parts;
}

void run(const StackOfLayers& stack, const StackArguments& given) {
  const FloatingPointState state;
  StackArguments a = validate(stack.sizes, stack.count(), given);
  std::optional<RowsOfMemories> memories;
  if (a.ragged && a.extras.memory_caches)
    a.memories =
        &memories
             .emplace(a.function, *a.ragged, a.extras.memory_sequences, a.extras.memory_caches[0]->config().batch_size)
             .batch();
  const KernelTable& table = active_kernels();
  Layout rows_layout;
  DenseRows rows(a.x, a.out, true, rows_layout);

  // All that can fail comes before the first layer runs and the first cache grows: rules, and memory.
  int threads = 0;
  std::size_t scratch_bytes = 0, bytes = 0;
  for (Index i = 0; i < stack.count(); ++i) {
    const PartsOfCall of_layer = parts_of(stack, i, a);
    if (i == 0)
      threads = threads_for(a.options.num_threads, std::numeric_limits<Index>::max(),
                            TransformerLayerCall::work(of_layer.layer, of_layer.self, of_layer.cross_or_null()));
    Layout layout = rows_layout;
    const SizedTransformerLayerCall sized(of_layer.layer, of_layer.self, of_layer.cross_or_null(), table, threads,
                                          layout);
    scratch_bytes = std::max(scratch_bytes, sized.scratch_bytes());
    bytes = std::max(bytes, layout.total());
  }
  KVCache* const* const caches = a.extras.caches;
  const NewTokens tokens(a.ragged, a.extras.new_lengths, caches ? caches[0]->config().batch_size : 0);
  CacheGrowth growth(a.function, caches, caches ? stack.count() : 0, a.x.extents[1], tokens.counts());
  Layout largest;
  largest.take(double(bytes));
  const CallMemory memory(largest, threads, scratch_bytes);

  rows.gather(memory.data());
  TensorView x = with_axes_of(rows.x(), a.x);
  const MutableTensorView out = with_axes_of(rows.out(), a.x);
  for (Index i = 0; i < stack.count(); ++i) {
    const PartsOfCall of_layer = parts_of(stack, i, a);
    Layout layout = rows_layout;
    const SizedTransformerLayerCall sized(of_layer.layer, of_layer.self, of_layer.cross_or_null(), table, threads,
                                          layout);
    TransformerLayerCall(sized, memory, x, a.extras.memory, out).run(threads);
    x = out;
  }
  // Not before now: a call that is cancelled in its last layer has grown no cache.
  growth.finish();
  rows.scatter();
}

}  // namespace

TransformerStack::TransformerStack(const TransformerLayer* layers, Index count, const Norm* final_norm,
                                   const char* name)
    : stack_(std::make_shared<const StackOfLayers>(name, layers, count, final_norm)) {}

void TransformerStack::forward(const TensorView& x, const MutableTensorView& out, const AttentionOptions& options,
                               const TransformerExtras& extras) const {
  run(*stack_, stack_->arguments(x, out, options, extras));
}

void TransformerStack::forward_varlen(const TensorView& x, const std::int64_t* cu_seqlens, Index num_sequences,
                                      const MutableTensorView& out, const AttentionOptions& options,
                                      const TransformerExtras& extras) const {
  const RaggedBatch batch{num_sequences, cu_seqlens, cu_seqlens, extras.sequences};
  StackArguments arguments = stack_->arguments(x, out, options, extras);
  // The attention of each layer would speak of cu_seqlens_q and the rows of query.
  if (num_sequences >= 0 && x.rank == 2)
    check_offsets(arguments.function, "cu_seqlens", cu_seqlens, num_sequences, "x", x.extents[0]);
  arguments.ragged = &batch;
  run(*stack_, arguments);
}

Index TransformerStack::num_layers() const { return stack_->count(); }
const TransformerLayer& TransformerStack::layer(Index i) const { return stack_->layers[static_cast<std::size_t>(i)]; }
DType TransformerStack::dtype() const { return stack_->sizes.dtype; }

}  // namespace mha

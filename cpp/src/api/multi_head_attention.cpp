// The layer: project, attend, concatenate, project out.
#include "mha/multi_head_attention.hpp"

#include <limits>

#include "cache/cache_growth.hpp"
#include "checks/attention.hpp"
#include "checks/weights.hpp"
#include "execute/attention_call.hpp"
#include "platform/dispatch.hpp"
#include "platform/floating_point_state.hpp"
#include "views/ragged_batch.hpp"

namespace mha {
namespace {

std::shared_ptr<const PackedAttention> pack(const MultiHeadAttentionConfig& config,
                                            const MultiHeadAttentionWeights& weights, const QueryKeySteps& steps) {
  const FloatingPointState state(Subnormals::kept);
  return std::make_shared<const PackedAttention>(validate(config, weights, steps), weights, steps);
}

void run(const PackedAttention& layer, const LayerArguments& a) {
  const NewTokens tokens(a.ragged, a.new_lengths, a.grows ? a.grows->config().batch_size : 0);
  CacheGrowth growth("MultiHeadAttention", &a.grows, a.grows ? 1 : 0, a.key ? a.key.extents[1] : 0, tokens.counts());
  const Index batch = a.query.extents[0], query_length = a.query.extents[1];
  const KernelTable& table = active_kernels();
  const DTypeKernels& kernels = table.kernels[static_cast<int>(layer.dtype())];
  const double work = AttentionCall::work(layer, a) + layer.out.work(double(batch) * double(query_length));
  const int threads = threads_for(a.options.num_threads, std::numeric_limits<Index>::max(), work);

  Layout layout;
  const SizedAttentionCall sized(layer, a, table, threads, layout);
  const CallMemory memory(layout, threads, sized.scratch_bytes());
  const AttentionCall attention(sized, memory, a.query, a.key, a.value);
  ProjectionRun project_out(memory.workers());
  project_out.add(projection(layer.out, kernels, attention.heads(),
                             {a.out.data,
                              layer.dtype(),
                              {batch, 1, query_length, layer.config.out_dim},
                              {a.out.strides[0], 0, a.out.strides[1], a.out.strides[2]}}));
  Phase phases[kMostAttentionPhases + 1];
  int count = attention.phases(phases);
  phases[count++] = projection_phase(project_out);
  run_phases(phases, count, threads);
  growth.finish();
}

}  // namespace

MultiHeadAttention::MultiHeadAttention(const MultiHeadAttentionConfig& config, const MultiHeadAttentionWeights& weights,
                                       const QueryKeySteps& steps)
    : packed_(pack(config, weights, steps)) {}

const MultiHeadAttentionConfig& MultiHeadAttention::config() const { return packed_->config; }
DType MultiHeadAttention::dtype() const { return packed_->dtype(); }
const QueryKeySteps& MultiHeadAttention::steps() const { return packed_->steps; }
std::array<WeightFormat, 4> MultiHeadAttention::weight_formats() const {
  return {packed_->query.format(), packed_->key.format(), packed_->value.format(), packed_->out.format()};
}

void MultiHeadAttention::copy_weights(const WeightOutputs& outputs) const {
  const FloatingPointState state(Subnormals::kept);
  validate(*this, outputs);
  packed_->unpack(outputs);
}

void MultiHeadAttention::forward(const TensorView& query, const TensorView& key, const TensorView& value,
                                 const MutableTensorView& out, const MutableTensorView& weights,
                                 const AttentionOptions& options) const {
  const FloatingPointState state;
  run(*packed_, validate(*packed_, {query, key, value, out, weights, options}));
}

void MultiHeadAttention::forward_varlen(const TensorView& query, const TensorView& key, const TensorView& value,
                                        const RaggedBatch& batch, const MutableTensorView& out,
                                        const AttentionOptions& options) const {
  const FloatingPointState state;
  LayerArguments arguments{query, key, value, out, {}, options};
  arguments.ragged = &batch;
  run(*packed_, validate(*packed_, arguments));
}

void MultiHeadAttention::forward_and_record(const TensorView& query, const TensorView& key, const TensorView& value,
                                            const RaggedBatch* batch, const AttentionRecord& record,
                                            const MutableTensorView& out, const AttentionOptions& options) const {
  const FloatingPointState state;
  LayerArguments arguments{query, key, value, out, {}, options};
  arguments.ragged = batch;
  arguments.record = &record;
  run(*packed_, validate(*packed_, arguments));
}

void MultiHeadAttention::forward(const TensorView& query, const TensorView& key, const TensorView& value,
                                 KVCache& cache, const MutableTensorView& out, const MutableTensorView& weights,
                                 const AttentionOptions& options, const std::int64_t* new_lengths) const {
  const FloatingPointState state;
  run(*packed_, validate(*packed_, {query, key, value, out, weights, options, &cache, &cache, new_lengths}));
}

void MultiHeadAttention::forward_varlen(const TensorView& query, const TensorView& key, const TensorView& value,
                                        const RaggedBatch& batch, KVCache& cache, const MutableTensorView& out,
                                        const AttentionOptions& options) const {
  const FloatingPointState state;
  LayerArguments arguments{query, key, value, out, {}, options, &cache, &cache};
  arguments.ragged = &batch;
  run(*packed_, validate(*packed_, arguments));
}

void MultiHeadAttention::attend(const TensorView& query, const KVCache& cache, const MutableTensorView& out,
                                const MutableTensorView& weights, const AttentionOptions& options) const {
  const FloatingPointState state;
  run(*packed_, validate(*packed_, {query, {}, {}, out, weights, options, &cache}));
}

void MultiHeadAttention::append_to(KVCache& cache, const TensorView& key, const TensorView& value,
                                   const std::int64_t* new_lengths, int num_threads) const {
  const FloatingPointState state;
  AttentionOptions options;
  options.num_threads = num_threads;
  LayerArguments arguments{{}, key, value, {}, {}, options, &cache, &cache, new_lengths};
  arguments.appends_only = true;
  run(*packed_, validate(*packed_, arguments));
}

}  // namespace mha

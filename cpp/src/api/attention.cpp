// Front end: validate, plan, run.
#include "mha/attention.hpp"

#include "checks/attention.hpp"
#include "checks/kv_cache.hpp"
#include "execute/run_plan.hpp"
#include "mha/varlen.hpp"
#include "plan/make_plan.hpp"
#include "platform/dispatch.hpp"
#include "platform/floating_point_state.hpp"

namespace mha {
namespace {

/// The options whose masked scores are the scores of `options` at `stage`: later options are left out.
AttentionOptions up_to(ScoreStage stage, const AttentionOptions& options) {
  if (stage >= ScoreStage::masked) return options;
  AttentionOptions earlier;
  earlier.scale = options.scale;
  earlier.key_lengths = options.key_lengths;
  earlier.num_threads = options.num_threads;
  if (stage == ScoreStage::capped) earlier.softcap = options.softcap;
  return earlier;
}

void run_weights(AttentionArguments arguments, ScoreStage stage) {
  const AttentionOutput output = stage == ScoreStage::weights ? AttentionOutput::weights : AttentionOutput::scores;
  validate(arguments, output);
  arguments.options = up_to(stage, arguments.options);
  run_plan(make_plan(arguments, output, active_kernels()), arguments.options.num_threads);
}

}  // namespace

void scaled_dot_product_attention(const TensorView& query, const TensorView& key, const TensorView& value,
                                  const MutableTensorView& out, const MutableTensorView& lse,
                                  const AttentionOptions& options) {
  const FloatingPointState state;
  AttentionArguments arguments{"scaled_dot_product_attention", query, key, value, out, lse, options};
  validate(arguments, AttentionOutput::attended_values);
  run_plan(make_plan(arguments, AttentionOutput::attended_values, active_kernels()), options.num_threads);
}

void scaled_dot_product_attention(const TensorView& query, const KVCache& cache, const MutableTensorView& out,
                                  const MutableTensorView& lse, const AttentionOptions& options) {
  const FloatingPointState state;
  AttentionArguments arguments{"scaled_dot_product_attention", query, {}, {}, out, lse, options};
  const CachedKeys keys(arguments, cache, true);
  validate(arguments, AttentionOutput::attended_values);
  run_plan(make_plan(arguments, AttentionOutput::attended_values, active_kernels()), options.num_threads);
}

void scaled_dot_product_attention_varlen(const TensorView& query, const TensorView& key, const TensorView& value,
                                         const RaggedBatch& batch, const MutableTensorView& out,
                                         const MutableTensorView& lse, const AttentionOptions& options) {
  const FloatingPointState state;
  AttentionArguments arguments{"scaled_dot_product_attention_varlen", query, key, value, out, lse, options, &batch};
  validate(arguments, AttentionOutput::attended_values);
  run_plan(make_plan(arguments, AttentionOutput::attended_values, active_kernels()), options.num_threads);
}

void attention_weights(const TensorView& query, const TensorView& key, const MutableTensorView& weights,
                       const AttentionOptions& options, ScoreStage stage) {
  const FloatingPointState state;
  run_weights({"attention_weights", query, key, {}, weights, {}, options}, stage);
}

void attention_weights(const TensorView& query, const KVCache& cache, const MutableTensorView& weights,
                       const AttentionOptions& options, ScoreStage stage) {
  const FloatingPointState state;
  AttentionArguments arguments{"attention_weights", query, {}, {}, weights, {}, options};
  const CachedKeys keys(arguments, cache, false);
  run_weights(arguments, stage);
}

}  // namespace mha

// Front end: validate, plan, run.
#include "mha/attention.hpp"

#include "dispatch.hpp"
#include "make_plan.hpp"
#include "mha/varlen.hpp"
#include "run_plan.hpp"

namespace mha {

void scaled_dot_product_attention(const TensorView& query, const TensorView& key, const TensorView& value,
                                  const MutableTensorView& out, const MutableTensorView& lse,
                                  const AttentionOptions& options) {
  const AttentionArguments arguments = validate({"scaled_dot_product_attention", query, key, value, out, lse, options});
  run_plan(make_plan(arguments, AttentionOutput::attended_values, active_kernels()), options.num_threads);
}

void scaled_dot_product_attention_varlen(const TensorView& query, const TensorView& key, const TensorView& value,
                                         const RaggedBatch& batch, const MutableTensorView& out,
                                         const MutableTensorView& lse, const AttentionOptions& options) {
  const AttentionArguments arguments =
      validate({"scaled_dot_product_attention_varlen", query, key, value, out, lse, options, &batch});
  run_plan(make_plan(arguments, AttentionOutput::attended_values, active_kernels()), options.num_threads);
}

void attention_weights(const TensorView& query, const TensorView& key, const MutableTensorView& weights,
                       const AttentionOptions& options) {
  const AttentionArguments arguments = validate({"attention_weights", query, key, {}, weights, {}, options});
  run_plan(make_plan(arguments, AttentionOutput::weights, active_kernels()), options.num_threads);
}

}  // namespace mha

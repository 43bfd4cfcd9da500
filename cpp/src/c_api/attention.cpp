// mha/mha.h: each function is one of the C++ API between conversions; exceptions become a status. Here are the
// runtime and attention.
#include "c_api/conversions.hpp"

#include <cstdio>
#include <exception>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace mha::c_api {
namespace {

static_assert(static_cast<int>(DType::boolean) == MHA_DTYPE_boolean, "both come from dtypes.def");
static_assert(static_cast<int>(DType::int8) == MHA_DTYPE_int8);
static_assert(static_cast<int>(ScoreStage::scaled) == MHA_SCORES_SCALED &&
              static_cast<int>(ScoreStage::capped) == MHA_SCORES_CAPPED &&
              static_cast<int>(ScoreStage::masked) == MHA_SCORES_MASKED &&
              static_cast<int>(ScoreStage::weights) == MHA_WEIGHTS);

// No allocation, since an allocation may have failed. Longer sentences are cut; shapes come first in them.
thread_local char last_error[1024] = "";

mha_status failed(mha_status status, const char* sentence, const char* function = nullptr) {
  std::snprintf(last_error, sizeof last_error, "%s%s%s", function ? function : "", function ? ": " : "", sentence);
  return status;
}

// A field of AttentionOptions from the field of mha_attention_options, and back, where tensors are not given by
// default.
template <class T>
void assign(T& to, T from, const char* = nullptr) {
  to = from;
}
void assign(TensorView& to, const mha_tensor* from, const char* name) { to = view(from, name); }
void assign(const mha_tensor*& to, const TensorView&) { to = nullptr; }

}  // namespace

mha_status success() noexcept {
  last_error[0] = '\0';
  return MHA_OK;
}

mha_status failure(const char* function) noexcept {
  try {
    throw;
  } catch (const Refusal& refusal) {
    return failed(refusal.status, refusal.sentence.c_str(), function);
  } catch (const DTypeError& error) {
    return failed(MHA_DTYPE_ERROR, error.what());
  } catch (const std::invalid_argument& error) {
    return failed(MHA_INVALID_ARGUMENT, error.what());
  } catch (const std::bad_alloc& error) {
    return failed(MHA_OUT_OF_MEMORY, error.what());
  } catch (const Cancelled& error) {
    return failed(MHA_CANCELLED, error.what());
  } catch (const std::exception& error) {
    return failed(MHA_OTHER_ERROR, error.what());
  } catch (...) {
    return failed(MHA_OTHER_ERROR, "mha_native: an unknown exception");
  }
}

void refuse_null(const std::string& name) { throw Refusal{MHA_INVALID_ARGUMENT, name + ": a null pointer"}; }

MutableTensorView view(const mha_tensor* tensor, const char* name) {
  MutableTensorView result;
  if (tensor == nullptr) return result;
  if (tensor->rank < 0 || tensor->rank > kMaxRank)
    throw Refusal{MHA_INVALID_ARGUMENT,
                  name + std::string(": rank must be 0 to 4; got ") + std::to_string(tensor->rank)};
  result.data = tensor->data;
  result.dtype = dtype_of(name, tensor->dtype);
  result.rank = tensor->rank;
  for (int axis = 0; axis < tensor->rank; ++axis) {
    result.extents[axis] = tensor->extents[axis];
    result.strides[axis] = tensor->strides[axis];
  }
  return result;
}

AttentionOptions options_of(const mha_attention_options* from) {
  AttentionOptions options;
  if (from == nullptr) return options;
#define MHA_OPTION(field, type, argument, reading) assign(options.field, from->field, #field);
#include "mha/attention_options.def"
#undef MHA_OPTION
  options.num_threads = from->num_threads;
  return options;
}

mha_tensor tensor_of(const TensorView& view) {
  mha_tensor tensor = {const_cast<void*>(view.data), static_cast<mha_dtype>(view.dtype), view.rank, {}, {}};
  for (int axis = 0; axis < view.rank; ++axis) {
    tensor.extents[axis] = view.extents[axis];
    tensor.strides[axis] = view.strides[axis];
  }
  return tensor;
}

AttentionStatistics statistics_of(const mha_statistics* results) {
  const mha_statistics& wanted = given(results, "results");
  return {view(wanted.entropy, "entropy"), view(wanted.max_weight, "max_weight"), wanted.max_key,
          view(wanted.mean_distance, "mean_distance"), view(wanted.received_weight, "received_weight")};
}

AttentionGradients gradients_of(const mha_attention_gradients* gradients) {
  const mha_attention_gradients& wanted = given(gradients, "gradients");
  return {view(wanted.query, "query"),
          view(wanted.key, "key"),
          view(wanted.value, "value"),
          view(wanted.attn_mask, "attn_mask"),
          view(wanted.alibi_slopes, "alibi_slopes"),
          view(wanted.position_bias, "position_bias"),
          view(wanted.sinks, "sinks")};
}

RaggedBatch batch_of(const mha_ragged_batch* batch) {
  const mha_ragged_batch& from = given(batch, "batch");
  return {from.size, from.cu_seqlens_q, from.cu_seqlens_k, from.sequences};
}

namespace {

thread_local std::optional<IsaScope> thread_isa;
thread_local std::optional<ExecutorScope> chosen_executor;
thread_local std::optional<CancellationScope> chosen_cancellation;

}  // namespace
}  // namespace mha::c_api

using namespace mha;
using namespace mha::c_api;

const char* mha_last_error() noexcept { return last_error; }

const char* mha_version() noexcept { return MHA_VERSION; }

int mha_num_built_isas() noexcept { return num_built_isas(); }

const char* mha_built_isa(int index) noexcept {
  return value_or(__func__, nullptr, [&] { return built_isa(index); });
}

bool mha_isa_supported(int index) noexcept {
  return value_or(__func__, false, [&] { return isa_supported(index); });
}

const char* mha_isa_reason(int index) noexcept {
  return value_or(__func__, nullptr, [&] { return isa_reason(index); });
}

const char* mha_active_isa() noexcept { return value_or(__func__, nullptr, &active_isa); }
const char* mha_active_isa_reason() noexcept { return value_or(__func__, nullptr, &active_isa_reason); }
const char* mha_last_used_isa() noexcept { return last_used_isa(); }

mha_status mha_set_isa(const char* name) noexcept {
  return guarded(__func__, [&] { set_isa(name); });
}

mha_status mha_set_thread_isa(int index) noexcept {
  return guarded(__func__, [&] {
    if (index < -1 || index >= num_built_isas())
      throw Refusal{MHA_INVALID_ARGUMENT, "index must be from -1 to " + std::to_string(num_built_isas() - 1) +
                                              "; got " + std::to_string(index)};
    if (index != -1) IsaScope check(index);
    thread_isa.reset();
    if (index != -1) thread_isa.emplace(index);
  });
}

int mha_num_threads() noexcept { return num_threads(); }
const char* mha_num_threads_reason() noexcept { return num_threads_reason(); }

mha_status mha_set_num_threads(int n) noexcept {
  return guarded(__func__, [&] { set_num_threads(n); });
}

bool mha_in_forked_child() noexcept { return in_forked_child(); }
size_t mha_scratch_bytes() noexcept { return scratch_bytes(); }

mha_status mha_set_executor(const mha_executor* executor) noexcept {
  return guarded(__func__, [&] {
    if (executor != nullptr) ExecutorScope({executor->parallel_for, executor->state, executor->num_threads});  // checks
    chosen_executor.reset();
    if (executor != nullptr)
      chosen_executor.emplace(Executor{executor->parallel_for, executor->state, executor->num_threads});
  });
}

mha_status mha_set_cancellation(bool (*should_cancel)(void* state), void* state) noexcept {
  return guarded(__func__, [&] {
    chosen_cancellation.reset();
    if (should_cancel != nullptr) chosen_cancellation.emplace(should_cancel, state);
  });
}

mha_tensor mha_dense(const void* data, mha_dtype dtype, int rank, const ptrdiff_t* extents) noexcept {
  mha_tensor tensor = {const_cast<void*>(data), dtype, rank, {}, {}};
  if (rank > kMaxRank) return tensor;  // which every function refuses
  ptrdiff_t stride = 1;
  for (int axis = rank; axis-- > 0;) {
    tensor.extents[axis] = extents[axis];
    tensor.strides[axis] = stride;
    stride = saturated_product(stride, extents[axis]);
  }
  return tensor;
}

mha_attention_options mha_default_options() noexcept {
  const AttentionOptions options;
  mha_attention_options result = {};
#define MHA_OPTION(field, type, argument, reading) assign(result.field, options.field);
#include "mha/attention_options.def"
#undef MHA_OPTION
  result.num_threads = options.num_threads;
  return result;
}

mha_status mha_scaled_dot_product_attention(const mha_tensor* query, const mha_tensor* key, const mha_tensor* value,
                                            const mha_tensor* out, const mha_tensor* lse,
                                            const mha_attention_options* options) noexcept {
  return guarded(__func__, [&] {
    scaled_dot_product_attention(view(query, "query"), view(key, "key"), view(value, "value"), view(out, "out"),
                                 view(lse, "lse"), options_of(options));
  });
}

mha_status mha_scaled_dot_product_attention_varlen(const mha_tensor* query, const mha_tensor* key,
                                                   const mha_tensor* value, const mha_ragged_batch* batch,
                                                   const mha_tensor* out, const mha_tensor* lse,
                                                   const mha_attention_options* options) noexcept {
  return guarded(__func__, [&] {
    scaled_dot_product_attention_varlen(view(query, "query"), view(key, "key"), view(value, "value"), batch_of(batch),
                                        view(out, "out"), view(lse, "lse"), options_of(options));
  });
}

mha_status mha_attention_weights(const mha_tensor* query, const mha_tensor* key, const mha_tensor* weights,
                                 const mha_attention_options* options, mha_score_stage stage) noexcept {
  return guarded(__func__, [&] {
    attention_weights(view(query, "query"), view(key, "key"), view(weights, "weights"), options_of(options),
                      enumerator<ScoreStage>("stage", "mha_score_stage", stage, MHA_WEIGHTS + 1));
  });
}

mha_status mha_attention_statistics(const mha_tensor* query, const mha_tensor* key, const mha_statistics* results,
                                    const mha_attention_options* options) noexcept {
  return guarded(__func__, [&] {
    attention_statistics(view(query, "query"), view(key, "key"), statistics_of(results), options_of(options));
  });
}

mha_status mha_attention_gradient(const mha_tensor* query, const mha_tensor* key, const mha_tensor* value,
                                  const mha_tensor* out, const mha_tensor* lse, const mha_tensor* dout,
                                  const mha_attention_gradients* gradients, const mha_attention_options* options,
                                  const mha_tensor* dlse) noexcept {
  return guarded(__func__, [&] {
    attention_gradient(view(query, "query"), view(key, "key"), view(value, "value"), view(out, "out"), view(lse, "lse"),
                       view(dout, "dout"), gradients_of(gradients), options_of(options), view(dlse, "dlse"));
  });
}

mha_status mha_attention_gradient_varlen(const mha_tensor* query, const mha_tensor* key, const mha_tensor* value,
                                         const mha_ragged_batch* batch, const mha_tensor* out, const mha_tensor* lse,
                                         const mha_tensor* dout, const mha_attention_gradients* gradients,
                                         const mha_attention_options* options, const mha_tensor* dlse) noexcept {
  return guarded(__func__, [&] {
    attention_gradient_varlen(view(query, "query"), view(key, "key"), view(value, "value"), batch_of(batch),
                              view(out, "out"), view(lse, "lse"), view(dout, "dout"), gradients_of(gradients),
                              options_of(options), view(dlse, "dlse"));
  });
}

mha_status mha_merge_attention(const mha_tensor* outs, const mha_tensor* lses, ptrdiff_t shards, const mha_tensor* out,
                               const mha_tensor* lse, int num_threads) noexcept {
  return guarded(__func__, [&] {
    const std::vector<TensorView> shard_outs = views_of<TensorView>(&given(outs, "outs"), shards, "outs"),
                                  shard_lses = views_of<TensorView>(&given(lses, "lses"), shards, "lses");
    merge_attention(shard_outs.data(), shard_lses.data(), shards, view(out, "out"), view(lse, "lse"), num_threads);
  });
}

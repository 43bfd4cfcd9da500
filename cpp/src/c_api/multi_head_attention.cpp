// mha/mha.h, continued: the attention layer, and rotary positions.
#include "c_api/conversions.hpp"

namespace mha::c_api {
namespace {

static_assert(static_cast<int>(RotaryPairs::halves) == MHA_ROTARY_HALVES &&
              static_cast<int>(RotaryPairs::neighbours) == MHA_ROTARY_NEIGHBOURS);

/// MultiHeadAttentionWeights, or the outputs of the same names.
template <class View>
BasicMultiHeadAttentionWeights<View> weights_of(const mha_layer_weights& w) {
  return {linear_of<View>(w.query, "query"), linear_of<View>(w.key, "key"),  linear_of<View>(w.value, "value"),
          linear_of<View>(w.out, "out"),     view(w.added_key, "added_key"), view(w.added_value, "added_value")};
}

/// No steps for null.
QueryKeySteps steps_of(const mha_query_key_steps* from) {
  if (from == nullptr) return {};
  return {optional_part(from->query_norm), optional_part(from->key_norm), optional_part(from->rotary)};
}

void create_layer(const mha_layer_config* config, const mha_layer_weights* weights, const mha_query_key_steps* steps,
                  mha_layer** layer) {
  const mha_layer_config& c = given(config, "config");
  // Of several mistakes the weights' comes first: compilers evaluate the arguments of a call in any order.
  const auto views = weights_of<TensorView>(given(weights, "weights"));
  create(layer, "layer",
         MultiHeadAttentionConfig{
             c.embed_dim, c.num_heads, c.num_kv_heads, c.head_dim, c.value_head_dim, c.kdim, c.vdim, c.out_dim,
             c.add_bias_kv, c.add_zero_attn,
             enumerator<WeightFormat>("weight_format", "mha_weight_format", c.weight_format, kNumWeightFormats)},
         views, steps_of(steps));
}

const MultiHeadAttention& layer_of(const mha_layer* layer) { return object(layer, "layer"); }
KVCache& cache_of(mha_cache* cache) { return object(cache, "cache"); }

}  // namespace
}  // namespace mha::c_api

using namespace mha;
using namespace mha::c_api;

mha_status mha_rotary_create(const mha_tensor* cos, const mha_tensor* sin, mha_rotary_pairs pairs,
                             mha_rotary** rotary) noexcept {
  return guarded(__func__, [&] {
    create(rotary, "rotary", TensorView(view(cos, "cos")), TensorView(view(sin, "sin")),
           enumerator<RotaryPairs>("pairs", "mha_rotary_pairs", pairs, MHA_ROTARY_NEIGHBOURS + 1));
  });
}

void mha_rotary_destroy(mha_rotary* rotary) noexcept { destroy(rotary); }

mha_status mha_rotary_rotate(const mha_rotary* rotary, const mha_tensor* x, const int64_t* positions,
                             const mha_tensor* out, bool backwards, int num_threads) noexcept {
  return guarded(__func__, [&] {
    object(rotary, "rotary").rotate(view(x, "x"), positions, view(out, "out"), backwards, num_threads);
  });
}

ptrdiff_t mha_rotary_max_positions(const mha_rotary* rotary) noexcept { return object(*rotary).max_positions(); }
ptrdiff_t mha_rotary_rotary_dim(const mha_rotary* rotary) noexcept { return object(*rotary).rotary_dim(); }
mha_rotary_pairs mha_rotary_pairs_of(const mha_rotary* rotary) noexcept {
  return static_cast<mha_rotary_pairs>(object(*rotary).pairs());
}
mha_dtype mha_rotary_dtype(const mha_rotary* rotary) noexcept {
  return static_cast<mha_dtype>(object(*rotary).dtype());
}
mha_tensor mha_rotary_cos(const mha_rotary* rotary) noexcept { return tensor_of(object(*rotary).cos()); }
mha_tensor mha_rotary_sin(const mha_rotary* rotary) noexcept { return tensor_of(object(*rotary).sin()); }

mha_status mha_layer_create(const mha_layer_config* config, const mha_layer_weights* weights,
                            mha_layer** layer) noexcept {
  return guarded(__func__, [&] { create_layer(config, weights, nullptr, layer); });
}

mha_status mha_layer_create_with_steps(const mha_layer_config* config, const mha_layer_weights* weights,
                                       const mha_query_key_steps* steps, mha_layer** layer) noexcept {
  return guarded(__func__, [&] { create_layer(config, weights, steps, layer); });
}

void mha_layer_destroy(mha_layer* layer) noexcept { destroy(layer); }

mha_layer_config mha_layer_config_of(const mha_layer* layer) noexcept {
  const MultiHeadAttentionConfig& c = object(*layer).config();
  return {c.embed_dim,
          c.num_heads,
          c.num_kv_heads,
          c.head_dim,
          c.value_head_dim,
          c.kdim,
          c.vdim,
          c.out_dim,
          c.add_bias_kv,
          c.add_zero_attn,
          static_cast<mha_weight_format>(c.weight_format)};
}

void mha_layer_weight_formats(const mha_layer* layer, mha_weight_format formats[4]) noexcept {
  for (WeightFormat format : object(*layer).weight_formats()) *formats++ = static_cast<mha_weight_format>(format);
}

mha_query_key_steps mha_layer_steps(const mha_layer* layer) noexcept {
  const QueryKeySteps& steps = object(*layer).steps();
  return {handle_or_null<mha_norm>(steps.query_norm), handle_or_null<mha_norm>(steps.key_norm),
          handle_or_null<mha_rotary>(steps.rotary)};
}

mha_dtype mha_layer_dtype(const mha_layer* layer) noexcept { return static_cast<mha_dtype>(object(*layer).dtype()); }

mha_status mha_layer_copy_weights(const mha_layer* layer, const mha_layer_weights* outputs) noexcept {
  return guarded(__func__,
                 [&] { layer_of(layer).copy_weights(weights_of<MutableTensorView>(given(outputs, "outputs"))); });
}

mha_status mha_layer_forward(const mha_layer* layer, const mha_tensor* query, const mha_tensor* key,
                             const mha_tensor* value, const mha_tensor* out, const mha_tensor* weights,
                             const mha_attention_options* options) noexcept {
  return guarded(__func__, [&] {
    layer_of(layer).forward(view(query, "query"), view(key, "key"), view(value, "value"), view(out, "out"),
                            view(weights, "weights"), options_of(options));
  });
}

mha_status mha_layer_forward_varlen(const mha_layer* layer, const mha_tensor* query, const mha_tensor* key,
                                    const mha_tensor* value, const mha_ragged_batch* batch, const mha_tensor* out,
                                    const mha_attention_options* options) noexcept {
  return guarded(__func__, [&] {
    layer_of(layer).forward_varlen(view(query, "query"), view(key, "key"), view(value, "value"), batch_of(batch),
                                   view(out, "out"), options_of(options));
  });
}

mha_status mha_layer_forward_and_record(const mha_layer* layer, const mha_tensor* query, const mha_tensor* key,
                                        const mha_tensor* value, const mha_ragged_batch* batch,
                                        const mha_attention_record* record, const mha_tensor* out,
                                        const mha_attention_options* options) noexcept {
  return guarded(__func__, [&] {
    const mha_attention_record& r = given(record, "record");
    const AttentionRecord views = {view(r.query, "query"), view(r.key, "key"), view(r.value, "value"),
                                   view(r.heads, "heads"), view(r.lse, "lse")};
    const RaggedBatch rows = batch ? batch_of(batch) : RaggedBatch{};
    layer_of(layer).forward_and_record(view(query, "query"), view(key, "key"), view(value, "value"),
                                       batch ? &rows : nullptr, views, view(out, "out"), options_of(options));
  });
}

mha_status mha_layer_forward_cached(const mha_layer* layer, const mha_tensor* query, const mha_tensor* key,
                                    const mha_tensor* value, mha_cache* cache, const mha_tensor* out,
                                    const mha_tensor* weights, const mha_attention_options* options,
                                    const int64_t* new_lengths) noexcept {
  return guarded(__func__, [&] {
    layer_of(layer).forward(view(query, "query"), view(key, "key"), view(value, "value"), cache_of(cache),
                            view(out, "out"), view(weights, "weights"), options_of(options), new_lengths);
  });
}

mha_status mha_layer_forward_varlen_cached(const mha_layer* layer, const mha_tensor* query, const mha_tensor* key,
                                           const mha_tensor* value, const mha_ragged_batch* batch, mha_cache* cache,
                                           const mha_tensor* out, const mha_attention_options* options) noexcept {
  return guarded(__func__, [&] {
    layer_of(layer).forward_varlen(view(query, "query"), view(key, "key"), view(value, "value"), batch_of(batch),
                                   cache_of(cache), view(out, "out"), options_of(options));
  });
}

mha_status mha_layer_attend(const mha_layer* layer, const mha_tensor* query, const mha_cache* cache,
                            const mha_tensor* out, const mha_tensor* weights,
                            const mha_attention_options* options) noexcept {
  return guarded(__func__, [&] {
    layer_of(layer).attend(view(query, "query"), object(cache, "cache"), view(out, "out"), view(weights, "weights"),
                           options_of(options));
  });
}

mha_status mha_layer_append_to(const mha_layer* layer, mha_cache* cache, const mha_tensor* key, const mha_tensor* value,
                               const int64_t* new_lengths, int num_threads) noexcept {
  return guarded(__func__, [&] {
    layer_of(layer).append_to(cache_of(cache), view(key, "key"), view(value, "value"), new_lengths, num_threads);
  });
}

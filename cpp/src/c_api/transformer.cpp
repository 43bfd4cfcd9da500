// mha/mha.h, continued: the parts around attention. Positions, embeddings, norms, linear maps, feed-forward, and
// stacks of transformer layers.
#include "c_api/conversions.hpp"

#include <stdexcept>
#include <vector>

namespace mha::c_api {
namespace {

static_assert(static_cast<int>(Activation::none) == MHA_ACTIVATION_NONE &&
              static_cast<int>(Activation::relu) == MHA_ACTIVATION_RELU &&
              static_cast<int>(Activation::gelu) == MHA_ACTIVATION_GELU &&
              static_cast<int>(Activation::gelu_tanh) == MHA_ACTIVATION_GELU_TANH &&
              static_cast<int>(Activation::silu) == MHA_ACTIVATION_SILU &&
              static_cast<int>(Activation::swiglu_oai) == MHA_ACTIVATION_SWIGLU_OAI &&
              static_cast<int>(Activation::quick_gelu) == MHA_ACTIVATION_QUICK_GELU);
static_assert(static_cast<int>(NormKind::layer) == MHA_NORM_LAYER && static_cast<int>(NormKind::rms) == MHA_NORM_RMS &&
              static_cast<int>(NormKind::rms_unit_offset) == MHA_NORM_RMS_UNIT_OFFSET);
static_assert(static_cast<int>(Reduction::mean) == MHA_REDUCTION_MEAN &&
              static_cast<int>(Reduction::sum) == MHA_REDUCTION_SUM &&
              static_cast<int>(Reduction::none) == MHA_REDUCTION_NONE);
static_assert(static_cast<int>(NormPlacement::after) == MHA_NORM_AFTER &&
              static_cast<int>(NormPlacement::before) == MHA_NORM_BEFORE &&
              static_cast<int>(NormPlacement::parallel) == MHA_NORM_PARALLEL);

constexpr int kNormPlacements = MHA_NORM_PARALLEL + 1;

const Norm& norm_of(const mha_norm* norm) { return object(norm, "norm"); }
const Linear& linear_layer_of(const mha_linear* layer) { return object(layer, "linear"); }
const FeedForward& feed_forward_of(const mha_feed_forward* layer) { return object(layer, "feed_forward"); }

Activation activation_of(mha_activation activation) {
  return enumerator<Activation>("activation", "mha_activation", activation, MHA_ACTIVATION_QUICK_GELU + 1);
}

/// FeedForwardWeights, or the outputs of the same names.
template <class View>
BasicFeedForwardWeights<View> weights_of(const mha_feed_forward_weights& w) {
  return {linear_of<View>(w.up, "up"), linear_of<View>(w.down, "down"), linear_of<View>(w.gate, "gate")};
}

/// The part `name` of layers[i].
template <class Handle>
Object<Handle>& part(Handle* handle, Index i, const char* name) {
  if (handle == nullptr) refuse_null("layers[" + std::to_string(i) + "]." + name);
  return object(*handle);
}

TransformerLayer layer_of(const mha_transformer_layer& parts, Index i) {
  return {part(parts.self_attention, i, "self_attention"),
          optional_part(parts.cross_attention),
          parts.experts == nullptr ? std::optional<FeedForward>(part(parts.feed_forward, i, "feed_forward"))
                                   : optional_part(parts.feed_forward),
          optional_part(parts.norm1),
          optional_part(parts.norm2),
          optional_part(parts.norm3),
          enumerator<NormPlacement>("norm_placement", "mha_norm_placement", parts.norm_placement, kNormPlacements),
          optional_part(parts.output_norm1),
          optional_part(parts.output_norm2),
          optional_part(parts.output_norm3),
          optional_part(parts.experts)};
}

/// One for each of `count`; none, if there is no array.
std::vector<AttentionOptions> options_of_layers(const mha_attention_options* options, Index count) {
  std::vector<AttentionOptions> all;
  for (Index i = 0; options != nullptr && i < count; ++i) all.push_back(options_of(&options[i]));
  return all;
}

/// The first element of an array that was given, else null.
template <class T>
const T* first_of(const std::vector<T>& array) {
  return array.empty() ? nullptr : array.data();
}

/// TransformerExtras of a stack of `count` layers, with the arrays that they point to.
class Extras {
 public:
  Extras(const mha_transformer_extras* given, Index count)
      : from_(given == nullptr ? mha_transformer_extras{} : *given),
        memory_caches_(from_.memory_caches, count, "memory_caches"),
        caches_(from_.caches, count, "caches"),
        layer_options_(options_of_layers(from_.layer_options, count)),
        weights_(views_of<MutableTensorView>(from_.weights, count, "weights")) {}

  TransformerExtras get() const {
    return {view(from_.memory, "memory"),
            memory_caches_.data(),
            options_of(from_.memory_options),
            first_of(layer_options_),
            caches_.data(),
            from_.new_lengths,
            from_.sequences,
            from_.memory_sequences,
            first_of(weights_)};
  }

 private:
  const mha_transformer_extras from_;
  const Objects<const mha_cache> memory_caches_;
  const Objects<mha_cache> caches_;
  const std::vector<AttentionOptions> layer_options_;
  const std::vector<MutableTensorView> weights_;
};

}  // namespace
}  // namespace mha::c_api

using namespace mha;
using namespace mha::c_api;

mha_status mha_sinusoidal_positions(const mha_tensor* out, int64_t first_position) noexcept {
  return guarded(__func__, [&] { sinusoidal_positions(view(out, "out"), first_position); });
}

mha_status mha_embed_tokens(const int64_t* tokens, const int64_t* places, const int64_t* cu_seqlens,
                            ptrdiff_t batch_size, const mha_embedding_tables* tables, const mha_tensor* out,
                            int num_threads) noexcept {
  return guarded(__func__, [&] {
    const mha_embedding_tables& t = given(tables, "tables");
    embed_tokens(tokens, places, cu_seqlens, batch_size,
                 {view(t.words, "words"), view(t.positions, "positions"), view(t.norm_weight, "norm_weight"),
                  view(t.norm_bias, "norm_bias"), t.norm_eps},
                 view(out, "out"), num_threads);
  });
}

mha_status mha_mean_pool(const mha_tensor* x, const int64_t* cu_seqlens, ptrdiff_t batch_size, bool normalize,
                         const mha_tensor* out, int num_threads) noexcept {
  return guarded(__func__,
                 [&] { mean_pool(view(x, "x"), cu_seqlens, batch_size, normalize, view(out, "out"), num_threads); });
}

mha_status mha_embedding_gradient(const int64_t* ids, const mha_tensor* dout, const mha_tensor* out,
                                  int num_threads) noexcept {
  return guarded(__func__, [&] { embedding_gradient(ids, view(dout, "dout"), view(out, "out"), num_threads); });
}

mha_status mha_cross_entropy(const mha_tensor* x, const mha_tensor* weight, const mha_tensor* bias,
                             const int64_t* targets, const mha_tensor* loss,
                             const mha_cross_entropy_gradients* gradients,
                             const mha_cross_entropy_options* options) noexcept {
  return guarded(__func__, [&] {
    const mha_cross_entropy_gradients none{}, &wanted = gradients == nullptr ? none : *gradients;
    CrossEntropyOptions chosen;
    if (options != nullptr)
      chosen = {options->ignore_index, options->label_smoothing,
                enumerator<Reduction>("reduction", "mha_reduction", options->reduction, MHA_REDUCTION_NONE + 1),
                options->num_threads};
    cross_entropy(
        view(x, "x"), view(weight, "weight"), view(bias, "bias"), targets, view(loss, "loss"),
        {view(wanted.x, "gradients.x"), view(wanted.weight, "gradients.weight"), view(wanted.bias, "gradients.bias")},
        chosen);
  });
}

mha_status mha_maxsim(const mha_token_matrices* queries, const mha_token_matrices* documents, const mha_tensor* scores,
                      const mha_maxsim_options* options) noexcept {
  return guarded(__func__, [&] {
    const auto matrices = [](const mha_token_matrices& m) {
      return TokenMatrices{view(m.tokens, "tokens"), view(m.scale, "scale"), m.count, m.cu_seqlens};
    };
    MaxSimOptions chosen;
    std::vector<QueryAndDocument> pairs;
    if (options != nullptr) {
      if (options->pairs != nullptr && options->pair_count >= 0) {
        pairs.reserve(static_cast<std::size_t>(options->pair_count) + 1);
        for (Index i = 0; i < options->pair_count; ++i)
          pairs.push_back({options->pairs[i].query, options->pairs[i].document});
      }
      chosen = {options->pairs == nullptr ? nullptr : pairs.data(), options->pair_count, options->num_threads};
    }
    maxsim(matrices(given(queries, "queries")), matrices(given(documents, "documents")), view(scores, "scores"),
           chosen);
  });
}

mha_status mha_quantize_tokens(const mha_tensor* x, const mha_tensor* integers, const mha_tensor* scale,
                               int num_threads) noexcept {
  return guarded(__func__,
                 [&] { quantize_tokens(view(x, "x"), view(integers, "integers"), view(scale, "scale"), num_threads); });
}

mha_status mha_adamw(const mha_tensor* weight, const mha_tensor* gradient, const mha_tensor* m, const mha_tensor* v,
                     const mha_adamw_step* step, int num_threads) noexcept {
  return guarded(__func__, [&] {
    const mha_adamw_step& s = given(step, "step");
    adamw(view(weight, "weight"), view(gradient, "gradient"), view(m, "m"), view(v, "v"),
          {s.lr, s.beta1, s.beta2, s.eps, s.weight_decay, s.gradient_norm, s.max_norm, s.step}, num_threads);
  });
}

mha_status mha_gradient_norm(const mha_tensor* gradients, ptrdiff_t count, int num_threads, double* norm) noexcept {
  return guarded(__func__, [&] {
    const std::vector<TensorView> views = views_of<TensorView>(gradients, count, "gradients");
    if (gradients == nullptr && count > 0) refuse_null("gradients");
    given(norm, "norm") = gradient_norm(views.data(), count, num_threads);
  });
}

mha_status mha_norm_create(const mha_tensor* weight, const mha_tensor* bias, double eps, mha_norm** norm) noexcept {
  return guarded(__func__, [&] { create(norm, "norm", LayerNorm(view(weight, "weight"), view(bias, "bias"), eps)); });
}

mha_status mha_rms_norm_create(const mha_tensor* weight, double eps, bool unit_offset, mha_norm** norm) noexcept {
  return guarded(__func__, [&] { create(norm, "norm", RMSNorm(view(weight, "weight"), eps, unit_offset)); });
}

void mha_norm_destroy(mha_norm* norm) noexcept { destroy(norm); }

mha_status mha_norm_forward(const mha_norm* norm, const mha_tensor* x, const mha_tensor* out,
                            int num_threads) noexcept {
  return guarded(__func__, [&] { norm_of(norm).forward(view(x, "x"), view(out, "out"), num_threads); });
}

mha_status mha_add_and_normalize(const mha_tensor* x, const mha_tensor* residual, const mha_norm* norm,
                                 const mha_tensor* sum, const mha_tensor* out, int num_threads) noexcept {
  return guarded(__func__, [&] {
    add_and_normalize(view(x, "x"), view(residual, "residual"), norm ? &norm_of(norm) : nullptr, view(sum, "sum"),
                      view(out, "out"), num_threads);
  });
}

mha_norm_kind mha_norm_kind_of(const mha_norm* norm) noexcept {
  return static_cast<mha_norm_kind>(object(*norm).kind());
}
ptrdiff_t mha_norm_embed_dim(const mha_norm* norm) noexcept { return object(*norm).embed_dim(); }
double mha_norm_eps(const mha_norm* norm) noexcept { return object(*norm).eps(); }
bool mha_norm_has_bias(const mha_norm* norm) noexcept { return object(*norm).has_bias(); }
mha_dtype mha_norm_dtype(const mha_norm* norm) noexcept { return static_cast<mha_dtype>(object(*norm).dtype()); }

mha_status mha_norm_copy_weights(const mha_norm* norm, const mha_tensor* weight, const mha_tensor* bias) noexcept {
  return guarded(__func__, [&] { norm_of(norm).copy_weights(view(weight, "weight"), view(bias, "bias")); });
}

mha_status mha_norm_gradient(mha_norm_kind kind, const mha_tensor* x, const mha_tensor* weight, double eps,
                             const mha_tensor* dout, const mha_norm_gradients* gradients, int num_threads) noexcept {
  return guarded(__func__, [&] {
    const mha_norm_gradients& wanted = given(gradients, "gradients");
    norm_gradient(
        enumerator<NormKind>("kind", "mha_norm_kind", kind, MHA_NORM_RMS_UNIT_OFFSET + 1), view(x, "x"),
        view(weight, "weight"), eps, view(dout, "dout"),
        {view(wanted.x, "gradients.x"), view(wanted.weight, "gradients.weight"), view(wanted.bias, "gradients.bias")},
        num_threads);
  });
}

mha_status mha_linear_create(const mha_linear_weights* weights, mha_weight_format weight_format,
                             mha_linear** linear) noexcept {
  return guarded(__func__, [&] {
    create(linear, "linear", linear_of<TensorView>(given(weights, "weights"), "weights"),
           enumerator<WeightFormat>("weight_format", "mha_weight_format", weight_format, kNumWeightFormats));
  });
}

void mha_linear_destroy(mha_linear* linear) noexcept { destroy(linear); }

mha_status mha_linear_forward(const mha_linear* linear, const mha_tensor* x, const mha_tensor* out,
                              int num_threads) noexcept {
  return guarded(__func__, [&] { linear_layer_of(linear).forward(view(x, "x"), view(out, "out"), num_threads); });
}

mha_status mha_linear_once(const mha_tensor* x, const mha_linear_weights* weights, const mha_tensor* out,
                           int num_threads) noexcept {
  return guarded(__func__, [&] {
    linear(view(x, "x"), linear_of<TensorView>(given(weights, "weights"), "weights"), view(out, "out"), num_threads);
  });
}

mha_status mha_dequantize(const mha_linear_weights* weights, const mha_tensor* out, int num_threads) noexcept {
  return guarded(__func__, [&] {
    dequantize(linear_of<TensorView>(given(weights, "weights"), "weights"), view(out, "out"), num_threads);
  });
}

mha_status mha_linear_gradient(const mha_tensor* x, const mha_tensor* weight, const mha_tensor* dout,
                               const mha_linear_gradients* gradients, int num_threads) noexcept {
  return guarded(__func__, [&] {
    const mha_linear_gradients& wanted = given(gradients, "gradients");
    linear_gradient(
        view(x, "x"), view(weight, "weight"), view(dout, "dout"),
        {view(wanted.x, "gradients.x"), view(wanted.weight, "gradients.weight"), view(wanted.bias, "gradients.bias")},
        num_threads);
  });
}

ptrdiff_t mha_linear_in_features(const mha_linear* linear) noexcept { return object(*linear).in_features(); }
ptrdiff_t mha_linear_out_features(const mha_linear* linear) noexcept { return object(*linear).out_features(); }
bool mha_linear_has_bias(const mha_linear* linear) noexcept { return object(*linear).has_bias(); }
mha_dtype mha_linear_dtype(const mha_linear* linear) noexcept {
  return static_cast<mha_dtype>(object(*linear).dtype());
}
mha_weight_format mha_linear_weight_format(const mha_linear* linear) noexcept {
  return static_cast<mha_weight_format>(object(*linear).weight_format());
}

mha_status mha_linear_copy_weights(const mha_linear* linear, const mha_linear_weights* outputs) noexcept {
  return guarded(__func__, [&] {
    linear_layer_of(linear).copy_weights(linear_of<MutableTensorView>(given(outputs, "outputs"), "outputs"));
  });
}

mha_status mha_linear_dequantize_rows(const mha_linear* linear, const int64_t* features, ptrdiff_t count,
                                      const mha_tensor* rows) noexcept {
  return guarded(__func__, [&] { linear_layer_of(linear).dequantize_rows(features, count, view(rows, "rows")); });
}

mha_status mha_activate(mha_activation activation, const mha_tensor* x, const mha_tensor* up, const mha_tensor* out,
                        int num_threads) noexcept {
  return guarded(__func__, [&] {
    activate(activation_of(activation), view(x, "x"), view(up, "up"), view(out, "out"), num_threads);
  });
}

mha_status mha_activation_gradient(mha_activation activation, const mha_tensor* x, const mha_tensor* up,
                                   const mha_tensor* dout, const mha_activation_gradients* gradients,
                                   int num_threads) noexcept {
  return guarded(__func__, [&] {
    const mha_activation_gradients& wanted = given(gradients, "gradients");
    activation_gradient(activation_of(activation), view(x, "x"), view(up, "up"), view(dout, "dout"),
                        {view(wanted.x, "gradients.x"), view(wanted.up, "gradients.up")}, num_threads);
  });
}

mha_status mha_feed_forward_create(const mha_feed_forward_weights* weights, mha_activation activation,
                                   mha_weight_format weight_format, mha_feed_forward** feed_forward) noexcept {
  return guarded(__func__, [&] {
    create(feed_forward, "feed_forward", weights_of<TensorView>(given(weights, "weights")), activation_of(activation),
           enumerator<WeightFormat>("weight_format", "mha_weight_format", weight_format, kNumWeightFormats));
  });
}

void mha_feed_forward_destroy(mha_feed_forward* feed_forward) noexcept { destroy(feed_forward); }

mha_status mha_feed_forward_forward(const mha_feed_forward* feed_forward, const mha_tensor* x, const mha_tensor* out,
                                    int num_threads) noexcept {
  return guarded(__func__, [&] { feed_forward_of(feed_forward).forward(view(x, "x"), view(out, "out"), num_threads); });
}

mha_status mha_feed_forward_up(const mha_feed_forward* feed_forward, mha_linear** linear) noexcept {
  return guarded(__func__, [&] { create(linear, "linear", feed_forward_of(feed_forward).up()); });
}
mha_status mha_feed_forward_down(const mha_feed_forward* feed_forward, mha_linear** linear) noexcept {
  return guarded(__func__, [&] { create(linear, "linear", feed_forward_of(feed_forward).down()); });
}
mha_status mha_feed_forward_gate(const mha_feed_forward* feed_forward, mha_linear** linear) noexcept {
  return guarded(__func__, [&] { create(linear, "linear", feed_forward_of(feed_forward).gate()); });
}

ptrdiff_t mha_feed_forward_embed_dim(const mha_feed_forward* layer) noexcept { return object(*layer).embed_dim(); }
ptrdiff_t mha_feed_forward_feedforward_dim(const mha_feed_forward* layer) noexcept {
  return object(*layer).feedforward_dim();
}
mha_activation mha_feed_forward_activation(const mha_feed_forward* layer) noexcept {
  return static_cast<mha_activation>(object(*layer).activation());
}
bool mha_feed_forward_has_up_bias(const mha_feed_forward* layer) noexcept { return object(*layer).has_up_bias(); }
bool mha_feed_forward_has_down_bias(const mha_feed_forward* layer) noexcept { return object(*layer).has_down_bias(); }
bool mha_feed_forward_has_gate(const mha_feed_forward* layer) noexcept { return object(*layer).has_gate(); }
bool mha_feed_forward_has_gate_bias(const mha_feed_forward* layer) noexcept { return object(*layer).has_gate_bias(); }
mha_dtype mha_feed_forward_dtype(const mha_feed_forward* layer) noexcept {
  return static_cast<mha_dtype>(object(*layer).dtype());
}
mha_weight_format mha_feed_forward_weight_format(const mha_feed_forward* layer) noexcept {
  return static_cast<mha_weight_format>(object(*layer).weight_format());
}

mha_status mha_feed_forward_copy_weights(const mha_feed_forward* feed_forward,
                                         const mha_feed_forward_weights* outputs) noexcept {
  return guarded(__func__, [&] {
    feed_forward_of(feed_forward).copy_weights(weights_of<MutableTensorView>(given(outputs, "outputs")));
  });
}

mha_status mha_experts_create(const mha_linear* router, const mha_feed_forward* const* feed_forwards,
                              ptrdiff_t num_experts, const mha_experts_config* config, const mha_feed_forward* shared,
                              const mha_linear* shared_gate, const mha_tensor* correction,
                              mha_experts** experts) noexcept {
  return guarded(__func__, [&] {
    std::vector<FeedForward> parts;
    if (feed_forwards == nullptr && num_experts > 0) refuse_null("feed_forwards");
    for (Index i = 0; i < num_experts; ++i) parts.push_back(object(feed_forwards[i], "feed_forwards[i]"));
    const mha_experts_config& c = given(config, "config");
    const ExpertsConfig chosen{c.experts_per_token, c.is_sigmoid, c.normalizes, c.scale};
    create(experts, "experts",
           Experts(object(router, "router"), parts.data(), num_experts, chosen,
                   shared == nullptr ? nullptr : &object(*shared),
                   shared_gate == nullptr ? nullptr : &object(*shared_gate), view(correction, "correction")));
  });
}

void mha_experts_destroy(mha_experts* experts) noexcept { destroy(experts); }

mha_status mha_experts_forward(const mha_experts* experts, const mha_tensor* x, const mha_tensor* out,
                               int num_threads) noexcept {
  return guarded(__func__, [&] { object(experts, "experts").forward(view(x, "x"), view(out, "out"), num_threads); });
}

ptrdiff_t mha_experts_num_experts(const mha_experts* experts) noexcept { return object(*experts).num_experts(); }
ptrdiff_t mha_experts_embed_dim(const mha_experts* experts) noexcept { return object(*experts).embed_dim(); }
mha_dtype mha_experts_dtype(const mha_experts* experts) noexcept {
  return static_cast<mha_dtype>(object(*experts).dtype());
}
mha_experts_config mha_experts_config_of(const mha_experts* experts) noexcept {
  const ExpertsConfig& c = object(*experts).config();
  return {c.experts_per_token, c.is_sigmoid, c.normalizes, c.scale};
}

mha_status mha_transformer_create(const mha_transformer_layer* layers, ptrdiff_t count, const mha_norm* final_norm,
                                  mha_transformer** transformer) noexcept {
  return guarded(__func__, [&] {
    std::vector<TransformerLayer> stack;
    if (count > 0) given(layers, "layers");
    for (Index i = 0; i < count; ++i) stack.push_back(layer_of(layers[i], i));
    create(transformer, "transformer", stack.data(), count, final_norm == nullptr ? nullptr : &object(*final_norm));
  });
}

void mha_transformer_destroy(mha_transformer* transformer) noexcept { destroy(transformer); }

mha_status mha_transformer_forward(const mha_transformer* transformer, const mha_tensor* x, const mha_tensor* out,
                                   const mha_attention_options* options,
                                   const mha_transformer_extras* extras) noexcept {
  return guarded(__func__, [&] {
    const TransformerStack& stack = object(transformer, "transformer");
    const Extras given(extras, stack.num_layers());
    stack.forward(view(x, "x"), view(out, "out"), options_of(options), given.get());
  });
}

mha_status mha_transformer_forward_varlen(const mha_transformer* transformer, const mha_tensor* x,
                                          const int64_t* cu_seqlens, ptrdiff_t num_sequences, const mha_tensor* out,
                                          const mha_attention_options* options,
                                          const mha_transformer_extras* extras) noexcept {
  return guarded(__func__, [&] {
    const TransformerStack& stack = object(transformer, "transformer");
    const Extras given(extras, stack.num_layers());
    stack.forward_varlen(view(x, "x"), cu_seqlens, num_sequences, view(out, "out"), options_of(options), given.get());
  });
}

ptrdiff_t mha_transformer_num_layers(const mha_transformer* transformer) noexcept {
  return object(*transformer).num_layers();
}

mha_transformer_layer mha_transformer_layer_of(const mha_transformer* transformer, ptrdiff_t i) noexcept {
  if (i < 0 || i >= object(*transformer).num_layers()) return {};
  const TransformerLayer& layer = object(*transformer).layer(i);
  return {handle_of<mha_layer>(layer.self_attention),
          handle_or_null<mha_layer>(layer.cross_attention),
          handle_or_null<mha_feed_forward>(layer.feed_forward),
          handle_or_null<mha_norm>(layer.norm1),
          handle_or_null<mha_norm>(layer.norm2),
          handle_or_null<mha_norm>(layer.norm3),
          static_cast<mha_norm_placement>(layer.norm_placement),
          handle_or_null<mha_norm>(layer.output_norm1),
          handle_or_null<mha_norm>(layer.output_norm2),
          handle_or_null<mha_norm>(layer.output_norm3),
          handle_or_null<mha_experts>(layer.experts)};
}

mha_dtype mha_transformer_dtype(const mha_transformer* transformer) noexcept {
  return static_cast<mha_dtype>(object(*transformer).dtype());
}

// mha/mha.h, continued: what stands around attention. Positions, embeddings, layer norm, feed-forward, encoder and
// decoder.
#include "c_api/conversions.hpp"

#include <stdexcept>

namespace mha::c_api {
namespace {

static_assert(static_cast<int>(Activation::none) == MHA_ACTIVATION_NONE &&
              static_cast<int>(Activation::relu) == MHA_ACTIVATION_RELU &&
              static_cast<int>(Activation::gelu) == MHA_ACTIVATION_GELU &&
              static_cast<int>(Activation::gelu_tanh) == MHA_ACTIVATION_GELU_TANH);

const LayerNorm& norm_of(const mha_norm* norm) { return object(norm, "norm"); }
const FeedForward& feed_forward_of(const mha_feed_forward* layer) { return object(layer, "feed_forward"); }

/// FeedForwardWeights, or the outputs of the same names.
template <class Weights>
Weights weights_of(const mha_feed_forward_weights& w) {
  return {view(w.weight1), view(w.bias1), view(w.weight2), view(w.bias2), view(w.scale1), view(w.scale2)};
}

/// The part `name` of layers[i].
template <class Handle>
Object<Handle>& part(Handle* handle, Index i, const char* name) {
  if (handle == nullptr) refuse_null("layers[" + std::to_string(i) + "]." + name);
  return object(*handle);
}

EncoderLayer layer_of(const mha_encoder_layer& parts, Index i) {
  return {part(parts.self_attention, i, "self_attention"), part(parts.feed_forward, i, "feed_forward"),
          part(parts.norm1, i, "norm1"), part(parts.norm2, i, "norm2"), parts.norm_first};
}

DecoderLayer layer_of(const mha_decoder_layer& parts, Index i) {
  return {part(parts.self_attention, i, "self_attention"),
          part(parts.cross_attention, i, "cross_attention"),
          part(parts.feed_forward, i, "feed_forward"),
          part(parts.norm1, i, "norm1"),
          part(parts.norm2, i, "norm2"),
          part(parts.norm3, i, "norm3"),
          parts.norm_first};
}

/// Makes an encoder or a decoder.
template <class Parts, class Handle>
void create_stack(const Parts* layers, ptrdiff_t count, const mha_norm* final_norm, Handle** handle, const char* name) {
  std::vector<decltype(layer_of(*layers, 0))> stack;
  if (count > 0) given(layers, "layers");
  for (Index i = 0; i < count; ++i) stack.push_back(layer_of(layers[i], i));
  create(handle, name, stack.data(), count, final_norm == nullptr ? nullptr : &object(*final_norm));
}

/// Whether a stack has a layer i.
template <class Handle>
bool has_layer(const Handle* stack, ptrdiff_t i) {
  return i >= 0 && i < object(*stack).num_layers();
}

}  // namespace
}  // namespace mha::c_api

using namespace mha;
using namespace mha::c_api;

mha_status mha_sinusoidal_positions(const mha_tensor* out, int64_t first_position) noexcept {
  return guarded([&] { sinusoidal_positions(view(out), first_position); });
}

mha_status mha_embed_tokens(const int64_t* tokens, const int64_t* cu_seqlens, ptrdiff_t batch_size,
                            const mha_embedding_tables* tables, const mha_tensor* out, int num_threads) noexcept {
  return guarded([&] {
    const mha_embedding_tables& t = given(tables, "tables");
    const MutableTensorView rows = view(out);
    if (rows.extents[0] > 0) given(tokens, "tokens");
    embed_tokens(tokens, cu_seqlens, batch_size,
                 {view(t.words), view(t.positions), view(t.norm_weight), view(t.norm_bias), t.norm_eps}, rows,
                 num_threads);
  });
}

mha_status mha_mean_pool(const mha_tensor* x, const int64_t* cu_seqlens, ptrdiff_t batch_size, bool normalize,
                         const mha_tensor* out, int num_threads) noexcept {
  return guarded([&] { mean_pool(view(x), cu_seqlens, batch_size, normalize, view(out), num_threads); });
}

mha_status mha_norm_create(const mha_tensor* weight, const mha_tensor* bias, double eps, mha_norm** norm) noexcept {
  return guarded([&] { create(norm, "norm", view(weight), view(bias), eps); });
}

void mha_norm_destroy(mha_norm* norm) noexcept { destroy(norm); }

mha_status mha_norm_forward(const mha_norm* norm, const mha_tensor* x, const mha_tensor* out,
                            int num_threads) noexcept {
  return guarded([&] { norm_of(norm).forward(view(x), view(out), num_threads); });
}

ptrdiff_t mha_norm_embed_dim(const mha_norm* norm) noexcept { return object(*norm).embed_dim(); }
double mha_norm_eps(const mha_norm* norm) noexcept { return object(*norm).eps(); }
bool mha_norm_has_bias(const mha_norm* norm) noexcept { return object(*norm).has_bias(); }
mha_dtype mha_norm_dtype(const mha_norm* norm) noexcept { return static_cast<mha_dtype>(object(*norm).dtype()); }

mha_status mha_norm_copy_weights(const mha_norm* norm, const mha_tensor* weight, const mha_tensor* bias) noexcept {
  return guarded([&] { norm_of(norm).copy_weights(view(weight), view(bias)); });
}

mha_status mha_feed_forward_create(const mha_feed_forward_weights* weights, mha_activation activation,
                                   mha_weight_format weight_format, mha_feed_forward** feed_forward) noexcept {
  return guarded([&] {
    if (activation < MHA_ACTIVATION_NONE || activation > MHA_ACTIVATION_GELU_TANH)
      throw std::invalid_argument("mha_activation: expected 0 to 3; got " + std::to_string(activation));
    create(feed_forward, "feed_forward", weights_of<FeedForwardWeights>(given(weights, "weights")),
           static_cast<Activation>(activation), weight_format_of(weight_format));
  });
}

void mha_feed_forward_destroy(mha_feed_forward* feed_forward) noexcept { destroy(feed_forward); }

mha_status mha_feed_forward_forward(const mha_feed_forward* feed_forward, const mha_tensor* x, const mha_tensor* out,
                                    int num_threads) noexcept {
  return guarded([&] { feed_forward_of(feed_forward).forward(view(x), view(out), num_threads); });
}

ptrdiff_t mha_feed_forward_embed_dim(const mha_feed_forward* layer) noexcept { return object(*layer).embed_dim(); }
ptrdiff_t mha_feed_forward_feedforward_dim(const mha_feed_forward* layer) noexcept {
  return object(*layer).feedforward_dim();
}
mha_activation mha_feed_forward_activation(const mha_feed_forward* layer) noexcept {
  return static_cast<mha_activation>(object(*layer).activation());
}
bool mha_feed_forward_has_bias1(const mha_feed_forward* layer) noexcept { return object(*layer).has_bias1(); }
bool mha_feed_forward_has_bias2(const mha_feed_forward* layer) noexcept { return object(*layer).has_bias2(); }
mha_dtype mha_feed_forward_dtype(const mha_feed_forward* layer) noexcept {
  return static_cast<mha_dtype>(object(*layer).dtype());
}
mha_weight_format mha_feed_forward_weight_format(const mha_feed_forward* layer) noexcept {
  return static_cast<mha_weight_format>(object(*layer).weight_format());
}

mha_status mha_feed_forward_copy_weights(const mha_feed_forward* feed_forward,
                                         const mha_feed_forward_weights* outputs) noexcept {
  return guarded([&] {
    feed_forward_of(feed_forward).copy_weights(weights_of<FeedForward::WeightOutputs>(given(outputs, "outputs")));
  });
}

mha_status mha_encoder_create(const mha_encoder_layer* layers, ptrdiff_t count, const mha_norm* final_norm,
                              mha_encoder** encoder) noexcept {
  return guarded([&] { create_stack(layers, count, final_norm, encoder, "encoder"); });
}

void mha_encoder_destroy(mha_encoder* encoder) noexcept { destroy(encoder); }

mha_status mha_encoder_forward(const mha_encoder* encoder, const mha_tensor* x, const mha_tensor* out,
                               const mha_attention_options* options, const mha_encoder_extras* extras) noexcept {
  return guarded([&] {
    const Encoder& stack = object(encoder, "encoder");
    const mha_encoder_extras& e = extras == nullptr ? mha_encoder_extras{} : *extras;
    const std::vector<MutableTensorView> weights = views_of<MutableTensorView>(e.weights, stack.num_layers());
    const Objects caches(e.caches, stack.num_layers(), "caches");
    stack.forward(view(x), view(out), options_of(options),
                  {weights.empty() ? nullptr : weights.data(), caches.data(), e.new_lengths});
  });
}

mha_status mha_encoder_forward_varlen(const mha_encoder* encoder, const mha_tensor* x, const int64_t* cu_seqlens,
                                      ptrdiff_t num_sequences, const mha_tensor* out,
                                      const mha_attention_options* options) noexcept {
  return guarded([&] {
    object(encoder, "encoder").forward_varlen(view(x), cu_seqlens, num_sequences, view(out), options_of(options));
  });
}

ptrdiff_t mha_encoder_num_layers(const mha_encoder* encoder) noexcept { return object(*encoder).num_layers(); }

mha_encoder_layer mha_encoder_layer_of(const mha_encoder* encoder, ptrdiff_t i) noexcept {
  if (!has_layer(encoder, i)) return {};
  const EncoderLayer& layer = object(*encoder).layer(i);
  return {handle_of<mha_layer>(layer.self_attention), handle_of<mha_feed_forward>(layer.feed_forward),
          handle_of<mha_norm>(layer.norm1), handle_of<mha_norm>(layer.norm2), layer.norm_first};
}

mha_dtype mha_encoder_dtype(const mha_encoder* encoder) noexcept {
  return static_cast<mha_dtype>(object(*encoder).dtype());
}

mha_status mha_decoder_create(const mha_decoder_layer* layers, ptrdiff_t count, const mha_norm* final_norm,
                              mha_decoder** decoder) noexcept {
  return guarded([&] { create_stack(layers, count, final_norm, decoder, "decoder"); });
}

void mha_decoder_destroy(mha_decoder* decoder) noexcept { destroy(decoder); }

mha_status mha_decoder_forward(const mha_decoder* decoder, const mha_tensor* x, const mha_decoder_context* context,
                               const mha_tensor* out, const mha_attention_options* options,
                               const mha_attention_options* memory_options) noexcept {
  return guarded([&] {
    const Decoder& stack = object(decoder, "decoder");
    const mha_decoder_context& c = given(context, "context");
    const Objects memory_caches(c.memory_caches, stack.num_layers(), "memory_caches");
    const Objects caches(c.caches, stack.num_layers(), "caches");
    stack.forward(view(x), {view(c.memory), memory_caches.data(), caches.data(), c.new_lengths}, view(out),
                  options_of(options), options_of(memory_options));
  });
}

ptrdiff_t mha_decoder_num_layers(const mha_decoder* decoder) noexcept { return object(*decoder).num_layers(); }

mha_decoder_layer mha_decoder_layer_of(const mha_decoder* decoder, ptrdiff_t i) noexcept {
  if (!has_layer(decoder, i)) return {};
  const DecoderLayer& layer = object(*decoder).layer(i);
  return {handle_of<mha_layer>(layer.self_attention),
          handle_of<mha_layer>(layer.cross_attention),
          handle_of<mha_feed_forward>(layer.feed_forward),
          handle_of<mha_norm>(layer.norm1),
          handle_of<mha_norm>(layer.norm2),
          handle_of<mha_norm>(layer.norm3),
          layer.norm_first};
}

mha_dtype mha_decoder_dtype(const mha_decoder* decoder) noexcept {
  return static_cast<mha_dtype>(object(*decoder).dtype());
}

// Tensors without memory, and sizes beyond any memory: every function of mha.h refuses them by name, and writes nothing.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "c_calls.hpp"
#include "mha/mha.hpp"

namespace mha {
namespace {

using testing::Owned;

constexpr Index B = 2, H = 2, T = 3, D = 4, E = H * D, F = 16;
const std::vector<Index> kHeads = {B, H, T, D}, kRows = {B, T, E}, kSquare = {E, E}, kVector = {E};

/// One tensor argument: what messages call it, and whether a call can do without it.
struct Argument {
  std::string name;
  mha_tensor tensor;
  bool is_optional;
};

/// A valid call of one function, and its tensors.
class Call {
 public:
  explicit Call(const char* function) : function_(function) {}

  /// Adds a tensor, and returns what the call is to pass on. Its elements are tiny numbers, or true.
  const mha_tensor* operator()(const char* name, const std::vector<Index>& shape, bool is_optional = false,
                               mha_dtype dtype = MHA_DTYPE_f32) {
    Index size = 1;
    for (Index extent : shape) size *= extent;
    data_.emplace_back(static_cast<std::size_t>(size));
    std::memset(data_.back().data(), 1, data_.back().size() * sizeof(float));
    arguments_.push_back({name, mha_dense(data_.back().data(), dtype, int(shape.size()), shape.data()), is_optional});
    return &arguments_.back().tensor;
  }
  const mha_tensor* optional(const char* name, const std::vector<Index>& shape, mha_dtype dtype = MHA_DTYPE_f32) {
    return (*this)(name, shape, true, dtype);
  }

  /// The call is refused with each of its tensors changed, and goes through with none.
  void expect_refusals(const std::function<mha_status()>& call) {
    for (Argument& argument : arguments_) {
      SCOPED_TRACE(function_ + " of a changed " + argument.name);
      const mha_tensor good = argument.tensor;
      const auto expect_refusal = [&](mha_tensor changed, const char* reason) {
        argument.tensor = changed;
        const auto before = data_;
        testing::expect_failure(MHA_INVALID_ARGUMENT, call(), {argument.name.c_str(), reason});
        EXPECT_EQ(data_, before);
        argument.tensor = good;
      };
      mha_tensor changed = good;
      changed.data = nullptr;
      expect_refusal(changed, "null pointer");
      changed = good;
      changed.strides[0] = PTRDIFF_MAX;
      expect_refusal(changed, "");
      changed.strides[0] = PTRDIFF_MIN;
      expect_refusal(changed, "");
      changed = good;
      changed.extents[0] = PTRDIFF_MAX;
      expect_refusal(changed, "");
      if (!argument.is_optional) expect_refusal({}, "");
    }
    EXPECT_OK(call()) << function_;
  }

 private:
  std::string function_;
  std::deque<Argument> arguments_;
  std::deque<std::vector<float>> data_;
};

mha_attention_options options_of(Call& tensors, Index heads = H) {
  mha_attention_options options = mha_default_options();
  options.attn_mask = tensors.optional("attn_mask", {T, T});
  options.key_mask = tensors.optional("key_mask", {B, T}, MHA_DTYPE_boolean);
  options.block_mask = tensors.optional("block_mask", {B, 1, 1, 1}, MHA_DTYPE_boolean);
  options.alibi_slopes = tensors.optional("alibi_slopes", {heads});
  options.position_bias = tensors.optional("position_bias", {heads, 5});
  options.sinks = tensors.optional("sinks", {heads});
  return options;
}

mha_layer_weights weights_of(Call& tensors, bool are_outputs = false) {
  const auto linear = [&](const char* weight, const char* bias) {
    return mha_linear_weights{tensors(weight, kSquare, are_outputs), tensors.optional(bias, kVector), nullptr,
                              MHA_WEIGHT_FORMAT_PLAIN};
  };
  return {linear("query_weight", "query_bias"),       linear("key_weight", "key_bias"),
          linear("value_weight", "value_bias"),       linear("out_weight", "out_bias"),
          tensors("added_key", kVector, are_outputs), tensors("added_value", kVector, are_outputs)};
}

mha_feed_forward_weights feed_forward_weights_of(Call& tensors, bool are_outputs = false) {
  return {
      {tensors("up_weight", {F, E}, are_outputs), tensors.optional("up_bias", {F}), nullptr, MHA_WEIGHT_FORMAT_PLAIN},
      {tensors("down_weight", {E, F}, are_outputs), tensors.optional("down_bias", kVector), nullptr,
       MHA_WEIGHT_FORMAT_PLAIN},
      {tensors.optional("gate_weight", {F, E}), nullptr, nullptr, MHA_WEIGHT_FORMAT_PLAIN}};
}

Owned<mha_layer> make_layer(bool add_bias_kv = true) {
  Call tensors("mha_layer_create");
  mha_layer_weights weights = weights_of(tensors);
  const mha_layer_config config = {E, H, 0, 0, 0, 0, 0, 0, add_bias_kv, false, MHA_WEIGHT_FORMAT_PLAIN};
  if (!add_bias_kv) weights.added_key = weights.added_value = nullptr;
  mha_layer* layer = nullptr;
  EXPECT_OK(mha_layer_create(&config, &weights, &layer));
  return {layer, &mha_layer_destroy};
}

Owned<mha_norm> make_norm() {
  Call tensors("mha_norm_create");
  mha_norm* norm = nullptr;
  EXPECT_OK(mha_norm_create(tensors("weight", kVector), tensors("bias", kVector), 1e-5, &norm));
  return {norm, &mha_norm_destroy};
}

Owned<mha_feed_forward> make_feed_forward() {
  Call tensors("mha_feed_forward_create");
  const mha_feed_forward_weights weights = feed_forward_weights_of(tensors);
  mha_feed_forward* layer = nullptr;
  EXPECT_OK(mha_feed_forward_create(&weights, MHA_ACTIVATION_RELU, MHA_WEIGHT_FORMAT_PLAIN, &layer));
  return {layer, &mha_feed_forward_destroy};
}

Owned<mha_cache> make_cache() {
  const mha_cache_config config = {B, H, 20, D, 0, MHA_DTYPE_f32};
  mha_cache* cache = nullptr;
  EXPECT_OK(mha_cache_create(&config, &cache));
  return {cache, &mha_cache_destroy};
}

/// One layer, with or without attention to a memory.
Owned<mha_transformer> make_transformer(bool reads_memory) {
  const auto attention = make_layer(false);
  const auto feed_forward = make_feed_forward();
  const auto norm = make_norm();
  const mha_transformer_layer layer = {attention.get(),
                                       reads_memory ? attention.get() : nullptr,
                                       feed_forward.get(),
                                       norm.get(),
                                       norm.get(),
                                       reads_memory ? norm.get() : nullptr,
                                       MHA_NORM_AFTER,
                                       nullptr,
                                       nullptr,
                                       nullptr,
                                       nullptr};
  mha_transformer* transformer = nullptr;
  EXPECT_OK(mha_transformer_create(&layer, 1, nullptr, &transformer));
  return {transformer, &mha_transformer_destroy};
}

const std::int64_t kOffsets[] = {0, 1, T}, kTokens[] = {0, 1, 2};
const mha_ragged_batch kBatch = {2, kOffsets, kOffsets, nullptr};

TEST(MissingTensors, OfAttention) {
  Call dense("mha_scaled_dot_product_attention");
  const auto *query = dense("query", kHeads), *key = dense("key", kHeads), *value = dense("value", kHeads),
             *out = dense("out", kHeads), *lse = dense.optional("lse", {B, H, T});
  const mha_attention_options options = options_of(dense);
  dense.expect_refusals([&] { return mha_scaled_dot_product_attention(query, key, value, out, lse, &options); });

  Call ragged("mha_scaled_dot_product_attention_varlen");
  const auto *rows = ragged("query", {T, H, D}), *keys = ragged("key", {T, H, D}), *values = ragged("value", {T, H, D}),
             *result = ragged("out", {T, H, D});
  ragged.expect_refusals(
      [&] { return mha_scaled_dot_product_attention_varlen(rows, keys, values, &kBatch, result, nullptr, nullptr); });
}

TEST(MissingTensors, OfWeightsAndStatistics) {
  Call weigh("mha_attention_weights");
  const auto *query = weigh("query", kHeads), *key = weigh("key", kHeads), *weights = weigh("weights", {B, H, T, T});
  const mha_attention_options options = options_of(weigh);
  weigh.expect_refusals([&] { return mha_attention_weights(query, key, weights, &options, MHA_WEIGHTS); });

  Call observe("mha_attention_statistics");
  const auto *q = observe("query", kHeads), *k = observe("key", kHeads);
  const std::vector<Index> shape = {B, H, T};
  const mha_statistics results = {observe.optional("entropy", shape), observe.optional("max_weight", shape), nullptr,
                                  observe.optional("mean_distance", shape), observe.optional("received_weight", shape)};
  observe.expect_refusals([&] { return mha_attention_statistics(q, k, &results, nullptr); });
}

TEST(MissingTensors, OfGradients) {
  Call dense("mha_attention_gradient");
  const std::vector<Index> sums = {B, H, T};
  const auto *query = dense("query", kHeads), *key = dense("key", kHeads), *value = dense("value", kHeads),
             *out = dense("out", kHeads), *lse = dense("lse", sums), *dout = dense("dout", kHeads),
             *dlse = dense.optional("dlse", sums);
  const mha_attention_options options = options_of(dense);
  const mha_attention_gradients gradients = {
      dense.optional("query", kHeads),     dense.optional("key", kHeads),       dense.optional("value", kHeads),
      dense.optional("attn_mask", {T, T}), dense.optional("alibi_slopes", {H}), dense.optional("position_bias", {H, 5}),
      dense.optional("sinks", {H})};
  dense.expect_refusals(
      [&] { return mha_attention_gradient(query, key, value, out, lse, dout, &gradients, &options, dlse); });

  Call ragged("mha_attention_gradient_varlen");
  const auto *rows = ragged("query", {T, H, D}), *keys = ragged("key", {T, H, D}), *values = ragged("value", {T, H, D}),
             *result = ragged("out", {T, H, D}), *logs = ragged("lse", {T, H}), *upstream = ragged("dout", {T, H, D});
  const mha_attention_gradients of_ragged = {
      ragged.optional("query", {T, H, D}), nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
  ragged.expect_refusals([&] {
    return mha_attention_gradient_varlen(rows, keys, values, &kBatch, result, logs, upstream, &of_ragged, nullptr,
                                         nullptr);
  });
}

TEST(MissingTensors, OfLinearMaps) {
  Call once("mha_linear_once");
  const auto *x = once("x", {T, E}), *out = once("out", {T, E});
  const mha_linear_weights weights = {once("weight", kSquare), once.optional("bias", kVector), nullptr,
                                      MHA_WEIGHT_FORMAT_PLAIN};
  once.expect_refusals([&] { return mha_linear_once(x, &weights, out, 1); });

  Call gradient("mha_linear_gradient");
  const auto *rows = gradient("x", {T, E}), *weight = gradient("weight", kSquare), *dout = gradient("dout", {T, E});
  const mha_linear_gradients gradients = {gradient.optional("gradients.x", {T, E}),
                                          gradient.optional("gradients.weight", kSquare),
                                          gradient.optional("gradients.bias", kVector)};
  gradient.expect_refusals([&] { return mha_linear_gradient(rows, weight, dout, &gradients, 1); });
}

TEST(MissingTensors, OfShards) {
  Call merge("mha_merge_attention");
  const std::vector<const mha_tensor*> outs = {merge("outs[0]", kHeads), merge("outs[1]", kHeads)},
                                       lses = {merge("lses[0]", {B, H, T}), merge("lses[1]", {B, H, T})};
  const auto *out = merge("out", kHeads), *lse = merge.optional("lse", {B, H, T});
  merge.expect_refusals([&] {
    const mha_tensor given_outs[] = {*outs[0], *outs[1]}, given_lses[] = {*lses[0], *lses[1]};
    return mha_merge_attention(given_outs, given_lses, 2, out, lse, 1);
  });
}

TEST(MissingTensors, OfCaches) {
  const auto cache = make_cache();
  for (const auto write : {&mha_cache_append, &mha_cache_assign}) {
    Call tokens("mha_cache_append, mha_cache_assign");
    const auto *key = tokens("key", kHeads), *value = tokens("value", kHeads);
    tokens.expect_refusals([&] { return write(cache.get(), key, value, nullptr); });
  }
}

TEST(MissingTensors, OfLayers) {
  Call create("mha_layer_create");
  const mha_layer_weights weights = weights_of(create);
  const mha_layer_config config = {E, H, 0, 0, 0, 0, 0, 0, true, false, MHA_WEIGHT_FORMAT_PLAIN};
  create.expect_refusals([&] {
    mha_layer* layer = nullptr;
    const mha_status status = mha_layer_create(&config, &weights, &layer);
    mha_layer_destroy(layer);
    return status;
  });

  const auto layer = make_layer();
  Call copy("mha_layer_copy_weights");
  const mha_layer_weights copies = weights_of(copy, true);
  copy.expect_refusals([&] { return mha_layer_copy_weights(layer.get(), &copies); });

  Call forward("mha_layer_forward");
  const auto *query = forward("query", kRows), *key = forward("key", kRows), *value = forward("value", kRows),
             *out = forward("out", kRows), *of_forward = forward.optional("weights", {B, H, T, T + 1});
  const mha_attention_options options = options_of(forward);
  forward.expect_refusals([&] { return mha_layer_forward(layer.get(), query, key, value, out, of_forward, &options); });

  Call ragged("mha_layer_forward_varlen");
  const auto *rows = ragged("query", {T, E}), *keys = ragged("key", {T, E}), *values = ragged("value", {T, E}),
             *result = ragged("out", {T, E});
  ragged.expect_refusals(
      [&] { return mha_layer_forward_varlen(layer.get(), rows, keys, values, &kBatch, result, nullptr); });
}

TEST(MissingTensors, OfLayersOverCaches) {
  const auto layer = make_layer();
  const auto cache = make_cache();
  Call append("mha_layer_append_to");
  const auto *k = append("key", kRows), *v = append("value", kRows);
  append.expect_refusals([&] { return mha_layer_append_to(layer.get(), cache.get(), k, v, nullptr, 1); });
  Call attend("mha_layer_attend");
  const auto *q = attend("query", kRows), *y = attend("out", kRows);
  attend.expect_refusals([&] { return mha_layer_attend(layer.get(), q, cache.get(), y, nullptr, nullptr); });
  Call forward("mha_layer_forward_cached");
  const auto *query = forward("query", kRows), *key = forward("key", kRows), *value = forward("value", kRows),
             *out = forward("out", kRows);
  const auto call = [&] {
    return mha_layer_forward_cached(layer.get(), query, key, value, cache.get(), out, nullptr, nullptr, nullptr);
  };
  forward.expect_refusals(call);
  // Without query and out it is not mha_layer_append_to().
  const std::int64_t tokens = mha_cache_lengths(cache.get())[0];
  query = out = nullptr;
  testing::expect_failure(MHA_INVALID_ARGUMENT, call(), {"query"});
  EXPECT_EQ(mha_cache_lengths(cache.get())[0], tokens);

  Call ragged("mha_layer_forward_varlen_cached");
  const auto *rows = ragged("query", {T, E}), *keys = ragged("key", {T, E}), *values = ragged("value", {T, E}),
             *result = ragged("out", {T, E});
  ragged.expect_refusals([&] {
    return mha_layer_forward_varlen_cached(layer.get(), rows, keys, values, &kBatch, cache.get(), result, nullptr);
  });
}

TEST(MissingTensors, OfRowLayers) {
  Call norm_weights("mha_norm_create");
  const auto *weight = norm_weights("weight", kVector), *bias = norm_weights.optional("bias", kVector);
  norm_weights.expect_refusals([&] {
    mha_norm* norm = nullptr;
    const mha_status status = mha_norm_create(weight, bias, 1e-5, &norm);
    mha_norm_destroy(norm);
    return status;
  });
  Call rms_weights("mha_rms_norm_create");
  const auto* rms_weight = rms_weights("weight", kVector);
  rms_weights.expect_refusals([&] {
    mha_norm* norm = nullptr;
    const mha_status status = mha_rms_norm_create(rms_weight, 1e-6, false, &norm);
    mha_norm_destroy(norm);
    return status;
  });
  const auto norm = make_norm();
  Call normalize("mha_norm_forward");
  const auto *x = normalize("x", kRows), *out = normalize("out", kRows);
  normalize.expect_refusals([&] { return mha_norm_forward(norm.get(), x, out, 1); });
  Call copy("mha_norm_copy_weights");
  const auto *weight_copy = copy.optional("weight", kVector), *bias_copy = copy.optional("bias", kVector);
  copy.expect_refusals([&] { return mha_norm_copy_weights(norm.get(), weight_copy, bias_copy); });

  Call create_linear("mha_linear_create");
  const mha_linear_weights linear_weights = {create_linear("weight", kSquare), create_linear.optional("bias", kVector),
                                             nullptr, MHA_WEIGHT_FORMAT_PLAIN};
  mha_linear* made = nullptr;
  create_linear.expect_refusals([&] {
    mha_linear* other = nullptr;
    const mha_status status = mha_linear_create(&linear_weights, MHA_WEIGHT_FORMAT_PLAIN, &other);
    mha_linear_destroy(other);
    return status;
  });
  EXPECT_OK(mha_linear_create(&linear_weights, MHA_WEIGHT_FORMAT_PLAIN, &made));
  const Owned<mha_linear> linear(made, &mha_linear_destroy);
  Call multiply("mha_linear_forward");
  const auto *factors = multiply("x", kRows), *products = multiply("out", kRows);
  multiply.expect_refusals([&] { return mha_linear_forward(linear.get(), factors, products, 1); });
  Call copy_linear("mha_linear_copy_weights");
  const mha_linear_weights linear_copies = {copy_linear.optional("weight", kSquare),
                                            copy_linear.optional("bias", kVector), nullptr, MHA_WEIGHT_FORMAT_PLAIN};
  copy_linear.expect_refusals([&] { return mha_linear_copy_weights(linear.get(), &linear_copies); });

  Call create("mha_feed_forward_create");
  const mha_feed_forward_weights weights = feed_forward_weights_of(create);
  create.expect_refusals([&] {
    mha_feed_forward* layer = nullptr;
    const mha_status status = mha_feed_forward_create(&weights, MHA_ACTIVATION_RELU, MHA_WEIGHT_FORMAT_PLAIN, &layer);
    mha_feed_forward_destroy(layer);
    return status;
  });
  const auto layer = make_feed_forward();
  Call unpack("mha_feed_forward_copy_weights");
  const mha_feed_forward_weights copies = feed_forward_weights_of(unpack, true);
  unpack.expect_refusals([&] { return mha_feed_forward_copy_weights(layer.get(), &copies); });
  Call forward("mha_feed_forward_forward");
  const auto *rows = forward("x", kRows), *result = forward("out", kRows);
  forward.expect_refusals([&] { return mha_feed_forward_forward(layer.get(), rows, result, 1); });
}

TEST(MissingTensors, OfTransformers) {
  const auto encoder = make_transformer(false), decoder = make_transformer(true);
  Call encode("mha_transformer_forward");
  const auto *x = encode("x", kRows), *y = encode("out", kRows);
  const mha_attention_options options = options_of(encode);
  encode.expect_refusals([&] { return mha_transformer_forward(encoder.get(), x, y, &options, nullptr); });

  Call decode("mha_transformer_forward over a memory");
  const auto *tokens = decode("x", kRows), *memory = decode("memory", kRows), *out = decode("out", kRows),
             *weights = decode.optional("weights", {B, H, T, T});
  const mha_attention_options of_memory = options_of(decode);
  decode.expect_refusals([&] {
    mha_transformer_extras extras = {};
    extras.memory = memory;
    extras.memory_options = &of_memory;
    extras.weights = weights;
    return mha_transformer_forward(decoder.get(), tokens, out, nullptr, &extras);
  });

  Call ragged("mha_transformer_forward_varlen");
  const auto *rows = ragged("x", {T, E}), *result = ragged("out", {T, E});
  ragged.expect_refusals(
      [&] { return mha_transformer_forward_varlen(encoder.get(), rows, kOffsets, 2, result, nullptr, nullptr); });
}

TEST(MissingTensors, OfPositionsAndTexts) {
  Call positions("mha_sinusoidal_positions");
  const auto* encoding = positions("out", {T, E});
  positions.expect_refusals([&] { return mha_sinusoidal_positions(encoding, 0); });

  Call embed("mha_embed_tokens");
  const auto *words = embed("words", {T, E}), *places = embed("positions", {T, E}),
             *weight = embed.optional("norm_weight", kVector), *bias = embed.optional("norm_bias", kVector),
             *out = embed("out", {T, E});
  const mha_embedding_tables tables = {words, places, weight, bias, 0};
  const std::int64_t* tokens = kTokens;
  const auto call = [&] { return mha_embed_tokens(tokens, nullptr, kOffsets, 2, &tables, out, 1); };
  embed.expect_refusals(call);
  tokens = nullptr;
  testing::expect_failure(MHA_INVALID_ARGUMENT, call(), {"embed_tokens", "tokens"});

  Call pool("mha_mean_pool");
  const auto *x = pool("x", {T, E}), *means = pool("out", {2, E});
  pool.expect_refusals([&] { return mha_mean_pool(x, kOffsets, 2, true, means, 1); });
}

TEST(MissingTensors, AnEmptyTensorNeedsNoMemory) {
  const TensorView query(nullptr, DType::f32, {B, H, 0, D}), key(nullptr, DType::f32, {B, H, 0, D});
  EXPECT_NO_THROW(scaled_dot_product_attention(query, key, key, MutableTensorView(nullptr, DType::f32, {B, H, 0, D})));
}

TEST(MissingTensors, StridesOfOneIndexMeanNothing) {
  std::vector<float> x(D, 1), out(D);
  const TensorView far(x.data(), DType::f32, {1, 1, 1, D}, {PTRDIFF_MAX, PTRDIFF_MIN, PTRDIFF_MAX, 1});
  const MutableTensorView result(out.data(), DType::f32, {1, 1, 1, D}, {PTRDIFF_MIN, PTRDIFF_MAX, PTRDIFF_MIN, 1});
  scaled_dot_product_attention(far, far, far, result);
  EXPECT_EQ(out, x);
}

/// Results without elements, of a batch that would take years to count: each call returns at once.
TEST(HugeSizes, EmptyResultsTakeNoTime) {
  const Index huge = Index{1} << 40;
  const TensorView x(nullptr, DType::f32, {huge, 1, 0, 8}), rows(nullptr, DType::f32, {huge, 0, E});
  const MutableTensorView out(nullptr, DType::f32, {huge, 1, 0, 8}), row(nullptr, DType::f32, {huge, 0, E}),
      lse(nullptr, DType::f32, {huge, 1, 0});
  scaled_dot_product_attention(x, x, x, out, lse);
  attention_weights(x, x, MutableTensorView(nullptr, DType::f32, {huge, 1, 0, 0}));
  attention_statistics(x, x, {lse, lse, nullptr, {}, {}});
  attention_statistics(x, x, {});
  const TensorView lses[] = {lse};
  merge_attention(&x, lses, 1, out, lse);
  // Nothing along the last axis, and much along the others.
  const MutableTensorView narrow(nullptr, DType::f32, {1, 1, huge, 0});
  float query[8] = {};
  scaled_dot_product_attention(TensorView(query, DType::f32, {1, 1, huge, 8}, {0, 0, 0, 1}), TensorView(query, {1, 8}),
                               MutableTensorView(nullptr, DType::f32, {1, 0}), narrow);
  sinusoidal_positions(MutableTensorView(nullptr, DType::f32, {0, huge}));
  const std::int64_t offsets[] = {0, huge};
  mean_pool(TensorView(nullptr, DType::f32, {huge, 0}), offsets, 1, true,
            MutableTensorView(nullptr, DType::f32, {1, 0}));

  const mha_tensor c_rows = {nullptr, MHA_DTYPE_f32, 3, {huge, 0, E}, {E, E, 1}};
  EXPECT_OK(mha_layer_forward(make_layer().get(), &c_rows, &c_rows, &c_rows, &c_rows, nullptr, nullptr));
  EXPECT_OK(mha_norm_forward(make_norm().get(), &c_rows, &c_rows, 0));
  EXPECT_OK(mha_feed_forward_forward(make_feed_forward().get(), &c_rows, &c_rows, 0));
  EXPECT_OK(mha_transformer_forward(make_transformer(false).get(), &c_rows, &c_rows, nullptr, nullptr));
}

}  // namespace
}  // namespace mha

// Encoders and decoders in C: the bits are those of the C++ functions; calls that are refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "arrays.hpp"
#include "c_calls.hpp"
#include "mha/mha.hpp"

namespace mha {
namespace {

using testing::Array;
using testing::c_tensor;
using testing::expect_failure;
using testing::nans;
using testing::Owned;

using Rows = Array<float>;

constexpr Index kEmbed = 24, kHeads = 3, kHidden = 40, kMemory = 16;

Owned<mha_layer> c_attention(Index memory_dim, const Rows& square, const Rows& key, const Rows& bias) {
  const mha_tensor c_square = c_tensor(square), c_key = c_tensor(key), c_bias = c_tensor(bias);
  const mha_layer_config config = {
      kEmbed, kHeads, 0, 0, 0, memory_dim, memory_dim, 0, false, false, MHA_WEIGHT_FORMAT_PLAIN};
  const mha_layer_weights weights = {&c_square, &c_key,  &c_key,  &c_square, &c_bias, &c_bias, &c_bias,
                                     &c_bias,   nullptr, nullptr, nullptr,   nullptr, nullptr, nullptr};
  mha_layer* layer = nullptr;
  EXPECT_OK(mha_layer_create(&config, &weights, &layer));
  return {layer, &mha_layer_destroy};
}

MultiHeadAttention attention(Index memory_dim, const Rows& square, const Rows& key, const Rows& bias) {
  MultiHeadAttentionConfig config{kEmbed, kHeads};
  config.kdim = config.vdim = memory_dim;
  return {config,
          {square.view(), key.view(), key.view(), square.view(), bias.view(), bias.view(), bias.view(), bias.view()}};
}

Owned<mha_norm> c_norm(const Rows& weight, const Rows* bias, double eps) {
  const mha_tensor c_weight = c_tensor(weight), c_bias = bias ? c_tensor(*bias) : mha_tensor{};
  mha_norm* norm = nullptr;
  EXPECT_OK(mha_norm_create(&c_weight, bias ? &c_bias : nullptr, eps, &norm));
  return {norm, &mha_norm_destroy};
}

Owned<mha_feed_forward> c_feed_forward(const Rows& up, const Rows& bias1, const Rows& down, const Rows& bias2,
                                       mha_activation activation) {
  const mha_tensor c_up = c_tensor(up), c_bias1 = c_tensor(bias1), c_down = c_tensor(down), c_bias2 = c_tensor(bias2);
  const mha_feed_forward_weights weights = {&c_up, &c_bias1, &c_down, &c_bias2, nullptr, nullptr};
  mha_feed_forward* layer = nullptr;
  EXPECT_OK(mha_feed_forward_create(&weights, activation, MHA_WEIGHT_FORMAT_PLAIN, &layer));
  return {layer, &mha_feed_forward_destroy};
}

/// The parts of one layer in C and in C++: all of them make a decoder layer, some of them an encoder layer.
struct Parts {
  explicit Parts(unsigned seed)
      : square(Rows::random({kEmbed, kEmbed}, seed)),
        key(Rows::random({kEmbed, kMemory}, seed + 1)),
        up(Rows::random({kHidden, kEmbed}, seed + 2)),
        down(Rows::random({kEmbed, kHidden}, seed + 3)),
        bias(Rows::random({kEmbed}, seed + 4)),
        wide_bias(Rows::random({kHidden}, seed + 5)),
        weight(Rows::random({kEmbed}, seed + 6)) {}

  EncoderLayer encoder_layer(bool norm_first) const {
    return {attention(kEmbed, square, square, bias), feed_forward, norm1, norm2, norm_first};
  }
  DecoderLayer decoder_layer(bool norm_first) const {
    return {attention(kEmbed, square, square, bias),
            attention(kMemory, square, key, bias),
            feed_forward,
            norm1,
            norm2,
            norm3,
            norm_first};
  }
  mha_encoder_layer c_encoder_layer(bool norm_first) const {
    return {c_self.get(), c_forward.get(), c_norm1.get(), c_norm2.get(), norm_first};
  }
  mha_decoder_layer c_decoder_layer(bool norm_first) const {
    return {c_self.get(), c_cross.get(), c_forward.get(), c_norm1.get(), c_norm2.get(), c_norm3.get(), norm_first};
  }

  Rows square, key, up, down, bias, wide_bias, weight;
  FeedForward feed_forward{{up.view(), wide_bias.view(), down.view(), bias.view()}, Activation::gelu};
  LayerNorm norm1{weight.view(), bias.view()}, norm2{bias.view(), {}, 0.5}, norm3{weight.view(), {}, 2};
  Owned<mha_layer> c_self = c_attention(kEmbed, square, square, bias),
                   c_cross = c_attention(kMemory, square, key, bias);
  Owned<mha_feed_forward> c_forward = c_feed_forward(up, wide_bias, down, bias, MHA_ACTIVATION_GELU);
  Owned<mha_norm> c_norm1 = c_norm(weight, &bias, 1e-5), c_norm2 = c_norm(bias, nullptr, 0.5),
                  c_norm3 = c_norm(weight, nullptr, 2);
};

/// A cache for each of two layers, in C and in C++.
struct Caches {
  explicit Caches(Index capacity) {
    for (int i = 0; i < 2; ++i) {
      const mha_cache_config config = {2, kHeads, capacity, kEmbed / kHeads, 0, MHA_DTYPE_f32};
      mha_cache* cache = nullptr;
      EXPECT_OK(mha_cache_create(&config, &cache));
      owned.emplace_back(cache, &mha_cache_destroy);
      c_pointers[i] = cache;
      pointers[i] = &cpp[i];
    }
  }

  void expect_same_lengths() const {
    for (int i = 0; i < 2; ++i)
      EXPECT_TRUE(std::equal(cpp[i].lengths(), cpp[i].lengths() + 2, mha_cache_lengths(c_pointers[i]))) << i;
  }

  KVCache cpp[2] = {KVCache({2, kHeads, 12, kEmbed / kHeads}), KVCache({2, kHeads, 12, kEmbed / kHeads})};
  KVCache* pointers[2];
  std::vector<Owned<mha_cache>> owned;
  mha_cache* c_pointers[2];
};

TEST(CApiTransformer, Encoder) {
  const std::int64_t key_lengths[] = {6, 4}, new_lengths[] = {6, 5}, offsets[] = {0, 2, 2, 6};
  const Rows x = Rows::random({2, 6, kEmbed}, 7), slopes = Rows::random({kHeads}, 8);
  for (const bool norm_first : {false, true}) {
    const LayerNorm last = Parts(3).norm1;
    const EncoderLayer layers[] = {Parts(1).encoder_layer(norm_first), Parts(2).encoder_layer(norm_first)};
    const Encoder stack(layers, 2, &last);
    mha_encoder* encoder = nullptr;
    {
      const Parts first(1), second(2), third(3);  // destroyed before the encoder computes
      const mha_encoder_layer c_layers[] = {first.c_encoder_layer(norm_first), second.c_encoder_layer(norm_first)};
      ASSERT_EQ(mha_encoder_create(c_layers, 2, third.c_norm1.get(), &encoder), MHA_OK) << mha_last_error();
    }
    const Owned<mha_encoder> owned(encoder, &mha_encoder_destroy);
    Rows expected = nans<float>({2, 6, kEmbed}), out = expected;
    Rows expected_weights = nans<float>({2, kHeads, 6, 6}), weights = expected_weights;
    const mha_tensor c_x = c_tensor(x), c_out = c_tensor(out), c_slopes = c_tensor(slopes);
    const auto expect_same = [&](const char* what) {
      EXPECT_EQ(out.data(), expected.data()) << what << ", norm_first " << norm_first;
    };

    stack.forward(x.view(), expected.view());
    EXPECT_OK(mha_encoder_forward(encoder, &c_x, &c_out, nullptr, nullptr));
    expect_same("defaults");

    AttentionOptions options;
    options.key_lengths = key_lengths;
    options.alibi_slopes = slopes.view();
    options.is_causal = true;
    mha_attention_options c_options = mha_default_options();
    c_options.key_lengths = key_lengths;
    c_options.alibi_slopes = &c_slopes;
    c_options.is_causal = true;
    const MutableTensorView wanted[] = {{}, expected_weights.view()};
    const mha_tensor c_wanted[] = {{}, c_tensor(weights)};
    EncoderExtras extras;
    extras.weights = wanted;
    mha_encoder_extras c_extras = {};
    c_extras.weights = c_wanted;
    stack.forward(x.view(), expected.view(), options, extras);
    EXPECT_OK(mha_encoder_forward(encoder, &c_x, &c_out, &c_options, &c_extras));
    expect_same("options and weights");
    EXPECT_EQ(weights.data(), expected_weights.data());

    Caches caches(12);
    extras = {nullptr, caches.pointers, new_lengths};
    c_extras = {nullptr, caches.c_pointers, new_lengths};
    options.key_lengths = c_options.key_lengths = nullptr;
    for (int step = 0; step < 2; ++step) {
      stack.forward(x.view(), expected.view(), options, extras);
      EXPECT_OK(mha_encoder_forward(encoder, &c_x, &c_out, &c_options, &c_extras));
      expect_same("caches");
      caches.expect_same_lengths();
    }

    const TensorView rows(x.data().data(), {6, kEmbed});
    stack.forward_varlen(rows, offsets, 3, {expected.data().data(), DType::f32, {6, kEmbed}});
    const Index row_shape[] = {6, kEmbed};
    const mha_tensor c_rows = mha_dense(x.data().data(), MHA_DTYPE_f32, 2, row_shape),
                     c_out_rows = mha_dense(out.data().data(), MHA_DTYPE_f32, 2, row_shape);
    EXPECT_OK(mha_encoder_forward_varlen(encoder, &c_rows, offsets, 3, &c_out_rows, nullptr));
    expect_same("ragged");

    EXPECT_EQ(mha_encoder_num_layers(encoder), 2);
    EXPECT_EQ(mha_encoder_dtype(encoder), MHA_DTYPE_f32);
    const mha_encoder_layer second = mha_encoder_layer_of(encoder, 1);
    EXPECT_EQ(second.norm_first, norm_first);
    EXPECT_EQ(mha_norm_eps(second.norm1), 1e-5);
    EXPECT_EQ(mha_norm_eps(second.norm2), 0.5);
    EXPECT_EQ(mha_feed_forward_feedforward_dim(second.feed_forward), kHidden);
    layers[1].self_attention.forward(x.view(), x.view(), x.view(), expected.view());
    EXPECT_OK(mha_layer_forward(second.self_attention, &c_x, &c_x, &c_x, &c_out, nullptr, nullptr));
    expect_same("attention of a layer");
    for (const Index i : {-1, 2}) EXPECT_EQ(mha_encoder_layer_of(encoder, i).self_attention, nullptr);
  }
}

TEST(CApiTransformer, Decoder) {
  const Rows x = Rows::random({2, 3, kEmbed}, 7), memory = Rows::random({2, 5, kMemory}, 8);
  const mha_tensor c_x = c_tensor(x), c_memory = c_tensor(memory);
  const std::int64_t memory_lengths[] = {5, 2}, new_lengths[] = {3, 1};
  for (const bool norm_first : {false, true}) {
    const Parts first(1), second(2);
    const DecoderLayer layers[] = {first.decoder_layer(norm_first), second.decoder_layer(norm_first)};
    const Decoder stack(layers, 2);
    const mha_decoder_layer c_layers[] = {first.c_decoder_layer(norm_first), second.c_decoder_layer(norm_first)};
    mha_decoder* decoder = nullptr;
    ASSERT_EQ(mha_decoder_create(c_layers, 2, nullptr, &decoder), MHA_OK) << mha_last_error();
    const Owned<mha_decoder> owned(decoder, &mha_decoder_destroy);
    Rows expected = nans<float>({2, 3, kEmbed}), out = expected;
    const mha_tensor c_out = c_tensor(out);

    AttentionOptions causal, of_memory;
    causal.is_causal = true;
    of_memory.key_lengths = memory_lengths;
    mha_attention_options c_causal = mha_default_options(), c_of_memory = mha_default_options();
    c_causal.is_causal = true;
    c_of_memory.key_lengths = memory_lengths;
    DecoderContext context;
    context.memory = memory.view();
    mha_decoder_context c_context = {};
    c_context.memory = &c_memory;
    stack.forward(x.view(), context, expected.view(), causal, of_memory);
    EXPECT_OK(mha_decoder_forward(decoder, &c_x, &c_context, &c_out, &c_causal, &c_of_memory));
    EXPECT_EQ(out.data(), expected.data()) << "norm_first " << norm_first;
    stack.forward(x.view(), context, expected.view(), {});
    EXPECT_OK(mha_decoder_forward(decoder, &c_x, &c_context, &c_out, nullptr, nullptr));
    EXPECT_EQ(out.data(), expected.data()) << "defaults, norm_first " << norm_first;

    Caches caches(12), memory_caches(12);
    for (int i = 0; i < 2; ++i) {
      layers[i].cross_attention.append_to(memory_caches.cpp[i], memory.view(), memory.view(), memory_lengths);
      EXPECT_OK(mha_layer_append_to(mha_decoder_layer_of(decoder, i).cross_attention, memory_caches.c_pointers[i],
                                    &c_memory, &c_memory, memory_lengths, 0));
    }
    context = {{}, memory_caches.pointers, caches.pointers, new_lengths};
    c_context = {nullptr, memory_caches.c_pointers, caches.c_pointers, new_lengths};
    for (int step = 0; step < 2; ++step) {
      stack.forward(x.view(), context, expected.view(), causal);
      EXPECT_OK(mha_decoder_forward(decoder, &c_x, &c_context, &c_out, &c_causal, nullptr));
      EXPECT_EQ(out.data(), expected.data()) << "step " << step << ", norm_first " << norm_first;
      caches.expect_same_lengths();
    }

    EXPECT_EQ(mha_decoder_num_layers(decoder), 2);
    EXPECT_EQ(mha_decoder_dtype(decoder), MHA_DTYPE_f32);
    const mha_decoder_layer layer = mha_decoder_layer_of(decoder, 0);
    EXPECT_EQ(mha_layer_config_of(layer.self_attention).kdim, kEmbed);
    EXPECT_EQ(mha_layer_config_of(layer.cross_attention).kdim, kMemory);
    EXPECT_EQ(mha_feed_forward_activation(layer.feed_forward), MHA_ACTIVATION_GELU);
    EXPECT_EQ(mha_norm_eps(layer.norm1), 1e-5);
    EXPECT_EQ(mha_norm_eps(layer.norm2), 0.5);
    EXPECT_EQ(mha_norm_eps(layer.norm3), 2);
    EXPECT_EQ(layer.norm_first, norm_first);
    EXPECT_EQ(mha_decoder_layer_of(decoder, 2).norm3, nullptr);
  }
}

TEST(CApiTransformer, PartsMustBeThereAndFit) {
  const Parts parts(1);
  const Rows longer = Rows::random({kEmbed + 1}, 2);
  const Owned<mha_norm> other = c_norm(longer, nullptr, 0);
  mha_encoder* encoder = nullptr;
  mha_decoder* decoder = nullptr;
  mha_encoder_layer layers[] = {parts.c_encoder_layer(false), parts.c_encoder_layer(false)};
  const auto expect_invalid = [](mha_status status, std::initializer_list<const char*> words) {
    expect_failure(MHA_INVALID_ARGUMENT, status, words);
  };
  layers[1].norm2 = nullptr;
  expect_invalid(mha_encoder_create(layers, 2, nullptr, &encoder), {"layers[1].norm2", "null"});
  layers[1].norm2 = other.get();
  expect_invalid(mha_encoder_create(layers, 2, nullptr, &encoder), {"Encoder: layer 1", "norm2", "24", "25"});
  layers[1] = layers[0];
  expect_invalid(mha_encoder_create(layers, 2, other.get(), &encoder), {"final_norm", "25"});
  expect_invalid(mha_encoder_create(layers, 0, nullptr, &encoder), {"at least 1 layer"});
  expect_invalid(mha_encoder_create(layers, -1, nullptr, &encoder), {"at least 1 layer"});
  expect_invalid(mha_encoder_create(nullptr, 1, nullptr, &encoder), {"layers", "null"});
  expect_invalid(mha_encoder_create(layers, 1, nullptr, nullptr), {"encoder", "null"});
  mha_decoder_layer decoder_layer = parts.c_decoder_layer(true);
  decoder_layer.cross_attention = nullptr;
  expect_invalid(mha_decoder_create(&decoder_layer, 1, nullptr, &decoder), {"layers[0].cross_attention", "null"});
  EXPECT_EQ(encoder, nullptr);
  EXPECT_EQ(decoder, nullptr);

  mha_encoder_destroy(nullptr);
  mha_decoder_destroy(nullptr);
}

TEST(CApiTransformer, CallsMustFit) {
  const Parts parts(1);
  const mha_encoder_layer layers[] = {parts.c_encoder_layer(false), parts.c_encoder_layer(false)};
  const mha_decoder_layer decoder_layer = parts.c_decoder_layer(false);
  mha_encoder* encoder = nullptr;
  mha_decoder* decoder = nullptr;
  ASSERT_EQ(mha_encoder_create(layers, 2, nullptr, &encoder), MHA_OK) << mha_last_error();
  ASSERT_EQ(mha_decoder_create(&decoder_layer, 1, nullptr, &decoder), MHA_OK) << mha_last_error();
  const Owned<mha_encoder> owned_encoder(encoder, &mha_encoder_destroy);
  const Owned<mha_decoder> owned_decoder(decoder, &mha_decoder_destroy);

  const Rows x = Rows::random({2, 3, kEmbed}, 2), narrow = Rows::random({2, 3, kEmbed - 1}, 3);
  const auto wide = Array<double>::random({2, 3, kEmbed}, 4);
  const std::int64_t offsets[] = {0, 3}, falling[] = {0, 4, 3};
  Rows out = nans<float>({2, 3, kEmbed});
  const mha_tensor c_x = c_tensor(x), c_narrow = c_tensor(narrow), c_wide = c_tensor(wide), c_out = c_tensor(out);
  const Index row_shape[] = {3, kEmbed};
  const mha_tensor rows = mha_dense(x.data().data(), MHA_DTYPE_f32, 2, row_shape),
                   out_rows = mha_dense(out.data().data(), MHA_DTYPE_f32, 2, row_shape);
  const auto expect_invalid = [](mha_status status, std::initializer_list<const char*> words) {
    expect_failure(MHA_INVALID_ARGUMENT, status, words);
  };
  expect_invalid(mha_encoder_forward(nullptr, &c_x, &c_out, nullptr, nullptr), {"encoder", "null"});
  expect_invalid(mha_encoder_forward(encoder, nullptr, &c_out, nullptr, nullptr), {"Encoder", "x"});
  expect_invalid(mha_encoder_forward(encoder, &c_x, nullptr, nullptr, nullptr), {"Encoder", "out"});
  expect_invalid(mha_encoder_forward(encoder, &c_narrow, &c_out, nullptr, nullptr), {"Encoder", "[2, 3, 23]"});
  expect_failure(MHA_DTYPE_ERROR, mha_encoder_forward(encoder, &c_wide, &c_out, nullptr, nullptr), {"float64"});
  expect_invalid(mha_encoder_forward_varlen(encoder, &rows, falling, 2, &out_rows, nullptr), {"fall", "sequence 1"});
  expect_invalid(mha_encoder_forward_varlen(encoder, &rows, nullptr, 1, &out_rows, nullptr), {"cu_seqlens"});
  expect_invalid(mha_encoder_forward_varlen(nullptr, &rows, offsets, 1, &out_rows, nullptr), {"encoder", "null"});

  Caches caches(2);  // too small for three tokens
  mha_encoder_extras extras = {nullptr, caches.c_pointers, nullptr};
  expect_invalid(mha_encoder_forward(encoder, &c_x, &c_out, nullptr, &extras), {"capacity of 2"});
  EXPECT_EQ(mha_cache_longest(caches.c_pointers[0], 0, nullptr), 0);
  caches.c_pointers[1] = nullptr;
  expect_invalid(mha_encoder_forward(encoder, &c_x, &c_out, nullptr, &extras), {"caches[1]", "null"});

  mha_decoder_context context = {};
  expect_invalid(mha_decoder_forward(decoder, &c_x, nullptr, &c_out, nullptr, nullptr), {"context", "null"});
  expect_invalid(mha_decoder_forward(nullptr, &c_x, &context, &c_out, nullptr, nullptr), {"decoder", "null"});
  expect_invalid(mha_decoder_forward(decoder, &c_x, &context, &c_out, nullptr, nullptr), {"memory_caches"});
  context.memory_caches = &caches.c_pointers[1];
  expect_invalid(mha_decoder_forward(decoder, &c_x, &context, &c_out, nullptr, nullptr), {"memory_caches[0]", "null"});
  for (float element : out.data()) ASSERT_TRUE(std::isnan(element));
}

}  // namespace
}  // namespace mha

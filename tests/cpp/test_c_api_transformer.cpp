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
  const mha_linear_weights wide = {&c_square, &c_bias, nullptr, MHA_WEIGHT_FORMAT_PLAIN},
                           of_memory = {&c_key, &c_bias, nullptr, MHA_WEIGHT_FORMAT_PLAIN};
  const mha_layer_weights weights = {wide, of_memory, of_memory, wide, nullptr, nullptr};
  mha_layer* layer = nullptr;
  EXPECT_OK(mha_layer_create(&config, &weights, &layer));
  return {layer, &mha_layer_destroy};
}

MultiHeadAttention attention(Index memory_dim, const Rows& square, const Rows& key, const Rows& bias) {
  MultiHeadAttentionConfig config{kEmbed, kHeads};
  config.kdim = config.vdim = memory_dim;
  return {config,
          {{square.view(), bias.view()},
           {key.view(), bias.view()},
           {key.view(), bias.view()},
           {square.view(), bias.view()}}};
}

Owned<mha_norm> c_norm(const Rows& weight, const Rows* bias, double eps) {
  const mha_tensor c_weight = c_tensor(weight), c_bias = bias ? c_tensor(*bias) : mha_tensor{};
  mha_norm* norm = nullptr;
  EXPECT_OK(mha_norm_create(&c_weight, bias ? &c_bias : nullptr, eps, &norm));
  return {norm, &mha_norm_destroy};
}

Owned<mha_norm> c_rms_norm(const Rows& weight, double eps, bool unit_offset) {
  const mha_tensor c_weight = c_tensor(weight);
  mha_norm* norm = nullptr;
  EXPECT_OK(mha_rms_norm_create(&c_weight, eps, unit_offset, &norm));
  return {norm, &mha_norm_destroy};
}

Owned<mha_feed_forward> c_feed_forward(const Rows& up, const Rows& bias1, const Rows& down, const Rows& bias2,
                                       mha_activation activation) {
  const mha_tensor c_up = c_tensor(up), c_bias1 = c_tensor(bias1), c_down = c_tensor(down), c_bias2 = c_tensor(bias2);
  const mha_feed_forward_weights weights = {
      {&c_up, &c_bias1, nullptr, MHA_WEIGHT_FORMAT_PLAIN}, {&c_down, &c_bias2, nullptr, MHA_WEIGHT_FORMAT_PLAIN}, {}};
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

  TransformerLayer encoder_layer(NormPlacement placement) const {
    return {
        attention(kEmbed, square, square, bias), {}, feed_forward, norm1, norm2, {}, placement, {}, output_norm, {}};
  }
  TransformerLayer decoder_layer(NormPlacement placement) const {
    return {attention(kEmbed, square, square, bias),
            attention(kMemory, square, key, bias),
            feed_forward,
            norm1,
            norm2,
            norm3,
            placement,
            {},
            output_norm,
            {}};
  }
  mha_transformer_layer c_encoder_layer(mha_norm_placement placement) const {
    return {c_self.get(), nullptr, c_forward.get(),     c_norm1.get(), c_norm2.get(), nullptr,
            placement,    nullptr, c_output_norm.get(), nullptr,       nullptr};
  }
  mha_transformer_layer c_decoder_layer(mha_norm_placement placement) const {
    return {c_self.get(), c_cross.get(), c_forward.get(),     c_norm1.get(), c_norm2.get(), c_norm3.get(),
            placement,    nullptr,       c_output_norm.get(), nullptr,       nullptr};
  }

  Rows square, key, up, down, bias, wide_bias, weight;
  FeedForward feed_forward{{{up.view(), wide_bias.view()}, {down.view(), bias.view()}}, Activation::gelu};
  LayerNorm norm1{weight.view(), bias.view()}, norm2{bias.view(), {}, 0.5}, norm3{weight.view(), {}, 2};
  RMSNorm output_norm{weight.view(), 0.25, true};
  Owned<mha_layer> c_self = c_attention(kEmbed, square, square, bias),
                   c_cross = c_attention(kMemory, square, key, bias);
  Owned<mha_feed_forward> c_forward = c_feed_forward(up, wide_bias, down, bias, MHA_ACTIVATION_GELU);
  Owned<mha_norm> c_norm1 = c_norm(weight, &bias, 1e-5), c_norm2 = c_norm(bias, nullptr, 0.5),
                  c_norm3 = c_norm(weight, nullptr, 2), c_output_norm = c_rms_norm(weight, 0.25, true);
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
  for (const NormPlacement placement : {NormPlacement::after, NormPlacement::before}) {
    const auto c_placement = static_cast<mha_norm_placement>(placement);
    const LayerNorm last = Parts(3).norm1;
    const TransformerLayer layers[] = {Parts(1).encoder_layer(placement), Parts(2).encoder_layer(placement)};
    const TransformerStack stack(layers, 2, &last);
    mha_transformer* encoder = nullptr;
    {
      const Parts first(1), second(2), third(3);  // destroyed before the encoder computes
      const mha_transformer_layer c_layers[] = {first.c_encoder_layer(c_placement),
                                                second.c_encoder_layer(c_placement)};
      ASSERT_EQ(mha_transformer_create(c_layers, 2, third.c_norm1.get(), &encoder), MHA_OK) << mha_last_error();
    }
    const Owned<mha_transformer> owned(encoder, &mha_transformer_destroy);
    Rows expected = nans<float>({2, 6, kEmbed}), out = expected;
    Rows expected_weights = nans<float>({2, kHeads, 6, 6}), weights = expected_weights;
    const mha_tensor c_x = c_tensor(x), c_out = c_tensor(out), c_slopes = c_tensor(slopes);
    const auto expect_same = [&](const char* what) {
      EXPECT_EQ(out.data(), expected.data()) << what << ", norm_placement " << c_placement;
    };

    stack.forward(x.view(), expected.view());
    EXPECT_OK(mha_transformer_forward(encoder, &c_x, &c_out, nullptr, nullptr));
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
    TransformerExtras extras;
    extras.weights = wanted;
    mha_transformer_extras c_extras = {};
    c_extras.weights = c_wanted;
    stack.forward(x.view(), expected.view(), options, extras);
    EXPECT_OK(mha_transformer_forward(encoder, &c_x, &c_out, &c_options, &c_extras));
    expect_same("options and weights");
    EXPECT_EQ(weights.data(), expected_weights.data());

    AttentionOptions of_layers[] = {options, {}};
    of_layers[1].window_left = 1;
    mha_attention_options c_of_layers[] = {c_options, mha_default_options()};
    c_of_layers[1].window_left = 1;
    extras.layer_options = of_layers;
    c_extras.layer_options = c_of_layers;
    stack.forward(x.view(), expected.view(), {}, extras);
    EXPECT_OK(mha_transformer_forward(encoder, &c_x, &c_out, nullptr, &c_extras));
    expect_same("options of each layer");

    Caches caches(12);
    extras = {};
    c_extras = {};
    extras.caches = caches.pointers;
    c_extras.caches = caches.c_pointers;
    extras.new_lengths = c_extras.new_lengths = new_lengths;
    options.key_lengths = c_options.key_lengths = nullptr;
    for (int step = 0; step < 2; ++step) {
      stack.forward(x.view(), expected.view(), options, extras);
      EXPECT_OK(mha_transformer_forward(encoder, &c_x, &c_out, &c_options, &c_extras));
      expect_same("caches");
      caches.expect_same_lengths();
    }

    const TensorView rows(x.data().data(), {6, kEmbed});
    stack.forward_varlen(rows, offsets, 3, {expected.data().data(), DType::f32, {6, kEmbed}});
    const Index row_shape[] = {6, kEmbed};
    const mha_tensor c_rows = mha_dense(x.data().data(), MHA_DTYPE_f32, 2, row_shape),
                     c_out_rows = mha_dense(out.data().data(), MHA_DTYPE_f32, 2, row_shape);
    EXPECT_OK(mha_transformer_forward_varlen(encoder, &c_rows, offsets, 3, &c_out_rows, nullptr, nullptr));
    expect_same("ragged");
    of_layers[0].key_lengths = c_of_layers[0].key_lengths = nullptr;
    TransformerExtras ragged_extras;
    mha_transformer_extras c_ragged_extras = {};
    ragged_extras.layer_options = of_layers;
    c_ragged_extras.layer_options = c_of_layers;
    stack.forward_varlen(rows, offsets, 3, {expected.data().data(), DType::f32, {6, kEmbed}}, {}, ragged_extras);
    EXPECT_OK(mha_transformer_forward_varlen(encoder, &c_rows, offsets, 3, &c_out_rows, nullptr, &c_ragged_extras));
    expect_same("ragged, options of each layer");

    EXPECT_EQ(mha_transformer_num_layers(encoder), 2);
    EXPECT_EQ(mha_transformer_dtype(encoder), MHA_DTYPE_f32);
    const mha_transformer_layer second = mha_transformer_layer_of(encoder, 1);
    EXPECT_EQ(second.norm_placement, c_placement);
    EXPECT_EQ(mha_norm_eps(second.norm1), 1e-5);
    EXPECT_EQ(mha_norm_eps(second.norm2), 0.5);
    EXPECT_EQ(mha_norm_eps(second.output_norm2), 0.25);
    EXPECT_EQ(mha_norm_kind_of(second.output_norm2), MHA_NORM_RMS_UNIT_OFFSET);
    for (const mha_norm* none : {second.norm3, second.output_norm1, second.output_norm3}) EXPECT_EQ(none, nullptr);
    EXPECT_EQ(mha_feed_forward_feedforward_dim(second.feed_forward), kHidden);
    layers[1].self_attention.forward(x.view(), x.view(), x.view(), expected.view());
    EXPECT_OK(mha_layer_forward(second.self_attention, &c_x, &c_x, &c_x, &c_out, nullptr, nullptr));
    expect_same("attention of a layer");
    for (const Index i : {-1, 2}) EXPECT_EQ(mha_transformer_layer_of(encoder, i).self_attention, nullptr);
  }
}

TEST(CApiTransformer, Decoder) {
  const Rows x = Rows::random({2, 3, kEmbed}, 7), memory = Rows::random({2, 5, kMemory}, 8);
  const mha_tensor c_x = c_tensor(x), c_memory = c_tensor(memory);
  const std::int64_t memory_lengths[] = {5, 2}, new_lengths[] = {3, 1};
  for (const NormPlacement placement : {NormPlacement::after, NormPlacement::before}) {
    const auto c_placement = static_cast<mha_norm_placement>(placement);
    const Parts first(1), second(2);
    const TransformerLayer layers[] = {first.decoder_layer(placement), second.decoder_layer(placement)};
    const TransformerStack stack(layers, 2);
    const mha_transformer_layer c_layers[] = {first.c_decoder_layer(c_placement), second.c_decoder_layer(c_placement)};
    mha_transformer* decoder = nullptr;
    ASSERT_EQ(mha_transformer_create(c_layers, 2, nullptr, &decoder), MHA_OK) << mha_last_error();
    const Owned<mha_transformer> owned(decoder, &mha_transformer_destroy);
    Rows expected = nans<float>({2, 3, kEmbed}), out = expected;
    const mha_tensor c_out = c_tensor(out);

    AttentionOptions causal, of_memory;
    causal.is_causal = true;
    of_memory.key_lengths = memory_lengths;
    mha_attention_options c_causal = mha_default_options(), c_of_memory = mha_default_options();
    c_causal.is_causal = true;
    c_of_memory.key_lengths = memory_lengths;
    TransformerExtras extras;
    extras.memory = memory.view();
    mha_transformer_extras c_extras = {};
    c_extras.memory = &c_memory;
    stack.forward(x.view(), expected.view(), {}, extras);
    EXPECT_OK(mha_transformer_forward(decoder, &c_x, &c_out, nullptr, &c_extras));
    EXPECT_EQ(out.data(), expected.data()) << "defaults, norm_placement " << c_placement;
    extras.memory_options = of_memory;
    c_extras.memory_options = &c_of_memory;
    stack.forward(x.view(), expected.view(), causal, extras);
    EXPECT_OK(mha_transformer_forward(decoder, &c_x, &c_out, &c_causal, &c_extras));
    EXPECT_EQ(out.data(), expected.data()) << "norm_placement " << c_placement;

    Caches caches(12), memory_caches(12);
    for (int i = 0; i < 2; ++i) {
      layers[i].cross_attention->append_to(memory_caches.cpp[i], memory.view(), memory.view(), memory_lengths);
      EXPECT_OK(mha_layer_append_to(mha_transformer_layer_of(decoder, i).cross_attention, memory_caches.c_pointers[i],
                                    &c_memory, &c_memory, memory_lengths, 0));
    }
    extras = {};
    c_extras = {};
    extras.memory_caches = memory_caches.pointers;
    c_extras.memory_caches = memory_caches.c_pointers;
    extras.caches = caches.pointers;
    c_extras.caches = caches.c_pointers;
    extras.new_lengths = c_extras.new_lengths = new_lengths;
    for (int step = 0; step < 2; ++step) {
      stack.forward(x.view(), expected.view(), causal, extras);
      EXPECT_OK(mha_transformer_forward(decoder, &c_x, &c_out, &c_causal, &c_extras));
      EXPECT_EQ(out.data(), expected.data()) << "step " << step << ", norm_placement " << c_placement;
      caches.expect_same_lengths();
    }
    // As a ragged batch whose sequences read one memory.
    const std::int64_t starts[] = {0, 2, 3}, reads[] = {1, 1};
    extras.new_lengths = c_extras.new_lengths = nullptr;
    extras.memory_sequences = c_extras.memory_sequences = reads;
    const Rows ragged = Rows::random({3, kEmbed}, 15);
    Rows ragged_out = testing::nans<float>({3, kEmbed}), ragged_expected = testing::nans<float>({3, kEmbed});
    const mha_tensor c_ragged = c_tensor(ragged), c_ragged_out = c_tensor(ragged_out);
    stack.forward_varlen(ragged.view(), starts, 2, ragged_expected.view(), causal, extras);
    EXPECT_OK(mha_transformer_forward_varlen(decoder, &c_ragged, starts, 2, &c_ragged_out, &c_causal, &c_extras));
    EXPECT_EQ(ragged_out.data(), ragged_expected.data()) << "norm_placement " << c_placement;

    EXPECT_EQ(mha_transformer_num_layers(decoder), 2);
    EXPECT_EQ(mha_transformer_dtype(decoder), MHA_DTYPE_f32);
    const mha_transformer_layer layer = mha_transformer_layer_of(decoder, 0);
    EXPECT_EQ(mha_layer_config_of(layer.self_attention).kdim, kEmbed);
    EXPECT_EQ(mha_layer_config_of(layer.cross_attention).kdim, kMemory);
    EXPECT_EQ(mha_feed_forward_activation(layer.feed_forward), MHA_ACTIVATION_GELU);
    EXPECT_EQ(mha_norm_eps(layer.norm1), 1e-5);
    EXPECT_EQ(mha_norm_eps(layer.norm2), 0.5);
    EXPECT_EQ(mha_norm_eps(layer.norm3), 2);
    EXPECT_EQ(layer.norm_placement, c_placement);
    EXPECT_EQ(mha_transformer_layer_of(decoder, 2).norm3, nullptr);
  }
}

TEST(CApiTransformer, PartsMustBeThereAndFit) {
  const Parts parts(1);
  const Rows longer = Rows::random({kEmbed + 1}, 2);
  const Owned<mha_norm> other = c_norm(longer, nullptr, 0);
  mha_transformer* encoder = nullptr;
  mha_transformer_layer layers[] = {parts.c_encoder_layer(MHA_NORM_AFTER), parts.c_encoder_layer(MHA_NORM_AFTER)};
  const auto expect_invalid = [](mha_status status, std::initializer_list<const char*> words) {
    expect_failure(MHA_INVALID_ARGUMENT, status, words);
  };
  layers[1].norm2 = other.get();
  expect_invalid(mha_transformer_create(layers, 2, nullptr, &encoder),
                 {"TransformerStack: layer 1", "norm2", "24", "25"});
  layers[1] = layers[0];
  layers[1].output_norm1 = other.get();
  expect_invalid(mha_transformer_create(layers, 2, nullptr, &encoder), {"layer 1", "output_norm1", "24", "25"});
  layers[1] = layers[0];
  expect_invalid(mha_transformer_create(layers, 2, other.get(), &encoder), {"final_norm", "25"});
  expect_invalid(mha_transformer_create(layers, 0, nullptr, &encoder), {"at least 1 layer"});
  expect_invalid(mha_transformer_create(layers, -1, nullptr, &encoder), {"at least 1 layer"});
  expect_invalid(mha_transformer_create(nullptr, 1, nullptr, &encoder), {"layers", "null"});
  expect_invalid(mha_transformer_create(layers, 1, nullptr, nullptr), {"transformer", "null"});
  layers[1] = parts.c_decoder_layer(MHA_NORM_BEFORE);
  expect_invalid(mha_transformer_create(layers, 2, nullptr, &encoder),
                 {"layer 1", "kdim of cross_attention must be 0; got 16"});
  layers[1].cross_attention = nullptr;
  expect_invalid(mha_transformer_create(layers, 2, nullptr, &encoder), {"layer 1", "norm3", "cross_attention"});
  layers[1].norm3 = nullptr;
  layers[1].output_norm3 = layers[1].norm1;
  expect_invalid(mha_transformer_create(layers, 2, nullptr, &encoder), {"layer 1", "output_norm3", "cross_attention"});
  layers[1].self_attention = nullptr;
  expect_invalid(mha_transformer_create(layers, 2, nullptr, &encoder), {"layers[1].self_attention", "null"});
  for (const mha_norm_placement placement : {-1, 3}) {
    layers[0].norm_placement = placement;
    expect_invalid(mha_transformer_create(layers, 1, nullptr, &encoder), {"mha_norm_placement", "0 to 2"});
  }
  EXPECT_EQ(encoder, nullptr);

  mha_transformer_destroy(nullptr);
}

TEST(CApiTransformer, CallsMustFit) {
  const Parts parts(1);
  const mha_transformer_layer layers[] = {parts.c_encoder_layer(MHA_NORM_AFTER), parts.c_encoder_layer(MHA_NORM_AFTER)};
  const mha_transformer_layer decoder_layer = parts.c_decoder_layer(MHA_NORM_AFTER);
  mha_transformer* encoder = nullptr;
  mha_transformer* decoder = nullptr;
  ASSERT_EQ(mha_transformer_create(layers, 2, nullptr, &encoder), MHA_OK) << mha_last_error();
  ASSERT_EQ(mha_transformer_create(&decoder_layer, 1, nullptr, &decoder), MHA_OK) << mha_last_error();
  const Owned<mha_transformer> owned_encoder(encoder, &mha_transformer_destroy);
  const Owned<mha_transformer> owned_decoder(decoder, &mha_transformer_destroy);

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
  expect_invalid(mha_transformer_forward(nullptr, &c_x, &c_out, nullptr, nullptr), {"transformer", "null"});
  expect_invalid(mha_transformer_forward(encoder, nullptr, &c_out, nullptr, nullptr), {"TransformerStack", "x"});
  expect_invalid(mha_transformer_forward(encoder, &c_x, nullptr, nullptr, nullptr), {"TransformerStack", "out"});
  expect_invalid(mha_transformer_forward(encoder, &c_narrow, &c_out, nullptr, nullptr),
                 {"TransformerStack", "[2, 3, 23]"});
  expect_failure(MHA_DTYPE_ERROR, mha_transformer_forward(encoder, &c_wide, &c_out, nullptr, nullptr), {"float64"});
  expect_invalid(mha_transformer_forward_varlen(encoder, &rows, falling, 2, &out_rows, nullptr, nullptr),
                 {"fall", "sequence 1"});
  expect_invalid(mha_transformer_forward_varlen(encoder, &rows, nullptr, 1, &out_rows, nullptr, nullptr),
                 {"cu_seqlens"});
  expect_invalid(mha_transformer_forward_varlen(nullptr, &rows, offsets, 1, &out_rows, nullptr, nullptr),
                 {"transformer", "null"});

  Caches caches(2);  // too small for three tokens
  mha_transformer_extras extras = {};
  extras.caches = caches.c_pointers;
  expect_invalid(mha_transformer_forward(encoder, &c_x, &c_out, nullptr, &extras), {"capacity of 2"});
  EXPECT_EQ(mha_cache_longest(caches.c_pointers[0], 0, nullptr), 0);
  caches.c_pointers[1] = nullptr;
  expect_invalid(mha_transformer_forward(encoder, &c_x, &c_out, nullptr, &extras), {"caches[1]", "null"});

  extras = {};
  expect_invalid(mha_transformer_forward(decoder, &c_x, &c_out, nullptr, &extras), {"memory_caches"});
  extras.memory_caches = &caches.c_pointers[1];
  expect_invalid(mha_transformer_forward(decoder, &c_x, &c_out, nullptr, &extras), {"memory_caches[0]", "null"});
  extras.memory_caches = nullptr;
  extras.memory = &c_x;
  expect_invalid(mha_transformer_forward(encoder, &c_x, &c_out, nullptr, &extras), {"no layer has a cross_attention"});
  expect_invalid(mha_transformer_forward_varlen(decoder, &rows, offsets, 1, &out_rows, nullptr, nullptr),
                 {"cross_attention", "ragged"});
  for (float element : out.data()) ASSERT_TRUE(std::isnan(element));
}

}  // namespace
}  // namespace mha

// Layers of a transformer: their parts, the same bits on every path, and the calls that they refuse. Their accuracy is
// tested from Python, where the reference is.
#include "mha/transformer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "mha/positions.hpp"
#include "transformer_layers.hpp"

namespace mha {
namespace {

using testing::Array;
using testing::attention;
using testing::cache_of;
using testing::decoder_layer;
using testing::encoder;
using testing::encoder_layer;
using testing::encoder_of;
using testing::expect_words;
using testing::feed_forward;
using testing::kEmbed;
using testing::kHeads;
using testing::kHidden;
using testing::kMemory;
using testing::kPlacements;
using testing::message_of;
using testing::name_of;
using testing::norm;
using testing::rms_norm;
using testing::Rows;
using testing::with_threads;

TEST(Transformer, ManyRowsAndFewHaveTheSameBits) {
  // 200 rows on one thread go through all steps block by block, on eight each step is a phase.
  for (const NormPlacement placement : kPlacements) {
    const TransformerStack stack = encoder(placement);
    const Rows x = Rows::random({4, 50, kEmbed}, 6);
    Rows expected = testing::nans<float>({4, 50, kEmbed});
    stack.forward(x.view(), expected.view(), with_threads(1));
    for (const int threads : {2, 3, 8}) {
      Rows out = testing::nans<float>({4, 50, kEmbed});
      stack.forward(x.view(), out.view(), with_threads(threads));
      EXPECT_EQ(out.data(), expected.data()) << threads << " threads";
    }
    Rows alone = testing::nans<float>({1, 50, kEmbed});
    const TensorView third(static_cast<const float*>(x.view().data) + 2 * 50 * kEmbed, {50, kEmbed});
    stack.forward(third, {alone.data().data(), DType::f32, {50, kEmbed}});
    EXPECT_EQ(std::memcmp(alone.data().data(), expected.data().data() + 2 * 50 * kEmbed, sizeof(float) * 50 * kEmbed),
              0);
  }
}

TEST(Transformer, RowsMayLieAnywhere) {
  const TransformerStack stack = encoder();
  const Rows x = Rows::random({2, 5, kEmbed}, 7);
  Rows expected = testing::nans<float>({2, 5, kEmbed});
  stack.forward(x.view(), expected.view());

  Rows in_place = x;
  stack.forward(in_place.view(), in_place.view());
  EXPECT_EQ(in_place.data(), expected.data());

  // Features are two elements apart, tokens come before batch elements, and the rows of the result are in reverse
  // order.
  std::vector<float> spread(2 * 5 * kEmbed * 2), reversed(2 * 5 * kEmbed);
  const Index steps[] = {2 * kEmbed, 4 * kEmbed, 2};
  for (Index b = 0; b < 2; ++b)
    for (Index t = 0; t < 5; ++t)
      for (Index e = 0; e < kEmbed; ++e)
        spread[static_cast<std::size_t>(b * steps[0] + t * steps[1] + e * steps[2])] =
            x.data()[static_cast<std::size_t>((b * 5 + t) * kEmbed + e)];
  stack.forward({spread.data(), {2, 5, kEmbed}, {steps[0], steps[1], steps[2]}},
                {reversed.data() + 9 * kEmbed, {2, 5, kEmbed}, {-5 * kEmbed, -kEmbed, 1}});
  for (std::size_t row = 0; row < 10; ++row)
    for (std::size_t e = 0; e < kEmbed; ++e)
      ASSERT_EQ(reversed[(9 - row) * kEmbed + e], expected.data()[row * kEmbed + e]) << "row " << row;
}

TEST(Transformer, SequencesOneAfterAnother) {
  const TransformerStack stack = encoder();
  const Rows x = Rows::random({9, kEmbed}, 8);
  const std::int64_t offsets[] = {0, 4, 4, 9};
  Rows out = testing::nans<float>({9, kEmbed});
  stack.forward_varlen(x.view(), offsets, 3, out.view());
  for (int b = 0; b < 3; ++b) {
    const Index length = offsets[b + 1] - offsets[b];
    const float* const first = x.data().data() + offsets[b] * kEmbed;
    std::vector<float> alone(static_cast<std::size_t>(length * kEmbed + 1));
    stack.forward({first, {length, kEmbed}}, {alone.data(), {length, kEmbed}});
    for (Index i = 0; i < length * kEmbed; ++i)
      ASSERT_EQ(alone[static_cast<std::size_t>(i)], out.data()[static_cast<std::size_t>(offsets[b] * kEmbed + i)]);
  }
}

TEST(Transformer, WeightsOfEachLayer) {
  const TransformerLayer layers[] = {encoder_layer(1), encoder_layer(2)};
  const Rows x = Rows::random({2, 6, kEmbed}, 9);
  Rows out = testing::nans<float>({2, 6, kEmbed}), first = out, unused = out;
  Rows weights0 = testing::nans<float>({2, kHeads, 6, 6}), weights1 = weights0, expected = weights0;
  const MutableTensorView wanted[] = {weights0.view(), weights1.view()};
  TransformerExtras extras;
  extras.weights = wanted;
  encoder_of(layers, 2).forward(x.view(), out.view(), {}, extras);

  layers[0].self_attention.forward(x.view(), x.view(), x.view(), unused.view(), expected.view());
  EXPECT_EQ(weights0.data(), expected.data());
  encoder_of(layers, 1).forward(x.view(), first.view());
  layers[1].self_attention.forward(first.view(), first.view(), first.view(), unused.view(), expected.view());
  EXPECT_EQ(weights1.data(), expected.data());
}

TEST(Transformer, OptionsOfEachLayer) {
  const TransformerLayer layers[] = {encoder_layer(1), encoder_layer(2), encoder_layer(3)};
  const TransformerStack stack(layers, 3);
  const std::vector<float> slopes = {0.5f, 0.25f, 0.125f, 0};
  AttentionOptions of_layers[3];
  of_layers[0].window_left = 2;
  of_layers[1].is_causal = true;
  of_layers[1].alibi_slopes = TensorView(slopes.data(), {kHeads});
  of_layers[2].softcap = 0.5;
  of_layers[2].num_threads = 3;  // not looked at: threads are those of the call
  const auto expect_same = [](const Rows& actual, const Rows& expected) { EXPECT_EQ(actual.data(), expected.data()); };

  const Rows x = Rows::random({2, 7, kEmbed}, 9);
  Rows expected = x, out = testing::nans<float>({2, 7, kEmbed});
  for (int i = 0; i < 3; ++i) encoder_of(&layers[i], 1).forward(expected.view(), expected.view(), of_layers[i]);
  TransformerExtras extras;
  extras.layer_options = of_layers;
  AttentionOptions ignored = with_threads(1);
  ignored.is_causal = true;
  stack.forward(x.view(), out.view(), ignored, extras);
  expect_same(out, expected);
  stack.forward(x.view(), out.view());
  EXPECT_NE(out.data(), expected.data()) << "the options must matter";

  const std::int64_t offsets[] = {0, 5, 14};
  const TensorView rows(x.data().data(), {14, kEmbed});
  Rows ragged = testing::nans<float>({14, kEmbed}), one_by_one = ragged;
  const MutableTensorView steps = one_by_one.view();
  encoder_of(&layers[0], 1).forward_varlen(rows, offsets, 2, steps, of_layers[0]);
  for (int i = 1; i < 3; ++i) encoder_of(&layers[i], 1).forward_varlen(steps, offsets, 2, steps, of_layers[i]);
  stack.forward_varlen(rows, offsets, 2, ragged.view(), {}, extras);
  expect_same(ragged, one_by_one);

  of_layers[2].window_right = -2;
  expect_words(message_of<std::invalid_argument>([&] { stack.forward(x.view(), out.view(), {}, extras); }),
               {"TransformerStack", "window"});
  of_layers[2].window_right = -1;
  of_layers[2].attn_mask = out.view();
  expect_words(message_of<std::invalid_argument>([&] { stack.forward(x.view(), out.view(), {}, extras); }),
               {"out must not overlap attn_mask"});
}

TEST(Transformer, WeightsOfASelfAttentionBesideAMemory) {
  const TransformerLayer layer = decoder_layer(1);
  const TransformerStack stack(&layer, 1);
  const Rows x = Rows::random({2, 6, kEmbed}, 9), memory = Rows::random({2, 3, kMemory}, 10);
  Rows out = testing::nans<float>({2, 6, kEmbed}), unused = out;
  Rows weights = testing::nans<float>({2, kHeads, 6, 6}), expected = weights;
  const MutableTensorView wanted = weights.view();
  TransformerExtras extras;
  extras.memory = memory.view();
  extras.weights = &wanted;
  stack.forward(x.view(), out.view(), {}, extras);
  layer.self_attention.forward(x.view(), x.view(), x.view(), unused.view(), expected.view());
  EXPECT_EQ(weights.data(), expected.data());
}

TEST(Transformer, DecoderStepsGiveTheRowsOfOneCall) {
  for (const NormPlacement placement : kPlacements) {
    const TransformerLayer layers[] = {decoder_layer(1, placement), decoder_layer(2, placement)};
    const LayerNorm last = norm(kEmbed, 3);
    const TransformerStack stack(layers, 2, &last, "Decoder");
    const Rows x = Rows::random({2, 5, kEmbed}, 10), memory = Rows::random({2, 6, kMemory}, 11);
    AttentionOptions causal;
    causal.is_causal = true;
    Rows whole = testing::nans<float>({2, 5, kEmbed});
    TransformerExtras context;
    context.memory = memory.view();
    stack.forward(x.view(), whole.view(), causal, context);

    std::vector<KVCache> caches, memory_caches;
    KVCache* pointers[2];
    const KVCache* memory_pointers[2];
    for (const TransformerLayer& layer : layers) {
      caches.push_back(cache_of(layer.self_attention, 2, 5));
      memory_caches.push_back(cache_of(*layer.cross_attention, 2, 6));
      layer.cross_attention->append_to(memory_caches.back(), memory.view(), memory.view());
    }
    for (std::size_t i = 0; i < 2; ++i) {
      pointers[i] = &caches[i];
      memory_pointers[i] = &memory_caches[i];
    }
    TransformerExtras step;
    step.caches = pointers;
    step.memory_caches = memory_pointers;
    std::vector<float> row(2 * kEmbed);
    for (Index t = 0; t < 5; ++t) {
      const TensorView token(x.data().data() + t * kEmbed, {2, 1, kEmbed}, {5 * kEmbed, kEmbed, 1});
      stack.forward(token, {row.data(), {2, 1, kEmbed}}, causal, step);
      for (Index b = 0; b < 2; ++b)
        EXPECT_EQ(
            std::memcmp(row.data() + b * kEmbed, whole.data().data() + (b * 5 + t) * kEmbed, sizeof(float) * kEmbed), 0)
            << "token " << t << " of sequence " << b << ", " << name_of(placement);
    }
    EXPECT_EQ(caches[1].longest(), 5);

    // Sequences without padding, of which two read the second memory.
    const std::int64_t starts[] = {0, 1, 4, 5}, reads[] = {0, 1, 1}, named[] = {0, 1, 0};
    step.caches = nullptr;
    step.memory_sequences = reads;
    std::vector<float> ragged(5 * kEmbed);
    const TensorView tokens(x.data().data() + 4 * kEmbed, {5, kEmbed}, {kEmbed, 1});  // the last of b = 0, then b = 1
    stack.forward_varlen(tokens, starts, 3, {ragged.data(), {5, kEmbed}}, causal, step);
    EXPECT_EQ(std::memcmp(ragged.data() + kEmbed, whole.data().data() + 5 * kEmbed, sizeof(float) * 3 * kEmbed), 0);
    step.memory_sequences = named;
    expect_words(message_of<std::invalid_argument>(
                     [&] { stack.forward_varlen(tokens, starts, 3, {ragged.data(), {5, kEmbed}}, causal, step); }),
                 {"Decoder: memory_sequences", "neighbours", "0 again"});
  }
}

TEST(Transformer, AFailureLeavesAllCachesAsTheyWere) {
  const TransformerLayer layers[] = {encoder_layer(1), encoder_layer(2)};
  KVCache first = cache_of(layers[0].self_attention, 1, 8), second = cache_of(layers[1].self_attention, 1, 2);
  KVCache* const caches[] = {&first, &second};
  TransformerExtras extras;
  extras.caches = caches;
  const Rows x = Rows::random({1, 3, kEmbed}, 12);
  Rows out = testing::nans<float>({1, 3, kEmbed});
  const std::string message =
      message_of<std::invalid_argument>([&] { encoder_of(layers, 2).forward(x.view(), out.view(), {}, extras); });
  expect_words(message, {"Encoder", "capacity of 2"});
  EXPECT_EQ(first.longest(), 0);
  EXPECT_TRUE(std::isnan(out.data()[0]));

  KVCache* const same[] = {&first, &first};
  extras.caches = same;
  expect_words(
      message_of<std::invalid_argument>([&] { encoder_of(layers, 2).forward(x.view(), out.view(), {}, extras); }),
      {"Encoder", "a cache of its own", "layers 0 and 1"});
  KVCache other = cache_of(layers[1].self_attention, 1, 8);
  layers[1].self_attention.append_to(other, x.view(), x.view());
  KVCache* const uneven[] = {&first, &other};
  extras.caches = uneven;
  expect_words(
      message_of<std::invalid_argument>([&] { encoder_of(layers, 2).forward(x.view(), out.view(), {}, extras); }),
      {"same tokens", "layer 1"});
}

TEST(Transformer, PartsMustFit) {
  const TransformerLayer good = encoder_layer(1);
  const auto message = [](const TransformerLayer& layer) {
    return message_of<std::invalid_argument>([&] { encoder_of(&layer, 1); });
  };
  TransformerLayer layer = good;
  layer.feed_forward = feed_forward(kEmbed + 1, kHidden, 1);
  expect_words(message(layer), {"Encoder: layer 0", "feed_forward", "40", "41"});
  layer = good;
  layer.norm2 = norm(kEmbed - 1, 1);
  expect_words(message(layer), {"norm2", "40", "39"});
  layer = good;
  layer.self_attention = attention(kEmbed, kHeads, kEmbed + 2, 1);
  expect_words(message(layer), {"kdim of self_attention", "40", "42"});
  const TransformerLayer layers[] = {good, encoder_layer(1, NormPlacement::after, 48)};
  expect_words(message_of<std::invalid_argument>([&] { encoder_of(layers, 2); }), {"layer 1", "embed_dim", "40", "48"});
  const LayerNorm last = norm(kEmbed + 8, 1);
  expect_words(message_of<std::invalid_argument>([&] { encoder_of(layers, 1, &last); }), {"final_norm", "40", "48"});
  expect_words(message_of<std::invalid_argument>([&] { encoder_of(layers, 0); }), {"at least 1 layer"});
  const TransformerLayer mixed[] = {good, decoder_layer(1)};
  expect_words(message_of<std::invalid_argument>([&] { encoder_of(mixed, 2); }), {"layer 1", "cross_attention"});
  layer = good;
  layer.norm3 = norm(kEmbed, 1);
  expect_words(message(layer), {"layer 0", "norm3", "cross_attention"});
  layer = good;
  layer.output_norm1 = rms_norm(kEmbed - 1, 1, false);
  expect_words(message(layer), {"layer 0", "output_norm1", "40", "39"});
  layer = good;
  layer.output_norm3 = rms_norm(kEmbed, 1, false);
  expect_words(message(layer), {"layer 0", "output_norm3", "cross_attention"});
}

TEST(Transformer, CallsMustFit) {
  const TransformerStack stack = encoder();
  Rows x = Rows::random({2, 3, kEmbed}, 13), out = testing::nans<float>({2, 3, kEmbed});
  const auto message = [&](const TensorView& in, const MutableTensorView& result) {
    return message_of<std::invalid_argument>([&] { stack.forward(in, result); });
  };
  const Rows narrow = Rows::random({2, 3, kEmbed - 1}, 14);
  expect_words(message(narrow.view(), out.view()), {"Encoder: x must have 40 features", "[2, 3, 39]"});
  expect_words(message(x.view(), {out.data().data(), {3, 2, kEmbed}}), {"out must have the shape of x"});
  const MutableTensorView shifted(x.data().data() + kEmbed, {5, kEmbed});
  expect_words(message({x.data().data(), {5, kEmbed}}, shifted), {"out must not overlap x"});
  const Array<double> wide = Array<double>::random({2, 3, kEmbed}, 15);
  EXPECT_THROW(stack.forward(wide.view(), out.view()), DTypeError);
  expect_words(message_of<std::invalid_argument>([&] { norm(kEmbed, 1).forward(narrow.view(), out.view()); }),
               {"LayerNorm: x must have 40 features"});
  expect_words(
      message_of<std::invalid_argument>([&] { rms_norm(kEmbed, 1, false).forward(narrow.view(), out.view()); }),
      {"RMSNorm: x must have 40 features"});

  const TransformerLayer layer = decoder_layer(1);
  const TransformerStack decoder(&layer, 1, nullptr, "Decoder");
  expect_words(message_of<std::invalid_argument>([&] { decoder.forward(x.view(), out.view()); }),
               {"Decoder", "either memory or memory_caches"});
  TransformerExtras context;
  const Rows memory = Rows::random({3, 4, kMemory}, 16);
  context.memory = memory.view();
  expect_words(message_of<std::invalid_argument>([&] { decoder.forward(x.view(), out.view(), {}, context); }),
               {"memory must have the batch size of x", "[3, 4, 24]"});
  expect_words(message_of<std::invalid_argument>([&] { stack.forward(x.view(), out.view(), {}, context); }),
               {"Encoder", "no layer has a cross_attention"});
  const std::int64_t offsets[] = {0, 5};
  const TensorView rows(x.data().data(), {5, kEmbed});
  const MutableTensorView result(out.data().data(), {5, kEmbed});
  expect_words(message_of<std::invalid_argument>([&] { decoder.forward_varlen(rows, offsets, 1, result); }),
               {"Decoder", "cross_attention", "ragged"});
}

TEST(Transformer, NothingIsNothing) {
  const TransformerStack stack = encoder();
  float none = 0;
  stack.forward({&none, {0, 5, kEmbed}}, {&none, {0, 5, kEmbed}});
  stack.forward({&none, {2, 0, kEmbed}}, {&none, {2, 0, kEmbed}});
  const std::int64_t offsets[] = {0};
  stack.forward_varlen({&none, {0, kEmbed}}, offsets, 0, {&none, {0, kEmbed}});
  norm(kEmbed, 1).forward({&none, {0, kEmbed}}, {&none, {0, kEmbed}});
  EXPECT_EQ(none, 0);
}

TEST(Transformer, WeightsComeOutAsTheyWentIn) {
  const Rows weight1 = Rows::random({kHidden, kEmbed}, 1), weight2 = Rows::random({kEmbed, kHidden}, 2);
  const FeedForward layer({{weight1.view()}, {weight2.view()}}, Activation::relu);
  EXPECT_FALSE(layer.has_up_bias() || layer.has_down_bias());
  Rows copy1 = testing::nans<float>({kHidden, kEmbed}), copy2 = testing::nans<float>({kEmbed, kHidden});
  layer.copy_weights({{copy1.view()}, {copy2.view()}});
  EXPECT_EQ(copy1.data(), weight1.data());
  EXPECT_EQ(copy2.data(), weight2.data());
  const Rows scale = Rows::random({kEmbed}, 3);
  Rows copy = testing::nans<float>({kEmbed});
  LayerNorm(scale.view()).copy_weights(copy.view(), {});
  EXPECT_EQ(copy.data(), scale.data());
  const RMSNorm rms(scale.view(), 0.5, true);
  Rows of_rms = testing::nans<float>({kEmbed});
  rms.copy_weights(of_rms.view(), {});
  EXPECT_EQ(of_rms.data(), scale.data());
  EXPECT_EQ(rms.eps(), 0.5);
  EXPECT_FALSE(rms.has_bias());
  EXPECT_TRUE(rms.kind() == NormKind::rms_unit_offset);
  expect_words(message_of<std::invalid_argument>([&] { RMSNorm(scale.view(), -1); }), {"RMSNorm: eps"});
}

TEST(Transformer, PositionsGoOnWhereTheyWere) {
  for (const Index width : {1, 5, 8}) {
    Array<double> whole = testing::nans<double>({20, width}), rest = testing::nans<double>({7, width});
    sinusoidal_positions(whole.view());
    sinusoidal_positions(rest.view(), 13);
    EXPECT_EQ(std::memcmp(rest.data().data(), whole.data().data() + 13 * width, sizeof(double) * rest.data().size()),
              0);
    for (Index e = 0; e < width; ++e) {
      const double angle = 19 / std::pow(10000.0, double(e - e % 2) / double(width));
      EXPECT_EQ(whole.data()[static_cast<std::size_t>(19 * width + e)], e % 2 ? std::cos(angle) : std::sin(angle));
    }
  }
  EXPECT_THROW(sinusoidal_positions(MutableTensorView{}), std::invalid_argument);
}

}  // namespace
}  // namespace mha

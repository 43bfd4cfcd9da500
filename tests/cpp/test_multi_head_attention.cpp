// The attention layer compared with the reference; its object is immutable and movable and has its own copy of the
// weights.
#include "mha/multi_head_attention.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>

#include "arrays.hpp"
#include "attention_reference.hpp"
#include "mha/runtime.hpp"

namespace mha {
namespace {

using testing::Array;
using testing::expect_close;
using testing::expect_words;
using testing::message_of;
using testing::nans;
using testing::tolerance;

/// Random weights of a layer, for a config without zeros, scaled so that results are of the size of the inputs.
template <class T>
struct Weights {
  explicit Weights(const MultiHeadAttentionConfig& c)
      : arrays{scaled({c.num_heads * c.head_dim, c.embed_dim}, 1),
               scaled({c.num_kv_heads * c.head_dim, c.kdim}, 2),
               scaled({c.num_kv_heads * c.value_head_dim, c.vdim}, 3),
               scaled({c.out_dim, c.num_heads * c.value_head_dim}, 4),
               Array<T>::random({c.num_heads * c.head_dim}, 5),
               Array<T>::random({c.num_kv_heads * c.head_dim}, 6),
               Array<T>::random({c.num_kv_heads * c.value_head_dim}, 7),
               Array<T>::random({c.out_dim}, 8),
               Array<T>::random({c.num_kv_heads * c.head_dim}, 9),
               Array<T>::random({c.num_kv_heads * c.value_head_dim}, 10)},
        add_bias_kv(c.add_bias_kv) {}

  static Array<T> scaled(std::initializer_list<Index> shape, unsigned seed) {
    auto array = Array<T>::random(shape, seed);
    for (T& element : array.data()) element /= static_cast<T>(std::sqrt(static_cast<double>(*(shape.end() - 1))));
    return array;
  }

  MultiHeadAttentionWeights views(bool bias = true) const {
    MultiHeadAttentionWeights all;
    LinearWeights* const projections[] = {&all.query, &all.key, &all.value, &all.out};
    for (int i = 0; i < 4; ++i) {
      projections[i]->weight = arrays[i].view();
      if (bias) projections[i]->bias = arrays[4 + i].view();
    }
    if (add_bias_kv) {
      all.added_key = arrays[8].view();
      all.added_value = arrays[9].view();
    }
    return all;
  }

  Array<T> arrays[10];
  bool add_bias_kv;
};

constexpr MultiHeadAttentionConfig kUsual = {32, 4, 4, 8, 8, 32, 32, 32};
constexpr MultiHeadAttentionConfig kWide = {29, 6, 3, 11, 13, 23, 31, 70};
constexpr MultiHeadAttentionConfig kWithKey = {29, 6, 3, 11, 13, 23, 31, 70, true};
constexpr MultiHeadAttentionConfig kWithZeros = {32, 4, 4, 8, 8, 32, 32, 32, false, true};
constexpr MultiHeadAttentionConfig kWithBoth = {29, 6, 3, 11, 13, 23, 31, 70, true, true};

template <class T>
class LayerOf : public ::testing::Test {
 protected:
  void TearDown() override { set_isa(nullptr); }
};
using Elements = ::testing::Types<float, double>;
TYPED_TEST_SUITE(LayerOf, Elements);

TYPED_TEST(LayerOf, ComputesWhatTheReferenceDoes) {
  constexpr Index B = 2, Tq = 21, Tk = 40;
  for (const MultiHeadAttentionConfig& config : {kUsual, kWide, kWithKey, kWithZeros, kWithBoth})
    for (bool bias : {true, false})
      for (bool is_causal : {true, false}) {
        const Weights<TypeParam> weights(config);
        const auto query = Array<TypeParam>::random({B, Tq, config.embed_dim}, 11);
        const auto key = Array<TypeParam>::random({B, Tk, config.kdim}, 12);
        const auto value = Array<TypeParam>::random({B, Tk, config.vdim}, 13);
        bool unmasked[B * Tk];
        for (Index i = 0; i < B * Tk; ++i) unmasked[i] = i % 5 != 2;
        AttentionOptions options;
        options.key_mask = TensorView(unmasked, {B, Tk});
        options.is_causal = is_causal;
        const TypeParam slopes[] = {0.5, 0.25, -0.125, 0, 1, 2}, sinks[] = {1, -2, 0, 4, 2, -1};
        if (!bias) {  // half of the cases have all score options
          options.softcap = 1.5;
          options.alibi_slopes = TensorView(slopes, {config.num_heads});
          options.sinks = TensorView(sinks, {config.num_heads});
        }
        const reference::Attention expected = reference::multi_head_attention(config, weights.views(bias), query.view(),
                                                                              key.view(), value.view(), options);
        const double bound = 8 * tolerance<TypeParam>(70, Tk, 10) * 4;
        const MultiHeadAttention layer(config, weights.views(bias));
        for (int index = 0; index < num_built_isas(); ++index) {
          if (!isa_supported(index)) continue;
          set_isa(built_isa(index));
          auto out = nans<TypeParam>({B, Tq, config.out_dim}), again = nans<TypeParam>({B, Tq, config.out_dim});
          auto attention = nans<TypeParam>({B, config.num_heads, Tq, Tk + config.added_keys()});
          layer.forward(query.view(), key.view(), value.view(), out.view(), attention.view(), options);
          EXPECT_STREQ(last_used_isa(), built_isa(index));
          expect_close(out.data(), expected.out, bound);
          expect_close(attention.data(), expected.weights, bound);
          layer.forward(query.view(), key.view(), value.view(), again.view(), {}, options);
          EXPECT_EQ(again.data(), out.data()) << "asking for the weights changes bits";
        }
      }
}

TYPED_TEST(LayerOf, SelfAttentionOfOneViewOrThree) {
  const Weights<TypeParam> weights(kUsual);
  const MultiHeadAttention layer(kUsual, weights.views());
  const auto x = Array<TypeParam>::random({2, 50, 32}, 11), same = Array<TypeParam>::random({2, 50, 32}, 11);
  auto one = nans<TypeParam>({2, 50, 32}), three = nans<TypeParam>({2, 50, 32});
  layer.forward(x.view(), x.view(), x.view(), one.view());
  layer.forward(x.view(), same.view(), same.view(), three.view());
  EXPECT_EQ(one.data(), three.data());
}

TYPED_TEST(LayerOf, StridedInputsAndResults) {
  constexpr Index B = 2, T = 10, E = 32;
  const Weights<TypeParam> weights(kUsual);
  const MultiHeadAttention layer(kUsual, weights.views());
  auto x = Array<TypeParam>::random({B, T, E}, 11);
  auto expected = nans<TypeParam>({B, T, E});
  layer.forward(x.view(), x.view(), x.view(), expected.view());

  Array<TypeParam> turned({E, T, B}, 0), written = nans<TypeParam>({E, T, B});
  for (Index b = 0; b < B; ++b)
    for (Index t = 0; t < T; ++t)
      for (Index e = 0; e < E; ++e)
        turned.data()[static_cast<std::size_t>((e * T + t) * B + b)] =
            x.data()[static_cast<std::size_t>((b * T + t) * E + e)];
  const TensorView view(turned.data().data(), {B, T, E}, {1, B, T * B});
  layer.forward(view, view, view, MutableTensorView(written.data().data(), {B, T, E}, {1, B, T * B}));
  for (Index b = 0; b < B; ++b)
    for (Index t = 0; t < T; ++t)
      for (Index e = 0; e < E; ++e)
        EXPECT_EQ(written.data()[static_cast<std::size_t>((e * T + t) * B + b)],
                  expected.data()[static_cast<std::size_t>((b * T + t) * E + e)]);
}

TYPED_TEST(LayerOf, GivesItsWeightsBack) {
  for (bool bias : {true, false}) {
    const Weights<TypeParam> given(kWithBoth);
    const MultiHeadAttention layer(kWithBoth, given.views(bias));
    EXPECT_EQ(layer.dtype(), DTypeOf<TypeParam>::value);
    Weights<TypeParam> copies(kWithBoth);
    for (auto& array : copies.arrays) array.data().assign(array.data().size(), 0);
    MultiHeadAttention::WeightOutputs outputs;
    LinearWeightOutputs* const projections[] = {&outputs.query, &outputs.key, &outputs.value, &outputs.out};
    for (int i = 0; i < 4; ++i) {
      projections[i]->weight = copies.arrays[i].view();
      if (bias) projections[i]->bias = copies.arrays[4 + i].view();
    }
    outputs.added_key = copies.arrays[8].view();
    outputs.added_value = copies.arrays[9].view();
    layer.copy_weights(outputs);
    for (int i = 0; i < 10; ++i) {
      const bool is_bias = i >= 4 && i < 8;
      if (bias || !is_bias) {
        EXPECT_EQ(copies.arrays[i].data(), given.arrays[i].data()) << i;
      }
    }
  }
}

TEST(Layer, KeepsWeightsOfItsOwnAndMoves) {
  auto x = Array<float>::random({1, 5, 32}, 11);
  auto before = nans<float>({1, 5, 32}), after = nans<float>({1, 5, 32});
  Weights<float> weights(kUsual);
  MultiHeadAttention layer(kUsual, weights.views());
  layer.forward(x.view(), x.view(), x.view(), before.view());
  for (auto& array : weights.arrays) array.data().assign(array.data().size(), 0);
  MultiHeadAttention moved = std::move(layer);
  moved.forward(x.view(), x.view(), x.view(), after.view());
  EXPECT_EQ(after.data(), before.data());
  MultiHeadAttention other(kUsual, weights.views());
  other = std::move(moved);
  other.forward(x.view(), x.view(), x.view(), after.view());
  EXPECT_EQ(after.data(), before.data());
}

TEST(Layer, ResolvesZeros) {
  MultiHeadAttentionConfig config;
  config.embed_dim = 32;
  config.num_heads = 4;
  const Weights<float> weights(kUsual);
  const MultiHeadAttention layer(config, weights.views());
  const MultiHeadAttentionConfig& resolved = layer.config();
  EXPECT_EQ(resolved.num_kv_heads, 4);
  EXPECT_EQ(resolved.head_dim, 8);
  EXPECT_EQ(resolved.value_head_dim, 8);
  EXPECT_EQ(resolved.kdim, 32);
  EXPECT_EQ(resolved.vdim, 32);
  EXPECT_EQ(resolved.out_dim, 32);
}

TEST(Layer, RefusesSizesAndWeightsThatDisagree) {
  const Weights<float> weights(kUsual);
  const auto refused = [&](MultiHeadAttentionConfig config, MultiHeadAttentionWeights views) {
    return message_of<std::invalid_argument>([&] { MultiHeadAttention(config, views); });
  };
  MultiHeadAttentionConfig config = kUsual;
  config.num_heads = 0;
  expect_words(refused(config, weights.views()), {"MultiHeadAttention: ", "num_heads"});
  config = {32, 5};
  expect_words(refused(config, weights.views()), {"embed_dim", "32", "num_heads", "5"});
  config = kUsual;
  config.num_kv_heads = 3;
  expect_words(refused(config, weights.views()), {"num_kv_heads", "3"});
  config = kUsual;
  config.kdim = -1;
  expect_words(refused(config, weights.views()), {"kdim", "-1"});
  MultiHeadAttentionWeights views = weights.views();
  views.key.weight.extents[1] = 31;
  expect_words(refused(kUsual, views), {"key_weight", "[32, 31]", "[32, 32]"});
  views = weights.views();
  views.out.weight = {};
  expect_words(refused(kUsual, views), {"out_weight"});
  views = weights.views();
  views.value.bias.extents[0] = 33;
  expect_words(refused(kUsual, views), {"value_bias", "[33]", "[32]"});
  views = weights.views();
  views.out.bias.dtype = DType::f64;
  expect_words(message_of<DTypeError>([&] { MultiHeadAttention(kUsual, views); }), {"out_bias float64"});
  const Weights<float> added(kWithBoth);
  views = added.views();
  views.added_key.extents[0] = 32;
  expect_words(refused(kWithBoth, views), {"added_key", "[32]", "[33]"});
  views.added_key = {};
  expect_words(refused(kWithBoth, views), {"added_key", "[33]"});
  views = added.views();
  views.added_value = {};
  expect_words(refused(kWithBoth, views), {"added_value", "[39]"});
  expect_words(refused(kWide, added.views()), {"added_key", "add_bias_kv"});
  views = added.views();
  views.added_value.dtype = DType::f64;
  expect_words(message_of<DTypeError>([&] { MultiHeadAttention(kWithBoth, views); }), {"added_value float64"});
}

TEST(Layer, WeightsHaveColumnsForAddedKeys) {
  const Weights<float> weights(kWithZeros);
  const MultiHeadAttention layer(kWithZeros, weights.views());
  Array<float> x({2, 5, 32}, 1), out({2, 5, 32}, 3), attention({2, 4, 5, 5}, 3);
  expect_words(message_of<std::invalid_argument>(
                   [&] { layer.forward(x.view(), x.view(), x.view(), out.view(), attention.view()); }),
               {"weights must be [B, H, Tq, Tk + 1]", "[2, 4, 5, 5]"});
}

TEST(Layer, RefusesCallsBeforeAnythingIsWritten) {
  const Weights<float> weights(kUsual);
  const MultiHeadAttention layer(kUsual, weights.views());
  Array<float> x({2, 5, 32}, 1), narrow({2, 5, 31}, 1), out({2, 5, 32}, 3), attention({2, 4, 5, 5}, 3);
  Array<double> doubles({2, 5, 32}, 1);
  const auto refused = [&](const TensorView& q, const TensorView& k, const TensorView& v,
                           const AttentionOptions& options = {}) {
    const std::string message =
        message_of<std::invalid_argument>([&] { layer.forward(q, k, v, out.view(), attention.view(), options); });
    for (float element : out.data()) EXPECT_EQ(element, 3) << "written before the error: " << message;
    for (float element : attention.data()) EXPECT_EQ(element, 3) << "written before the error: " << message;
    expect_words(message, {"MultiHeadAttention: "});
    return message;
  };
  expect_words(refused(narrow.view(), x.view(), x.view()), {"query", "32", "[2, 5, 31]"});
  expect_words(refused(x.view(), narrow.view(), x.view()), {"key", "32", "[2, 5, 31]"});
  expect_words(refused(x.view(), x.view(), narrow.view()), {"value", "32", "[2, 5, 31]"});
  expect_words(refused(x.view(), x.view(), doubles.view()), {"value float64"});
  MutableTensorView shorter = x.view();
  shorter.extents[1] = 4;
  expect_words(refused(x.view(), x.view(), shorter), {"value", "length"});
  expect_words(refused(x.view(), shorter, shorter), {"weights"});
  AttentionOptions options;
  const bool unmasked[64] = {};
  options.key_mask = TensorView(unmasked, {2, 6});
  expect_words(refused(x.view(), x.view(), x.view(), options), {"key_mask", "[2, 6]", "[2, 5]"});
  expect_words(message_of<std::invalid_argument>([&] { layer.forward(x.view(), x.view(), x.view(), x.view()); }),
               {"out must not overlap query"});
  EXPECT_EQ(x.data()[0], 1);
}

}  // namespace
}  // namespace mha

// What a layer does to the rows of the heads of query and key: norms, and rotary positions. Their numbers, by what is in a
// cache; that calls which must agree do, bit by bit; and the same by the functions of C.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "arrays.hpp"
#include "c_calls.hpp"
#include "every_isa.hpp"
#include "mha/multi_head_attention.hpp"

namespace mha {
namespace {

using testing::Array;
using testing::c_tensor;
using testing::expect_words;
using testing::message_of;
using testing::nans;
using testing::on_every_isa;

constexpr Index B = 2, T = 37, E = 24, H = 4, Hk = 2, D = 10, P = 64;
constexpr MultiHeadAttentionConfig kConfig = {E, H, Hk, D, D, E, E, E};

/// Of a layer, and steps for it.
template <class T_>
struct Parts {
  Array<T_> query = Array<T_>::random({H * D, E}, 1), key = Array<T_>::random({Hk * D, E}, 2),
            value = Array<T_>::random({Hk * D, E}, 3), out = Array<T_>::random({E, H * D}, 4),
            norm = Array<T_>::random({D}, 5), cos, sin;

  explicit Parts(Index pairs) : cos({P, pairs}, 0), sin({P, pairs}, 0) {
    const auto angles = Array<T_>::random({P, pairs}, 6);
    for (std::size_t i = 0; i < angles.data().size(); ++i) {
      cos.data()[i] = std::cos(angles.data()[i]);
      sin.data()[i] = std::sin(angles.data()[i]);
    }
  }

  MultiHeadAttentionWeights weights() const {
    return {{query.view(), {}, {}}, {key.view(), {}, {}}, {value.view(), {}, {}}, {out.view(), {}, {}}};
  }
  RotaryEmbedding rotary(RotaryPairs pairs) const { return {cos.view(), sin.view(), pairs}; }
};

/// The keys that a layer appends to a cache, [B, Hk, T, D].
template <class T_>
std::vector<T_> keys_of(const MultiHeadAttention& layer, const Array<T_>& x) {
  KVCache cache({B, Hk, T, D, D, DTypeOf<T_>::value});
  layer.append_to(cache, x.view(), x.view());
  const TensorView keys = cache.keys();
  std::vector<T_> all;
  for (Index b = 0; b < B; ++b)
    for (Index h = 0; h < Hk; ++h)
      for (Index t = 0; t < T; ++t)
        for (Index d = 0; d < D; ++d)
          all.push_back(static_cast<const T_*>(
              keys.data)[b * keys.strides[0] + h * keys.strides[1] + t * keys.strides[2] + d * keys.strides[3]]);
  return all;
}

template <class T_>
class HeadRowsOf : public ::testing::Test {};
using Elements = ::testing::Types<float, double>;
TYPED_TEST_SUITE(HeadRowsOf, Elements);

TYPED_TEST(HeadRowsOf, KeysAreTurnedByTheirPosition) {
  const auto x = Array<TypeParam>::random({B, T, E}, 7);
  for (const Index pairs : {1, 3, 5})
    for (const RotaryPairs which : {RotaryPairs::halves, RotaryPairs::neighbours}) {
      const Parts<TypeParam> parts(pairs);
      QueryKeySteps steps;
      steps.rotary = parts.rotary(which);
      const MultiHeadAttention plain(kConfig, parts.weights()), layer(kConfig, parts.weights(), steps);
      on_every_isa([&] {
        auto expected = keys_of(plain, x);
        for (std::size_t row = 0; row < expected.size() / D; ++row)
          for (Index i = 0; i < pairs; ++i) {
            const auto at = static_cast<std::size_t>(Index(row) % T * pairs + i);
            const TypeParam cos = parts.cos.data()[at], sin = parts.sin.data()[at];
            TypeParam* const features = expected.data() + row * D;
            TypeParam& first = features[which == RotaryPairs::halves ? i : 2 * i];
            TypeParam& second = features[which == RotaryPairs::halves ? pairs + i : 2 * i + 1];
            const TypeParam a = first, b = second;
            first = a * cos - b * sin;
            second = a * sin + b * cos;
          }
        EXPECT_EQ(keys_of(layer, x), expected);
      });
    }
}

TYPED_TEST(HeadRowsOf, KeysAreNormedHeadByHead) {
  const auto x = Array<TypeParam>::random({B, T, E}, 7);
  const Parts<TypeParam> parts(3);
  for (const bool is_rms : {true, false}) {
    QueryKeySteps steps;
    steps.key_norm = is_rms ? Norm(RMSNorm(parts.norm.view(), 0.25)) : Norm(LayerNorm(parts.norm.view(), {}, 0.25));
    const MultiHeadAttention plain(kConfig, parts.weights()), layer(kConfig, parts.weights(), steps);
    on_every_isa([&] {
      const auto keys = keys_of(plain, x), normed = keys_of(layer, x);
      for (std::size_t row = 0; row < keys.size() / D; ++row) {
        double mean = 0, squares = 0;
        for (std::size_t d = 0; d < D; ++d) mean += is_rms ? 0 : double(keys[row * D + d]) / D;
        for (std::size_t d = 0; d < D; ++d) squares += std::pow(double(keys[row * D + d]) - mean, 2) / D;
        for (std::size_t d = 0; d < D; ++d) {
          const double expected =
              (double(keys[row * D + d]) - mean) / std::sqrt(squares + 0.25) * double(parts.norm.data()[d]);
          ASSERT_NEAR(double(normed[row * D + d]), expected, 1e-5);
        }
      }
    });
  }
}

TYPED_TEST(HeadRowsOf, KeysOfAllHeadsAreNormedTogether) {
  const auto x = Array<TypeParam>::random({B, T, E}, 7), weight = Array<TypeParam>::random({Hk * D}, 8);
  const Parts<TypeParam> parts(3);
  QueryKeySteps steps;
  steps.key_norm = RMSNorm(weight.view(), 0.25);
  const MultiHeadAttention plain(kConfig, parts.weights()), layer(kConfig, parts.weights(), steps);
  on_every_isa([&] {
    const auto keys = keys_of(plain, x), normed = keys_of(layer, x);  // [B, Hk, T, D]
    for (Index b = 0; b < B; ++b)
      for (Index t = 0; t < T; ++t) {
        const auto at = [&](Index i) { return static_cast<std::size_t>(((b * Hk + i / D) * T + t) * D + i % D); };
        double squares = 0;
        for (Index i = 0; i < Hk * D; ++i) squares += std::pow(double(keys[at(i)]), 2) / double(Hk * D);
        for (Index i = 0; i < Hk * D; ++i)
          ASSERT_NEAR(double(normed[at(i)]),
                      double(keys[at(i)]) / std::sqrt(squares + 0.25) * double(weight.data()[std::size_t(i)]), 1e-5);
      }
  });
}

TYPED_TEST(HeadRowsOf, ARowHasTheSameBitsInEveryCall) {
  const auto x = Array<TypeParam>::random({B, T, E}, 7), joint = Array<TypeParam>::random({H * D}, 8);
  const Parts<TypeParam> parts(4);
  QueryKeySteps steps;
  steps.query_norm = RMSNorm(joint.view());  // of all heads together
  steps.key_norm = LayerNorm(parts.norm.view());
  steps.rotary = parts.rotary(RotaryPairs::neighbours);
  const MultiHeadAttention layer(kConfig, parts.weights(), steps);
  AttentionOptions options;
  options.is_causal = true;
  on_every_isa([&] {
    for (int threads : {1, 3}) {
      options.num_threads = threads;
      auto whole = nans<TypeParam>({B, T, E}), ragged = nans<TypeParam>({B * T, E}),
           steps_of = nans<TypeParam>({B, T, E});
      layer.forward(x.view(), x.view(), x.view(), whole.view(), {}, options);
      const TensorView rows(x.view().data, x.view().dtype, {B * T, E});
      const std::int64_t starts[] = {0, 0, T, 2 * T, 2 * T};
      layer.forward_varlen(rows, rows, rows, {4, starts, starts}, ragged.view(), options);
      EXPECT_EQ(ragged.data(), whole.data());
      KVCache cache({B, Hk, T, D, D, DTypeOf<TypeParam>::value});
      for (Index from = 0, count = 0; from < T; from += count) {
        count = from == 0 ? 20 : from == 20 ? 1 : T - from;
        const auto part = [&](const MutableTensorView& all) {
          return MutableTensorView(static_cast<TypeParam*>(all.data) + from * E, {B, count, E}, {T * E, E, 1});
        };
        const TensorView some = part(x.view());
        layer.forward(some, some, some, cache, part(steps_of.view()), {}, options);
      }
      EXPECT_EQ(steps_of.data(), whole.data());
    }
  });
}

/// Of one layer: what a dense, a ragged and a cached call give for rows at `positions`, [B, T], or at the default for null.
/// Keys of the last are in `cache`.
struct Calls {
  Array<float> dense = nans<float>({B, T, E}), ragged = nans<float>({B * T, E}), cached = nans<float>({B, T, E});
  KVCache cache = KVCache({B, Hk, P, D});

  Calls(const MultiHeadAttention& layer, const Array<float>& x, const std::int64_t* positions, int num_threads = 0) {
    AttentionOptions options;
    options.is_causal = true;
    options.positions = positions;
    options.num_threads = num_threads;
    layer.forward(x.view(), x.view(), x.view(), dense.view(), {}, options);
    const TensorView rows(x.view().data, x.view().dtype, {B * T, E});
    const std::int64_t starts[] = {0, T, 2 * T};
    layer.forward_varlen(rows, rows, rows, {2, starts, starts}, ragged.view(), options);
    layer.forward(x.view(), x.view(), x.view(), cache, cached.view(), {}, options);
  }
};

TEST(HeadRows, PositionsOfACallTakeThePlaceOfCountedOnes) {
  const Parts<float> parts(4);
  QueryKeySteps steps;
  steps.rotary = parts.rotary(RotaryPairs::halves);
  const MultiHeadAttention plain(kConfig, parts.weights()), layer(kConfig, parts.weights(), steps);
  const auto x = Array<float>::random({B, T, E}, 7);
  std::vector<std::int64_t> counted, jumping;
  for (Index row = 0; row < B * T; ++row) {
    counted.push_back(row % T);
    jumping.push_back(row * row * 7 % P);  // runs of one row, and equal ones
  }
  for (Index row = 40; row < 60; ++row) jumping[static_cast<std::size_t>(row)] = row;
  on_every_isa([&] {
    const Calls unturned(plain, x, nullptr);
    for (const int threads : {1, 3}) {
      const Calls by_default(layer, x, nullptr, threads), the_same(layer, x, counted.data(), threads);
      EXPECT_EQ(the_same.dense.data(), by_default.dense.data());
      EXPECT_EQ(the_same.ragged.data(), by_default.ragged.data());
      EXPECT_EQ(the_same.cached.data(), by_default.cached.data());
      const Calls calls(layer, x, jumping.data(), threads);
      EXPECT_NE(calls.dense.data(), by_default.dense.data());
      EXPECT_EQ(calls.ragged.data(), calls.dense.data());
      EXPECT_EQ(calls.cached.data(), calls.dense.data());
      const TensorView keys = calls.cache.keys(), before = unturned.cache.keys();
      for (Index b = 0; b < B; ++b)
        for (Index t = 0; t < T; ++t)
          for (Index i = 0; i < 4; ++i) {
            const auto at = static_cast<std::size_t>(jumping[static_cast<std::size_t>(b * T + t)] * 4 + i);
            const auto key = [&](const TensorView& view, Index d) {
              return static_cast<const float*>(view.data)[b * view.strides[0] + t * view.strides[2] + d];
            };
            const float cos = parts.cos.data()[at], sin = parts.sin.data()[at];
            ASSERT_EQ(key(keys, i), key(before, i) * cos - key(before, 4 + i) * sin) << b << " " << t << " " << i;
          }
    }
  });
}

TEST(HeadRows, PositionsOfCallsAreChecked) {
  const Parts<float> parts(3);
  QueryKeySteps steps;
  steps.rotary = parts.rotary(RotaryPairs::halves);
  const MultiHeadAttention layer(kConfig, parts.weights(), steps), plain(kConfig, parts.weights());
  const auto x = Array<float>::random({B, T, E}, 7), longer = Array<float>::random({B, T + 1, E}, 7);
  auto out = nans<float>({B, T, E});
  std::vector<std::int64_t> positions(static_cast<std::size_t>(B * T), 5);
  AttentionOptions options;
  options.positions = positions.data();
  const auto message = [&](const MultiHeadAttention& of, const Array<float>& key) {
    return message_of<std::invalid_argument>(
        [&] { of.forward(x.view(), key.view(), key.view(), out.view(), {}, options); });
  };
  expect_words(message(plain, x), {"MultiHeadAttention: positions", "without rotary"});
  expect_words(message(layer, longer), {"MultiHeadAttention: positions", "query and key", "37", "38"});
  for (const std::int64_t wrong : {Index{-1}, P, std::numeric_limits<Index>::max()}) {
    positions[T + 3] = wrong;
    expect_words(message(layer, x), {"MultiHeadAttention: positions", "0 to 63", "row 3 of batch element 1"});
  }
  EXPECT_TRUE(std::isnan(out.data()[0]));
  expect_words(message_of<std::invalid_argument>(
                   [&] { scaled_dot_product_attention(x.view(), x.view(), x.view(), out.view(), {}, options); }),
               {"scaled_dot_product_attention: positions", "without rotary"});
  // What does not count has no position.
  KVCache cache({B, Hk, P, D});
  const std::int64_t new_lengths[] = {T, 3};
  layer.forward(x.view(), x.view(), x.view(), cache, out.view(), {}, options, new_lengths);
  EXPECT_EQ(cache.lengths()[1], 3);
}

TEST(HeadRows, RefusesStepsThatDoNotFit) {
  const Parts<float> parts(6);
  const Parts<double> wide(3);
  const auto made_with = [&](const QueryKeySteps& steps) {
    return [&, steps] { MultiHeadAttention(kConfig, parts.weights(), steps); };
  };
  QueryKeySteps steps;
  steps.rotary = parts.rotary(RotaryPairs::halves);
  expect_words(message_of<std::invalid_argument>(made_with(steps)), {"MultiHeadAttention: rotary", "10", "12"});
  steps.rotary = wide.rotary(RotaryPairs::halves);
  expect_words(message_of<DTypeError>(made_with(steps)), {"MultiHeadAttention: rotary", "float32", "float64"});
  steps.rotary.reset();
  steps.key_norm = RMSNorm(wide.norm.view());
  expect_words(message_of<DTypeError>(made_with(steps)), {"MultiHeadAttention: key_norm", "float32", "float64"});
  const auto long_norm = Array<float>::random({D + 1}, 1);
  steps.key_norm.reset();
  steps.query_norm = RMSNorm(long_norm.view());
  expect_words(message_of<std::invalid_argument>(made_with(steps)), {"MultiHeadAttention: query_norm", "10", "11"});
}

TEST(HeadRows, RefusesPositionsBehindTheTable) {
  const Parts<float> parts(3);
  QueryKeySteps steps;
  steps.rotary = parts.rotary(RotaryPairs::halves);
  const MultiHeadAttention layer(kConfig, parts.weights(), steps);
  const auto x = Array<float>::random({B, T, E}, 7);
  auto out = nans<float>({B, T, E});
  const std::int64_t offsets[] = {P - T, P - T + 1};
  AttentionOptions options;
  options.query_offsets = offsets;
  const auto call = [&] { layer.forward(x.view(), x.view(), x.view(), out.view(), {}, options); };
  expect_words(message_of<std::invalid_argument>(call),
               {"MultiHeadAttention: query_offset", "0 to 63", "28", "element 1"});
  KVCache cache({B, Hk, 2 * P, D});
  layer.append_to(cache, x.view(), x.view());
  const auto append = [&] { layer.append_to(cache, x.view(), x.view()); };
  expect_words(message_of<std::invalid_argument>(append), {"MultiHeadAttention.append_to: key", "0 to 63", "37 rows"});
  EXPECT_EQ(cache.longest(), T);
}

TEST(HeadRows, AreTheSameInC) {
  const Parts<float> parts(3);
  const mha_tensor cos = c_tensor(parts.cos), sin = c_tensor(parts.sin), weight = c_tensor(parts.norm);
  const mha_tensor matrices[] = {c_tensor(parts.query), c_tensor(parts.key), c_tensor(parts.value),
                                 c_tensor(parts.out)};
  mha_rotary* rotary = nullptr;
  mha_norm *norm = nullptr, *rms = nullptr;
  ASSERT_EQ(mha_rotary_create(&cos, &sin, MHA_ROTARY_NEIGHBOURS, &rotary), MHA_OK);
  ASSERT_EQ(mha_norm_create(&weight, nullptr, 1e-5, &norm), MHA_OK);
  ASSERT_EQ(mha_rms_norm_create(&weight, 1e-6, true, &rms), MHA_OK);
  EXPECT_EQ(mha_rotary_max_positions(rotary), P);
  EXPECT_EQ(mha_rotary_rotary_dim(rotary), 6);
  EXPECT_EQ(mha_rotary_pairs_of(rotary), MHA_ROTARY_NEIGHBOURS);
  EXPECT_EQ(mha_rotary_dtype(rotary), MHA_DTYPE_f32);
  const mha_tensor table = mha_rotary_sin(rotary);
  EXPECT_EQ(static_cast<const float*>(table.data)[5 * table.strides[0] + 2], parts.sin.data()[5 * 3 + 2]);
  EXPECT_EQ(*static_cast<const float*>(mha_rotary_cos(rotary).data), parts.cos.data()[0]);

  const mha_layer_config config = {E, H, Hk, D, D, E, E, E, false, false, MHA_WEIGHT_FORMAT_PLAIN};
  mha_layer_weights weights = {};
  mha_linear_weights* const projections[] = {&weights.query, &weights.key, &weights.value, &weights.out};
  for (int i = 0; i < 4; ++i) projections[i]->weight = &matrices[i];
  const mha_query_key_steps steps = {norm, rms, rotary};
  mha_layer *layer = nullptr, *plain = nullptr;
  ASSERT_EQ(mha_layer_create_with_steps(&config, &weights, &steps, &layer), MHA_OK) << mha_last_error();
  ASSERT_EQ(mha_layer_create_with_steps(&config, &weights, nullptr, &plain), MHA_OK) << mha_last_error();
  mha_rotary_destroy(rotary);
  mha_norm_destroy(norm);
  mha_norm_destroy(rms);
  EXPECT_EQ(mha_rotary_rotary_dim(mha_layer_steps(layer).rotary), 6);
  EXPECT_EQ(mha_norm_kind_of(mha_layer_steps(layer).query_norm), MHA_NORM_LAYER);
  EXPECT_EQ(mha_norm_kind_of(mha_layer_steps(layer).key_norm), MHA_NORM_RMS_UNIT_OFFSET);
  EXPECT_EQ(mha_layer_steps(plain).rotary, nullptr);

  QueryKeySteps same;
  same.query_norm = LayerNorm(parts.norm.view());
  same.key_norm = RMSNorm(parts.norm.view(), 1e-6, true);
  same.rotary = parts.rotary(RotaryPairs::neighbours);
  const auto x = Array<float>::random({B, T, E}, 7);
  auto expected = nans<float>({B, T, E}), actual = nans<float>({B, T, E});
  MultiHeadAttention(kConfig, parts.weights(), same).forward(x.view(), x.view(), x.view(), expected.view());
  const mha_tensor rows = c_tensor(x), out = c_tensor(actual);
  ASSERT_EQ(mha_layer_forward(layer, &rows, &rows, &rows, &out, nullptr, nullptr), MHA_OK) << mha_last_error();
  EXPECT_EQ(actual.data(), expected.data());

  const std::vector<std::int64_t> positions(static_cast<std::size_t>(B * T), 5);
  mha_attention_options options = mha_default_options();
  EXPECT_EQ(options.positions, nullptr);
  options.positions = positions.data();
  AttentionOptions same_options;
  same_options.positions = positions.data();
  MultiHeadAttention(kConfig, parts.weights(), same)
      .forward(x.view(), x.view(), x.view(), expected.view(), {}, same_options);
  ASSERT_EQ(mha_layer_forward(layer, &rows, &rows, &rows, &out, nullptr, &options), MHA_OK) << mha_last_error();
  EXPECT_EQ(actual.data(), expected.data());
  mha_layer_destroy(layer);
  mha_layer_destroy(plain);

  EXPECT_EQ(mha_rotary_create(&cos, nullptr, MHA_ROTARY_HALVES, &rotary), MHA_INVALID_ARGUMENT);
  EXPECT_EQ(mha_rotary_create(&cos, &sin, 2, &rotary), MHA_INVALID_ARGUMENT);
  expect_words(mha_last_error(), {"mha_rotary_create: pairs", "0 or 1", "2"});
}

}  // namespace
}  // namespace mha

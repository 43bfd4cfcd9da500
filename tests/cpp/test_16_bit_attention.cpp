// Attention on 16-bit elements: little error beside the rounding of the result, the same bits for a row in any call,
// and no effect of what is behind a mask; also with float32 queries over 16-bit keys and values.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "checks/attention.hpp"
#include "execute/run_plan.hpp"
#include "mha/attention.hpp"
#include "mha/half_precision.hpp"
#include "mha/kv_cache.hpp"
#include "mha/multi_head_attention.hpp"
#include "mha/runtime.hpp"
#include "plan/make_plan.hpp"
#include "platform/dispatch.hpp"

namespace mha {
namespace {

struct Sizes {
  Index batch, heads, kv_heads, queries, keys, head_dim, value_dim;
};

enum class Masks { none, causal, window, lengths, boolean, keys_with_nan };

struct Case {
  Sizes sizes;
  Masks masks;
};

// Odd sizes; numbers of keys around the ends of partial sums, blocks and spans; and few rows, for the kernel of
// decoding.
constexpr Case kCases[] = {
    {{1, 2, 1, 64, 64, 64, 64}, Masks::none},          {{2, 4, 2, 70, 131, 64, 64}, Masks::none},
    {{1, 2, 2, 33, 65, 33, 17}, Masks::none},          {{1, 1, 1, 1, 1, 1, 1}, Masks::none},
    {{1, 2, 2, 128, 201, 80, 80}, Masks::causal},      {{1, 2, 1, 5, 129, 64, 64}, Masks::causal},
    {{1, 2, 2, 100, 97, 32, 32}, Masks::window},       {{1, 4, 1, 1, 700, 64, 64}, Masks::lengths},
    {{1, 4, 1, 2, 1101, 128, 64}, Masks::lengths},     {{1, 2, 2, 130, 1100, 64, 32}, Masks::boolean},
    {{1, 2, 2, 8, 77, 96, 32}, Masks::boolean},        {{1, 2, 2, 130, 1101, 64, 64}, Masks::keys_with_nan},
    {{1, 4, 2, 3, 1101, 64, 64}, Masks::keys_with_nan}};

template <class S>
constexpr double kEps = std::is_same_v<S, Float16> ? 0x1p-10 : 0x1p-7;

/// The same numbers in 16 bits and in double precision.
template <class S>
struct Numbers {
  std::vector<S> narrow;
  std::vector<double> wide;

  Numbers(Index size, double spread, unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<double> normal(0, spread);
    for (Index i = 0; i < size; ++i) {
      narrow.push_back(from_double<S>(normal(generator)));
      wide.push_back(double(to_float(narrow.back())));
    }
  }
};

template <class S>
class SixteenBitAttentionOf : public ::testing::Test {
 protected:
  void TearDown() override { set_isa(nullptr); }

  template <class Check>
  void on_every_isa_and_case(Check check) {
    for (int index = 0; index < num_built_isas(); ++index) {
      if (!isa_supported(index)) continue;
      set_isa(built_isa(index));
      for (const Case& c : kCases) {
        const Sizes& n = c.sizes;
        SCOPED_TRACE(std::string(built_isa(index)) + ", queries " + std::to_string(n.queries) + ", keys " +
                     std::to_string(n.keys) + ", D " + std::to_string(n.head_dim) + ", masks " +
                     std::to_string(int(c.masks)));
        check(c);
      }
    }
  }
};

using Elements = ::testing::Types<Float16, BFloat16>;
TYPED_TEST_SUITE(SixteenBitAttentionOf, Elements);

/// The inputs of a case, and a call on them in 16 bits or in double precision.
template <class S>
struct Call {
  Sizes n;
  Numbers<S> query, key, value;
  std::vector<std::uint8_t> attn_mask, key_mask;
  std::vector<std::int64_t> lengths;
  AttentionOptions options;

  explicit Call(const Case& c)
      : n(c.sizes),
        query(n.batch * n.heads * n.queries * n.head_dim, 1.5, 1),
        key(n.batch * n.kv_heads * n.keys * n.head_dim, 1.5, 2),
        value(n.batch * n.kv_heads * n.keys * n.value_dim, 1, 3),
        attn_mask(static_cast<std::size_t>(n.queries * n.keys), 1),
        key_mask(static_cast<std::size_t>(n.keys), 1),
        lengths(static_cast<std::size_t>(n.batch), n.keys - 3) {
    options.query_offset = n.keys - n.queries;
    std::mt19937 generator(4);
    switch (c.masks) {
      case Masks::none:
        break;
      case Masks::causal:
        options.is_causal = true;
        break;
      case Masks::window:
        options.window_left = 7;
        options.window_right = 2;
        break;
      case Masks::lengths:
        options.key_lengths = lengths.data();
        break;
      case Masks::boolean:
        for (std::uint8_t& entry : attn_mask) entry = generator() % 3 != 0;
        options.attn_mask = {attn_mask.data(), DType::boolean, {n.queries, n.keys}};
        break;
      case Masks::keys_with_nan:
        options.is_causal = true;
        options.key_mask = {key_mask.data(), DType::boolean, {1, n.keys}};
        for (int i = 0; i < 5; ++i) hide(static_cast<Index>(generator()) % n.keys);
    }
  }

  void hide(Index j) {
    key_mask[static_cast<std::size_t>(j)] = 0;
    for (Index h = 0; h < n.batch * n.kv_heads; ++h)
      for (Index d = 0; d < n.value_dim; ++d) {
        const auto at = static_cast<std::size_t>((h * n.keys + j) * n.value_dim + d);
        value.narrow[at] = from_double<S>(std::numeric_limits<double>::quiet_NaN());
        value.wide[at] = std::numeric_limits<double>::quiet_NaN();
      }
  }

  /// Attention of the rows [first, first + rows) in a call of their own.
  template <class T>
  void attend(const std::vector<T>& q, const std::vector<T>& k, const std::vector<T>& v, std::vector<T>& out,
              const MutableTensorView& lse, Index first, Index rows) const {
    AttentionOptions of_rows = options;
    of_rows.query_offset += first;
    if (of_rows.attn_mask) {
      of_rows.attn_mask.extents[0] = rows;
      of_rows.attn_mask.data = attn_mask.data() + first * n.keys;
    }
    scaled_dot_product_attention(TensorView(q.data() + first * n.head_dim, {n.batch, n.heads, rows, n.head_dim},
                                            {n.heads * n.queries * n.head_dim, n.queries * n.head_dim, n.head_dim, 1}),
                                 TensorView(k.data(), {n.batch, n.kv_heads, n.keys, n.head_dim}),
                                 TensorView(v.data(), {n.batch, n.kv_heads, n.keys, n.value_dim}),
                                 MutableTensorView(out.data(), {n.batch, n.heads, rows, n.value_dim}), lse, of_rows);
  }

  Index rows() const { return n.batch * n.heads * n.queries; }

  /// The result in double precision, and the same with the magnitudes of the values, which errors of the weights scale
  /// with.
  struct Exact {
    std::vector<double> out, scale, lse;
  };
  Exact exact() const {
    const auto size = static_cast<std::size_t>(rows() * n.value_dim);
    Exact result{std::vector<double>(size), std::vector<double>(size), std::vector<double>(std::size_t(rows()))};
    const MutableTensorView lse(result.lse.data(), {n.batch, n.heads, n.queries});
    attend(query.wide, key.wide, value.wide, result.out, lse, 0, n.queries);
    std::vector<double> magnitudes = value.wide;
    for (double& x : magnitudes) x = std::fabs(x);
    attend(query.wide, key.wide, magnitudes, result.scale, {}, 0, n.queries);
    return result;
  }
};

template <class S>
double number_of(S element) {
  return double(to_float(element));
}
double number_of(float element) { return double(element); }

/// The error is at most that of the final rounding and one unit of the dtype; that of lse, in f32, comes from weights
/// that are exact to 3e-6.
template <class S, class T>
void expect_exact(const typename Call<S>::Exact& exact, const std::vector<T>& out, const std::vector<float>& lse) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double got = number_of(out[i]);
    ASSERT_LE(std::fabs(got - exact.out[i]), 1.5 * kEps<S> * exact.scale[i] + 1e-7) << "element " << i;
  }
  for (std::size_t i = 0; i < lse.size(); ++i) {
    if (std::isinf(exact.lse[i]))
      ASSERT_EQ(double(lse[i]), exact.lse[i]);
    else
      ASSERT_NEAR(double(lse[i]), exact.lse[i], 2e-5);
  }
}

TYPED_TEST(SixteenBitAttentionOf, AgreesWithDouble) {
  using S = TypeParam;
  this->on_every_isa_and_case([](const Case& c) {
    const Call<S> call(c);
    std::vector<S> out(static_cast<std::size_t>(call.rows() * c.sizes.value_dim), from_double<S>(std::nan("")));
    std::vector<float> lse(static_cast<std::size_t>(call.rows()), std::nanf(""));
    call.attend(call.query.narrow, call.key.narrow, call.value.narrow, out,
                {lse.data(), {c.sizes.batch, c.sizes.heads, c.sizes.queries}}, 0, c.sizes.queries);
    expect_exact<S>(call.exact(), out, lse);
  });
}

TYPED_TEST(SixteenBitAttentionOf, OneRowOneAnswer) {
  using S = TypeParam;
  this->on_every_isa_and_case([](const Case& c) {
    const Call<S> call(c);
    const Sizes& n = c.sizes;
    std::vector<S> all(static_cast<std::size_t>(call.rows() * n.value_dim));
    call.attend(call.query.narrow, call.key.narrow, call.value.narrow, all, {}, 0, n.queries);
    std::vector<S> one(static_cast<std::size_t>(n.batch * n.heads * n.value_dim));
    for (Index row = 0; row < n.queries; row += std::max<Index>(1, n.queries / 7)) {
      call.attend(call.query.narrow, call.key.narrow, call.value.narrow, one, {}, row, 1);
      for (Index h = 0; h < n.batch * n.heads; ++h)
        for (Index d = 0; d < n.value_dim; ++d)
          ASSERT_EQ(one[static_cast<std::size_t>(h * n.value_dim + d)].bits,
                    all[static_cast<std::size_t>((h * n.queries + row) * n.value_dim + d)].bits)
              << "row " << row;
    }
  });
}

/// As a float32 layer attends to a 16-bit cache.
TYPED_TEST(SixteenBitAttentionOf, WideQueriesGiveWideResults) {
  using S = TypeParam;
  this->on_every_isa_and_case([](const Case& c) {
    const Call<S> call(c);
    const Sizes& n = c.sizes;
    std::vector<float> query, out(static_cast<std::size_t>(call.rows() * n.value_dim), std::nanf(""));
    for (double x : call.query.wide) query.push_back(float(x));
    std::vector<float> lse(static_cast<std::size_t>(call.rows()), std::nanf(""));
    AttentionArguments arguments{"test",
                                 TensorView(query.data(), {n.batch, n.heads, n.queries, n.head_dim}),
                                 TensorView(call.key.narrow.data(), {n.batch, n.kv_heads, n.keys, n.head_dim}),
                                 TensorView(call.value.narrow.data(), {n.batch, n.kv_heads, n.keys, n.value_dim}),
                                 MutableTensorView(out.data(), {n.batch, n.heads, n.queries, n.value_dim}),
                                 MutableTensorView(lse.data(), {n.batch, n.heads, n.queries}),
                                 call.options};
    TensorView& mask = arguments.options.attn_mask;
    if (mask) mask = {mask.data, mask.dtype, {n.batch, n.heads, n.queries, n.keys}, {0, 0, n.keys, 1}};
    TensorView& key_mask = arguments.options.key_mask;
    if (key_mask) key_mask = {key_mask.data, key_mask.dtype, {n.batch, n.keys}, {0, 1}};
    run_plan(make_plan(arguments, AttentionOutput::attended_values, active_kernels()), 2);
    expect_exact<S>(call.exact(), out, lse);
  });
}

/// A float32 layer with a 16-bit cache, token by token: rows have the bits that they have in one call over all tokens,
/// and only keys and values are rounded.
TYPED_TEST(SixteenBitAttentionOf, CacheBehindALayerInF32) {
  constexpr Index E = 48, H = 3, B = 2, T = 70;
  const auto random = [](Index size, double spread, unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal(0, float(spread));
    std::vector<float> numbers(static_cast<std::size_t>(size));
    for (float& x : numbers) x = normal(generator);
    return numbers;
  };
  const double spread = 1 / std::sqrt(double(E));
  const std::vector<float> q = random(E * E, spread, 1), k = random(E * E, spread, 2), v = random(E * E, spread, 3),
                           o = random(E * E, spread, 4), bias = random(E, 0.1, 5), x = random(B * T * E, 1, 6);
  MultiHeadAttentionWeights weights;
  weights.query = {{q.data(), {E, E}}, {bias.data(), {E}}};
  weights.key = {{k.data(), {E, E}}, {bias.data(), {E}}};
  weights.value = {{v.data(), {E, E}}, {bias.data(), {E}}};
  weights.out = {{o.data(), {E, E}}, {bias.data(), {E}}};
  MultiHeadAttentionConfig config;
  config.embed_dim = E;
  config.num_heads = H;
  const MultiHeadAttention layer(config, weights);
  AttentionOptions causal;
  causal.is_causal = true;
  for (int index = 0; index < num_built_isas(); ++index) {
    if (!isa_supported(index)) continue;
    set_isa(built_isa(index));
    SCOPED_TRACE(built_isa(index));
    const TensorView all(x.data(), {B, T, E});
    std::vector<float> exact(x.size()), at_once(x.size(), std::nanf("")), step(B * E);
    layer.forward(all, all, all, {exact.data(), {B, T, E}}, {}, causal);

    KVCacheConfig sizes;
    sizes.batch_size = B;
    sizes.num_kv_heads = H;
    sizes.capacity = T;
    sizes.head_dim = E / H;
    sizes.dtype = DTypeOf<TypeParam>::value;
    KVCache cache(sizes), stepwise(sizes);
    layer.forward(all, all, all, cache, {at_once.data(), {B, T, E}}, {}, causal);
    double worst = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      ASSERT_FALSE(std::isnan(at_once[i]));
      worst = std::max(worst, double(std::fabs(at_once[i] - exact[i])));
    }
    EXPECT_GT(worst, 0.0);
    EXPECT_LT(worst, 8 * kEps<TypeParam>);  // of results near 1
    for (Index t = 0; t < T; ++t) {
      const TensorView token(x.data() + t * E, {B, 1, E}, {T * E, E, 1});
      layer.forward(token, token, token, stepwise, {step.data(), {B, 1, E}}, {}, causal);
      for (Index b = 0; b < B; ++b)
        for (Index e = 0; e < E; ++e)
          ASSERT_EQ(step[static_cast<std::size_t>(b * E + e)], at_once[static_cast<std::size_t>((b * T + t) * E + e)])
              << "token " << t;
    }
  }
}

}  // namespace
}  // namespace mha

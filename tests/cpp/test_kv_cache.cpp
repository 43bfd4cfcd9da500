// KVCache from C++: tokens written by the library, by the caller and by a layer.
#include "mha/kv_cache.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

#ifdef __linux__
#include <malloc.h>
#endif

#include "arrays.hpp"
#include "c_calls.hpp"
#include "huge_pages.hpp"
#include "mha/attention.hpp"
#include "mha/multi_head_attention.hpp"

namespace mha {
namespace {

using testing::Array;
using testing::c_tensor;
using testing::expect_words;
using testing::message_of;
using testing::nans;

constexpr Index B = 3, Hk = 2, kCapacity = 12, D = 5, Dv = 7;

#ifdef M_MMAP_THRESHOLD
// Before the first test: or a cache may get memory that another one has asked huge pages for.
[[maybe_unused]] const int kLargeBlocksAreMappings = mallopt(M_MMAP_THRESHOLD, 1 << 20);
#endif

template <class T>
KVCache make_cache(Index capacity = kCapacity) {
  return KVCache({B, Hk, capacity, D, Dv, DTypeOf<T>::value});
}

std::vector<std::int64_t> lengths_of(const KVCache& cache) {
  return {cache.lengths(), cache.lengths() + cache.config().batch_size};
}

/// Whether token t of sequence b in `memory` [B, Hk, T, columns] is token t_expected of b_expected in `expected`.
template <class T>
bool is_token(const TensorView& memory, Index b, Index t, const TensorView& expected, Index b_expected,
              Index t_expected) {
  for (Index h = 0; h < Hk; ++h) {
    const auto row = [&](const TensorView& x, Index batch, Index token) {
      return static_cast<const T*>(x.data) + batch * x.strides[0] + h * x.strides[1] + token * x.strides[2];
    };
    const auto bytes = static_cast<std::size_t>(memory.extents[3]) * sizeof(T);
    if (std::memcmp(row(memory, b, t), row(expected, b_expected, t_expected), bytes) != 0) return false;
  }
  return true;
}

template <class T>
class KVCacheOf : public ::testing::Test {};
using Elements = ::testing::Types<float, double>;
TYPED_TEST_SUITE(KVCacheOf, Elements);

TYPED_TEST(KVCacheOf, TokensAreWhereTheyBelong) {
  const auto key = Array<TypeParam>::random({B, Hk, 4, D}, 1), value = Array<TypeParam>::random({B, Hk, 4, Dv}, 2);
  KVCache cache = make_cache<TypeParam>();
  const std::int64_t counts[] = {4, 1, 0};
  cache.append(key.view(), value.view(), counts);
  cache.append(key.view(), value.view());
  EXPECT_EQ(lengths_of(cache), (std::vector<std::int64_t>{8, 5, 4}));
  EXPECT_EQ(cache.longest(), 8);
  EXPECT_EQ(cache.longest(4, counts), 12);
  const KVCache& readable = cache;
  for (Index b = 0; b < B; ++b)
    for (Index t = 0; t < cache.lengths()[b]; ++t) {
      const Index from = t < counts[b] ? t : t - counts[b];
      EXPECT_TRUE(is_token<TypeParam>(readable.keys(), b, t, key.view(), b, from)) << b << ", " << t;
      EXPECT_TRUE(is_token<TypeParam>(readable.values(), b, t, value.view(), b, from)) << b << ", " << t;
    }
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(readable.keys().data) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(readable.values().data) % 64, 0u);
}

TYPED_TEST(KVCacheOf, TheCallerMayWrite) {
  const auto key = Array<TypeParam>::random({B, Hk, 2, D}, 1), value = Array<TypeParam>::random({B, Hk, 2, Dv}, 2);
  KVCache copied = make_cache<TypeParam>(), written = make_cache<TypeParam>();
  for (int i = 0; i < 2; ++i) {
    copied.append(key.view(), value.view());
    for (const auto& [to, from] : {std::pair(written.keys(), &key), {written.values(), &value}})
      for (Index head = 0; head < B * Hk; ++head) {
        const Index columns = to.extents[3];
        std::memcpy(static_cast<TypeParam*>(to.data) + head * to.strides[1] + 2 * i * columns,
                    from->data().data() + head * 2 * columns,
                    static_cast<std::size_t>(2 * columns) * sizeof(TypeParam));
      }
    written.advance(2);
  }
  EXPECT_EQ(lengths_of(written), lengths_of(copied));
  for (Index b = 0; b < B; ++b)
    for (Index t = 0; t < 4; ++t) {
      EXPECT_TRUE(is_token<TypeParam>(written.keys(), b, t, copied.keys(), b, t));
      EXPECT_TRUE(is_token<TypeParam>(written.values(), b, t, copied.values(), b, t));
    }
  EXPECT_THROW(written.advance(kCapacity), std::invalid_argument);
  EXPECT_EQ(written.longest(), 4);
}

TYPED_TEST(KVCacheOf, EveryReorderingOfThree) {
  const auto key = Array<TypeParam>::random({B, Hk, 9, D}, 1), value = Array<TypeParam>::random({B, Hk, 9, Dv}, 2);
  const std::int64_t counts[] = {3, 9, 6};
  for (std::int64_t code = 0; code < 27; ++code) {
    const std::int64_t index[] = {code % 3, code / 3 % 3, code / 9};
    KVCache cache = make_cache<TypeParam>();
    cache.append(key.view(), value.view(), counts);
    cache.reorder(index);
    for (Index b = 0; b < B; ++b) {
      ASSERT_EQ(cache.lengths()[b], counts[index[b]]) << "code " << code;
      for (Index t = 0; t < cache.lengths()[b]; ++t) {
        ASSERT_TRUE(is_token<TypeParam>(cache.keys(), b, t, key.view(), index[b], t)) << "code " << code;
        ASSERT_TRUE(is_token<TypeParam>(cache.values(), b, t, value.view(), index[b], t)) << "code " << code;
      }
    }
  }
}

TYPED_TEST(KVCacheOf, ReorderingTouchesNothingBehindTheTokens) {
  KVCache cache = make_cache<TypeParam>();
  const auto nan = nans<TypeParam>({B, Hk, kCapacity, D}), nan_value = nans<TypeParam>({B, Hk, kCapacity, Dv});
  cache.append(nan.view(), nan_value.view());
  const auto key = Array<TypeParam>::random({B, Hk, 2, D}, 1), value = Array<TypeParam>::random({B, Hk, 2, Dv}, 2);
  cache.assign(key.view(), value.view());
  const std::int64_t index[] = {1, 2, 0};
  cache.reorder(index);
  for (Index b = 0; b < B; ++b)
    for (Index t = 2; t < kCapacity; ++t) EXPECT_TRUE(is_token<TypeParam>(cache.keys(), b, t, nan.view(), b, t));
}

TYPED_TEST(KVCacheOf, TheOldestAndTheNewestCanGo) {
  const auto key = Array<TypeParam>::random({B, Hk, 9, D}, 1), value = Array<TypeParam>::random({B, Hk, 9, Dv}, 2);
  const std::int64_t counts[] = {3, 9, 6}, back[] = {0, 2, 6};
  KVCache cache = make_cache<TypeParam>();
  cache.append(key.view(), value.view(), counts);
  cache.rollback(back);
  EXPECT_EQ(lengths_of(cache), (std::vector<std::int64_t>{3, 7, 0}));
  cache.keep_last(4);
  EXPECT_EQ(lengths_of(cache), (std::vector<std::int64_t>{3, 4, 0}));
  for (Index t = 0; t < 4; ++t) EXPECT_TRUE(is_token<TypeParam>(cache.keys(), 1, t, key.view(), 1, 3 + t));
  for (Index t = 0; t < 3; ++t) EXPECT_TRUE(is_token<TypeParam>(cache.values(), 0, t, value.view(), 0, t));
  EXPECT_THROW(cache.rollback(1), std::invalid_argument);
  cache.clear();
  EXPECT_EQ(cache.longest(), 0);
}

TEST(KVCache, AMovedCacheStaysInPlace) {
  KVCache first = make_cache<float>();
  const void* const data = first.keys().data;
  const auto key = Array<float>::random({B, Hk, 1, D}, 1), value = Array<float>::random({B, Hk, 1, Dv}, 2);
  first.append(key.view(), value.view());
  KVCache second = std::move(first);
  EXPECT_EQ(second.keys().data, data);
  EXPECT_EQ(second.longest(), 1);
  second = make_cache<float>(1);
  EXPECT_EQ(second.longest(), 0);
}

TEST(KVCache, AsksForHugePagesWhereRowsOfAHeadFillThem) {
  if (!testing::can_ask_for_huge_pages()) GTEST_SKIP() << "this system has no huge pages for memory that asks for them";
  for (const Index capacity : {4096, 8192}) {
    const KVCache cache({1, 4, capacity, 64});
    const auto* const middle = static_cast<const float*>(cache.keys().data) + 2 * capacity * 64;
    EXPECT_EQ(testing::asks_for_huge_pages(middle), capacity == 8192) << capacity;
  }
}

TEST(KVCache, LiesInMemoryOfTheCaller) {
  auto keys = nans<float>({B, Hk, kCapacity, D}), values = nans<float>({B, Hk, kCapacity, Dv});
  const auto key = Array<float>::random({B, Hk, 4, D}, 1), value = Array<float>::random({B, Hk, 4, Dv}, 2);
  const std::int64_t there[] = {3, 0, kCapacity};
  KVCache cache(keys.view(), values.view(), there);
  EXPECT_EQ(lengths_of(cache), (std::vector<std::int64_t>{3, 0, kCapacity}));
  EXPECT_EQ(cache.keys().data, keys.data().data());
  const std::int64_t counts[] = {4, 2, 0};
  cache.append(key.view(), value.view(), counts);
  EXPECT_EQ(std::memcmp(keys.data().data() + 3 * D, key.data().data(), 4 * D * sizeof(float)), 0);
  EXPECT_EQ(lengths_of(cache), (std::vector<std::int64_t>{7, 2, kCapacity}));

  mha_cache* in_c = nullptr;
  const mha_tensor k = c_tensor(keys), v = c_tensor(values);
  ASSERT_EQ(mha_cache_create_over(&k, &v, there, &in_c), MHA_OK) << mha_last_error();
  EXPECT_EQ(mha_cache_lengths(in_c)[2], kCapacity);
  mha_cache_destroy(in_c);
  const std::int64_t too_long[] = {0, 0, kCapacity + 1};
  EXPECT_EQ(mha_cache_create_over(&k, &v, too_long, &in_c), MHA_INVALID_ARGUMENT);
  expect_words(mha_last_error(), {"lengths", "sequence 2"});
}

TEST(KVCache, WrongSizes) {
  const auto message = [](const KVCacheConfig& config) {
    return message_of<std::invalid_argument>([&] { const KVCache cache(config); });
  };
  expect_words(message({-1, 1, 1, 1}), {"KVCache", "batch_size", "-1"});
  expect_words(message({1, 0, 1, 1}), {"num_kv_heads", "0"});
  expect_words(message({1, 1, -1, 1}), {"capacity", "-1"});
  expect_words(message({1, 1, 1, 0}), {"head_dim", "0"});
  expect_words(message({1, 1, 1, 1, -2}), {"value_head_dim", "-2"});
  expect_words(message({1, 1, 1, 1, 1, DType::boolean}), {"dtype", "bool"});
  EXPECT_THROW(KVCache({1, 1, Index{1} << 62, 1}), AllocationError);
}

TEST(KVCache, ALongSequenceAndAnEmptyOneChangePlaces) {
  KVCache cache = make_cache<float>();
  const auto key = Array<float>::random({B, Hk, 5, D}, 1), value = Array<float>::random({B, Hk, 5, Dv}, 2);
  const std::int64_t lengths[B] = {5, 0, 3}, index[B] = {1, 0, 2};
  cache.append(key.view(), value.view(), lengths);
  cache.reorder(index);
  EXPECT_EQ(lengths_of(cache), (std::vector<std::int64_t>{0, 5, 3}));
  for (Index t = 0; t < 5; ++t) {
    EXPECT_TRUE(is_token<float>(cache.keys(), 1, t, key.view(), 0, t)) << "token " << t;
    EXPECT_TRUE(is_token<float>(cache.values(), 1, t, value.view(), 0, t)) << "token " << t;
  }
}

TEST(KVCache, TakesWhatFitsAndNoTokenMore) {
  KVCache cache = make_cache<float>();
  const auto key = Array<float>::random({B, Hk, kCapacity + 1, D}, 1);
  const auto value = Array<float>::random({B, Hk, kCapacity + 1, Dv}, 2);
  const auto refused = [&](const char* reason, auto call) {
    const std::vector<std::int64_t> before = lengths_of(cache);
    expect_words(message_of<std::invalid_argument>(call), {"KVCache.", reason});
    EXPECT_EQ(lengths_of(cache), before);
  };
  const auto first = [](TensorView tokens, Index count) {
    tokens.extents[2] = count;
    return tokens;
  };
  refused("capacity of 12", [&] { cache.append(key.view(), value.view()); });
  refused("capacity of 12", [&] { cache.assign(key.view(), value.view()); });
  refused("capacity of 12", [&] { cache.advance(kCapacity + 1); });
  const std::int64_t some[B] = {12, 3, 0}, one_too_many[B] = {0, 10, 0}, more_than_given[B] = {0, 3, 0};
  cache.append(key.view(), value.view(), some);
  EXPECT_EQ(lengths_of(cache), (std::vector<std::int64_t>{12, 3, 0}));
  refused("sequence 0 would have 12 + 1", [&] { cache.append(first(key.view(), 1), first(value.view(), 1)); });
  refused("sequence 1 would have 3 + 10", [&] { cache.append(key.view(), value.view(), one_too_many); });
  refused("got 3 for sequence 1", [&] { cache.append(first(key.view(), 2), first(value.view(), 2), more_than_given); });

  const std::int64_t counts[B] = {12, 4, 0}, index[B] = {0, 1, B};
  refused("sequence 1 has 3 tokens", [&] { cache.rollback(counts); });
  refused("sequence 2 has 0 tokens", [&] { cache.rollback(1); });
  refused("got 3 for sequence 2", [&] { cache.reorder(index); });
}

/// A layer, and its tokens: B sequences of T tokens.
struct Step {
  static constexpr Index E = 24, T = 6;
  Array<float> square = Array<float>::random({E, E}, 1), x = Array<float>::random({B, T, E}, 2);
  MultiHeadAttention layer{MultiHeadAttentionConfig{E, 4},
                           {{square.view()}, {square.view()}, {square.view()}, {square.view()}}};
  KVCache cache{{B, 4, 8, 6}};
};

TEST(LayerCache, OptionsThatTheCacheDecides) {
  Step s;
  Array<float> out({B, Step::T, Step::E}, 3);
  const std::int64_t lengths[] = {0, 0, 0};
  const auto message = [&](const AttentionOptions& options) {
    return message_of<std::invalid_argument>(
        [&] { s.layer.forward(s.x.view(), s.x.view(), s.x.view(), s.cache, out.view(), {}, options); });
  };
  AttentionOptions options;
  options.query_offset = 1;
  expect_words(message(options), {"query_offset"});
  options = {};
  options.query_offsets = lengths;
  expect_words(message(options), {"query_offset"});
  options = {};
  options.key_lengths = lengths;
  expect_words(message(options), {"key_lengths"});
  EXPECT_EQ(s.cache.longest(), 0);
  EXPECT_EQ(out.data()[0], 3);
  // In a call that appends nothing, the caller says at which position the query is.
  s.layer.append_to(s.cache, s.x.view(), s.x.view());
  options = {};
  options.is_causal = true;
  options.query_offset = 2;
  Array<float> expected({B, Step::T, Step::E}, 4);
  s.layer.forward(s.x.view(), s.x.view(), s.x.view(), expected.view(), {}, options);
  s.layer.attend(s.x.view(), s.cache, out.view(), {}, options);
  EXPECT_EQ(out.data(), expected.data());
}

TEST(LayerCache, WhatIsMissingIsAnError) {
  Step s;
  Array<float> out({B, Step::T, Step::E}, 3);
  EXPECT_THROW(s.layer.forward({}, s.x.view(), s.x.view(), s.cache, out.view()), std::invalid_argument);
  EXPECT_THROW(s.layer.forward(s.x.view(), {}, {}, s.cache, out.view()), std::invalid_argument);
  EXPECT_THROW(s.layer.forward(s.x.view(), s.x.view(), {}, s.cache, out.view()), std::invalid_argument);
  EXPECT_THROW(s.layer.append_to(s.cache, s.x.view(), {}), std::invalid_argument);
  EXPECT_THROW(s.layer.attend({}, s.cache, out.view()), std::invalid_argument);
  EXPECT_EQ(s.cache.longest(), 0);
}

TEST(LayerCache, ResultsOverTheCache) {
  Step s;
  const MutableTensorView keys = s.cache.keys();
  const MutableTensorView out(keys.data, DType::f32, {B, 1, Step::E});
  const TensorView x(s.x.view().data, DType::f32, {B, 1, Step::E});
  expect_words(message_of<std::invalid_argument>([&] { s.layer.forward(x, x, x, s.cache, out); }),
               {"out must not overlap the cache"});
  expect_words(message_of<std::invalid_argument>([&] { s.layer.attend(x, s.cache, out); }),
               {"out must not overlap the cache"});
}

TEST(LayerCache, PaddingSeesNoKey) {
  Step step;
  auto out = nans<float>({B, Step::T, Step::E});
  const std::int64_t lengths[B] = {2, 0, 5};
  step.layer.forward(step.x.view(), step.x.view(), step.x.view(), step.cache, out.view(), {}, {}, lengths);
  for (Index b = 0; b < B; ++b)
    for (Index t = 0; t < Step::T; ++t) {
      const float* const row = out.data().data() + (b * Step::T + t) * Step::E;
      const bool is_zero = std::all_of(row, row + Step::E, [](float element) { return element == 0; });
      EXPECT_EQ(is_zero, t >= lengths[b]) << "row " << t << " of sequence " << b;
    }
}

TEST(LayerCache, WindowsAndBiasesSeeDifferencesOfPositions) {
  // Tokens outside of the window are evicted. Results differ in rounding only, because blocks of keys begin at other
  // tokens.
  constexpr Index T = 150, kWindow = 20, E = Step::E;
  const auto x = Array<float>::random({B, T, E}, 5);
  const auto slopes = Array<float>({4}, 0.25F);
  auto square = Array<float>::random({E, E}, 1);
  for (float& weight : square.data()) weight /= std::sqrt(float{E});
  const MultiHeadAttention layer(MultiHeadAttentionConfig{E, 4},
                                 {{square.view()}, {square.view()}, {square.view()}, {square.view()}});
  AttentionOptions options;
  options.is_causal = true;
  options.window_left = kWindow - 1;
  options.alibi_slopes = slopes.view();
  Array<float> whole({B, T, E}, 0);
  layer.forward(x.view(), x.view(), x.view(), whole.view(), {}, options);
  KVCache cache({B, 4, 2 * kWindow, 6});
  for (Index t = 0; t < T; ++t) {
    if (cache.longest() == 2 * kWindow) cache.keep_last(kWindow);
    const TensorView row(x.data().data() + t * E, DType::f32, {B, 1, E}, {T * E, E, 1});
    auto out = nans<float>({B, 1, E});
    layer.forward(row, row, row, cache, out.view(), {}, options);
    for (Index b = 0; b < B; ++b) {
      const auto at = whole.data().begin() + (b * T + t) * E;
      const std::vector<double> expected(at, at + E);
      const std::vector<float> actual(out.data().begin() + b * E, out.data().begin() + (b + 1) * E);
      testing::expect_close(actual, expected, testing::tolerance<float>(E, kWindow, 10) * 4);  // values are below 4
    }
  }
}

}  // namespace
}  // namespace mha

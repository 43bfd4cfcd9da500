// Caches of int8: tokens are quantized as they are written, and move with their scales; what a layer makes of them.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "arrays.hpp"
#include "mha/kv_cache.hpp"
#include "mha/multi_head_attention.hpp"
#include "mha/paged_kv_cache.hpp"
#include "platform/dispatch.hpp"

namespace mha {
namespace {

using testing::Array;
using testing::expect_words;
using testing::message_of;

constexpr Index B = 3, Hk = 2, D = 16, Dv = 24, kTokens = 200;

std::vector<std::unique_ptr<KVCache>> caches(DType dtype = DType::int8) {
  std::vector<std::unique_ptr<KVCache>> all;
  all.push_back(std::make_unique<KVCache>(KVCacheConfig{B, Hk, kTokens + 70, D, Dv, dtype}));
  all.push_back(std::make_unique<PagedKVCache>(PagedKVCacheConfig{20, 64, B, Hk, D, Dv, dtype}));
  return all;
}

/// Tokens as a cache of int8 stores them.
struct Stored {
  Array<std::int8_t> keys, values;
  Array<float> key_scales, value_scales;

  explicit Stored(Index tokens)
      : keys({B, Hk, tokens, D}, std::int8_t{0}),
        values({B, Hk, tokens, Dv}, std::int8_t{0}),
        key_scales({B, Hk, tokens, 1}, 0.0f),
        value_scales({B, Hk, tokens, 1}, 0.0f) {}

  static Stored copy_of(const KVCache& cache) {
    Stored copy(cache.longest());
    cache.copy_keys(copy.keys.view());
    cache.copy_values(copy.values.view());
    cache.copy_key_scales(copy.key_scales.view());
    cache.copy_value_scales(copy.value_scales.view());
    return copy;
  }

  /// The key, or value, of a token with its scale, as numbers.
  static std::vector<float> row(const Array<std::int8_t>& rows, const Array<float>& scales, Index b, Index h, Index t) {
    const Index columns = rows.view().extents[3], at = (b * Hk + h) * rows.view().extents[2] + t;
    std::vector<float> numbers{scales.data()[std::size_t(at)]};
    for (Index c = 0; c < columns; ++c) numbers.push_back(rows.data()[std::size_t(at * columns + c)]);
    return numbers;
  }
  std::vector<float> key(Index b, Index h, Index t) const { return row(keys, key_scales, b, h, t); }
  std::vector<float> value(Index b, Index h, Index t) const { return row(values, value_scales, b, h, t); }
};

/// The scale and the integers of a row.
std::vector<float> quantized(const Array<float>& rows, Index b, Index h, Index t) {
  const Index columns = rows.view().extents[3];
  const float* const x = rows.data().data() + ((b * Hk + h) * rows.view().extents[2] + t) * columns;
  std::vector<std::int8_t> integers(std::size_t(columns), 0);
  float scale = 0;
  active_kernels().quantize_heads({1, columns, x, columns, 1, integers.data(), columns, &scale});
  std::vector<float> numbers{scale};
  numbers.insert(numbers.end(), integers.begin(), integers.end());
  return numbers;
}

TEST(Int8Cache, TokensMoveWithTheirScales) {
  const auto key = Array<float>::random({B, Hk, kTokens, D}, 1), value = Array<float>::random({B, Hk, kTokens, Dv}, 2);
  for (const auto& cache : caches()) {
    const std::int64_t counts[] = {200, 30, 129}, circle[] = {1, 2, 0}, beams[] = {2, 1, 2}, less[] = {70, 1, 0};
    cache->append(key.view(), value.view(), counts);
    cache->reorder(circle);
    cache->reorder(beams);
    cache->rollback(less);
    const std::int64_t expected[] = {130, 128, 200}, sources[] = {0, 2, 0};
    const Stored stored = Stored::copy_of(*cache);
    for (Index b = 0; b < B; ++b) {
      ASSERT_EQ(cache->lengths()[b], expected[b]);
      for (Index h = 0; h < Hk; ++h)
        for (Index t = 0; t < kTokens; ++t) {
          const bool is_there = t < expected[b];
          EXPECT_EQ(stored.key(b, h, t), is_there ? quantized(key, sources[b], h, t) : std::vector<float>(D + 1));
          EXPECT_EQ(stored.value(b, h, t), is_there ? quantized(value, sources[b], h, t) : std::vector<float>(Dv + 1));
        }
    }
    cache->keep_last(64);
    const Stored kept = Stored::copy_of(*cache);
    EXPECT_EQ(kept.key(0, 1, cache->lengths()[0] - 1), quantized(key, 0, 1, 129));
    EXPECT_EQ(kept.value(2, 0, cache->lengths()[2] - 1), quantized(value, 0, 0, 199));
  }
}

TEST(Int8Cache, WhatIsStoredCanBeAssigned) {
  const auto key = Array<float>::random({B, Hk, 90, D}, 3), value = Array<float>::random({B, Hk, 90, Dv}, 4);
  const std::int64_t counts[] = {90, 0, 65};
  for (const auto& from : caches()) {
    from->append(key.view(), value.view(), counts);
    const Stored stored = Stored::copy_of(*from);
    for (const auto& to : caches()) {
      to->assign_stored(stored.keys.view(), stored.values.view(), stored.key_scales.view(), stored.value_scales.view(),
                        from->lengths());
      const Stored again = Stored::copy_of(*to);
      EXPECT_EQ(again.keys.data(), stored.keys.data());
      EXPECT_EQ(again.value_scales.data(), stored.value_scales.data());
      expect_words(message_of<std::invalid_argument>([&] {
                     to->assign_stored(stored.keys.view(), stored.keys.view(), stored.key_scales.view(),
                                       stored.value_scales.view());
                   }),
                   {"KVCache.assign_stored: value must be [3, 2, T, 24]"});
    }
  }
  KVCache plain({B, Hk, 90, D, Dv});
  const Stored stored(90);
  expect_words(message_of<DTypeError>([&] {
                 plain.assign_stored(stored.keys.view(), stored.values.view(), stored.key_scales.view(),
                                     stored.value_scales.view());
               }),
               {"KVCache.assign_stored: the cache must be of int8; it is of float32"});
}

TEST(Int8Cache, ALayerAttendsToTheNumbers) {
  const Index E = 32, H = 4;
  const auto weight = [](Index out, unsigned seed) { return Array<float>::random({out, E}, seed); };
  const auto q = weight(H * D, 1), k = weight(Hk * D, 2), v = weight(Hk * Dv, 3);
  const auto o = Array<float>::random({E, H * Dv}, 4), x = Array<float>::random({B, 70, E}, 5);
  MultiHeadAttentionConfig config;
  config.embed_dim = E;
  config.num_heads = H;
  config.num_kv_heads = Hk;
  config.head_dim = D;
  config.value_head_dim = Dv;
  const MultiHeadAttention layer(config, {{q.view()}, {k.view()}, {v.view()}, {o.view()}});
  for (const auto& cache : caches()) {
    AttentionOptions options;
    options.is_causal = true;
    for (Index begin = 0, count = 67; begin < 70; begin += count, count = 1) {
      const TensorView step(x.data().data() + begin * E, {B, count, E}, {70 * E, E, 1});
      Array<float> found({B, count, E}, 0.0f), expected({B, count, E}, 1.0f);
      layer.forward(step, step, step, *cache, found.view(), {}, options);
      const Stored stored = Stored::copy_of(*cache);
      Array<float> keys({B, Hk, begin + count, D}, 0.0f), values({B, Hk, begin + count, Dv}, 0.0f);
      for (std::size_t i = 0; i < keys.data().size(); ++i)
        keys.data()[i] = float(stored.keys.data()[i]) * stored.key_scales.data()[i / D];
      for (std::size_t i = 0; i < values.data().size(); ++i)
        values.data()[i] = float(stored.values.data()[i]) * stored.value_scales.data()[i / Dv];
      KVCache twin({B, Hk, 70, D, Dv});
      twin.append(keys.view(), values.view());
      AttentionOptions behind = options;
      behind.query_offset = begin;
      layer.attend(step, twin, expected.view(), {}, behind);
      EXPECT_EQ(found.data(), expected.data()) << "step of " << count;
    }
  }
}

}  // namespace
}  // namespace mha

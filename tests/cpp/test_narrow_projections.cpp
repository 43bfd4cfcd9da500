// Projections with narrow weights and projections to 16-bit caches: where they write, with widths that fill neither
// whole words of weights nor whole vectors, behind other tokens in a cache, and from rows that hold NaN.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "mha/half_precision.hpp"
#include "mha/mha.hpp"

namespace mha {
namespace {

using testing::Array;
using testing::nans;

using Rows = Array<float>;

constexpr WeightFormat kFormats[] = {WeightFormat::plain, WeightFormat::bf16, WeightFormat::int8, WeightFormat::int4};
constexpr Index kBatch = 3, kHeads = 6, kKeyHeads = 3, kEmbed = 42, kKey = 19, kValue = 21, kHeadDim = 7,
                kValueDim = 18;

MultiHeadAttention layer_of(WeightFormat format) {
  const Rows query = Rows::random({kHeads * kHeadDim, kEmbed}, 1), key = Rows::random({kKeyHeads * kHeadDim, kKey}, 2),
             value = Rows::random({kKeyHeads * kValueDim, kValue}, 3),
             out = Rows::random({kEmbed, kHeads * kValueDim}, 4);
  const Rows key_bias = Rows::random({kKeyHeads * kHeadDim}, 5), value_bias = Rows::random({kKeyHeads * kValueDim}, 6);
  MultiHeadAttentionConfig config;
  config.embed_dim = kEmbed;
  config.num_heads = kHeads;
  config.num_kv_heads = kKeyHeads;
  config.head_dim = kHeadDim;
  config.value_head_dim = kValueDim;
  config.kdim = kKey;
  config.vdim = kValue;
  config.weight_format = format;
  return {config, {{query.view()}, {key.view(), key_bias.view()}, {value.view(), value_bias.view()}, {out.view()}}};
}

/// A cache whose memory is not zero before the call.
struct Tokens {
  Tokens(DType dtype, Index capacity) : cache({kBatch, kKeyHeads, capacity, kHeadDim, kValueDim, dtype}) {
    for (const MutableTensorView& memory : {cache.keys(), cache.values()})
      std::memset(memory.data, 0x55, static_cast<std::size_t>(count(memory) * size_of(dtype)));
  }
  static Index count(const TensorView& memory) { return kBatch * kKeyHeads * memory.extents[2] * memory.extents[3]; }

  template <class T>
  static std::vector<T> elements(const TensorView& memory) {
    const T* const first = static_cast<const T*>(memory.data);
    return {first, first + count(memory)};
  }

  KVCache cache;
};

class NarrowProjections : public ::testing::Test {
 protected:
  void TearDown() override { set_isa(nullptr); }

  /// check(layer, format, threads) with every format on every instruction set.
  template <class Check>
  void on_every_way(Check check) {
    for (int index = 0; index < num_built_isas(); ++index) {
      if (!isa_supported(index)) continue;
      set_isa(built_isa(index));
      for (const WeightFormat format : kFormats) {
        const MultiHeadAttention layer = layer_of(format);
        for (const int threads : {1, 3}) {
          SCOPED_TRACE(std::string(built_isa(index)) + ", format " + std::to_string(int(format)) + ", threads " +
                       std::to_string(threads));
          check(layer, format, threads);
        }
      }
    }
  }
};

template <class S>
void expect_rounded(const MultiHeadAttention& layer, int threads) {
  for (const Index T : {1, 5, 29, 1800}) {  // 1800 rows are enough for several threads
    // Every second row of the memory, so that neither tokens nor sequences are contiguous.
    const Rows key = Rows::random({kBatch, 2 * T, kKey}, 7), value = Rows::random({kBatch, 2 * T, kValue}, 8);
    const TensorView keys(key.data().data(), {kBatch, T, kKey}, {2 * T * kKey, 2 * kKey, 1});
    const TensorView values(value.data().data(), {kBatch, T, kValue}, {2 * T * kValue, 2 * kValue, 1});
    const std::int64_t counts[kBatch] = {T, 0, (T + 1) / 2};
    const Index capacity = 2 * T + 3;
    Tokens wide(DType::f32, capacity), narrow(DTypeOf<S>::value, capacity);
    for (Tokens* tokens : {&wide, &narrow}) {
      layer.append_to(tokens->cache, keys, values, nullptr, threads);
      layer.append_to(tokens->cache, keys, values, counts, threads);
    }
    const auto compare = [&](const TensorView& exact, const TensorView& memory) {
      const std::vector<float> numbers = Tokens::elements<float>(exact);
      const std::vector<std::uint32_t> bits = Tokens::elements<std::uint32_t>(exact);
      std::vector<std::uint16_t> expected;
      Index astray = 0;
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        const Index row = static_cast<Index>(i) / exact.extents[3], b = row / capacity / kKeyHeads;
        const bool is_token = row % capacity < T + counts[b];
        astray += (bits[i] == 0x55555555) == is_token;
        expected.push_back(is_token ? from_double<S>(double(numbers[i])).bits : 0x5555);
      }
      EXPECT_EQ(astray, 0) << "elements that are not tokens, or tokens that were not written";
      EXPECT_TRUE(Tokens::elements<std::uint16_t>(memory) == expected) << T << " tokens";
    };
    compare(wide.cache.keys(), narrow.cache.keys());
    compare(wide.cache.values(), narrow.cache.values());
  }
}

TEST_F(NarrowProjections, ACacheHoldsWhatAWiderOneDoesRounded) {
  on_every_way([](const MultiHeadAttention& layer, WeightFormat, int threads) {
    expect_rounded<Float16>(layer, threads);
    expect_rounded<BFloat16>(layer, threads);
  });
}

TEST_F(NarrowProjections, ACacheChangesNoBits) {
  on_every_way([](const MultiHeadAttention& layer, WeightFormat, int threads) {
    AttentionOptions options;
    options.num_threads = threads;
    for (const Index T : {1, 5, 29, 300}) {
      const Rows query = Rows::random({kBatch, T, kEmbed}, 9), key = Rows::random({kBatch, T, kKey}, 7),
                 value = Rows::random({kBatch, T, kValue}, 8);
      Rows expected = nans<float>({kBatch, T, kEmbed}), out = expected;
      layer.forward(query.view(), key.view(), value.view(), expected.view(), {}, options);
      Tokens tokens(DType::f32, T);
      layer.forward(query.view(), key.view(), value.view(), tokens.cache, out.view(), {}, options);
      EXPECT_EQ(out.data(), expected.data()) << T;
      for (const float element : out.data()) ASSERT_TRUE(std::isfinite(element));
    }
  });
}

/// A NaN or an infinity in a row affects that row alone, although the rows beside it are read, quantized and summed
/// with it.
TEST_F(NarrowProjections, NaNStaysInItsRow) {
  constexpr Index T = 9;
  for (const float poison : {std::nanf(""), -std::nanf(""), INFINITY, -INFINITY})
    on_every_way([&](const MultiHeadAttention& layer, WeightFormat, int threads) {
      const Rows key = Rows::random({kBatch, T, kKey}, 7), value = Rows::random({kBatch, T, kValue}, 8);
      Rows poisoned = key;
      poisoned.data()[std::size_t((1 * T + 4) * kKey + kKey - 1)] = poison;  // in the last word of narrow weights
      Tokens clean(DType::bf16, T), hit(DType::bf16, T);
      layer.append_to(clean.cache, key.view(), value.view(), nullptr, threads);
      layer.append_to(hit.cache, poisoned.view(), value.view(), nullptr, threads);
      const std::vector<BFloat16> before = Tokens::elements<BFloat16>(clean.cache.keys()),
                                  after = Tokens::elements<BFloat16>(hit.cache.keys());
      for (Index i = 0; i < static_cast<Index>(before.size()); ++i) {
        const auto at = static_cast<std::size_t>(i);
        const Index token = i / kHeadDim % T, b = i / kHeadDim / T / kKeyHeads;
        if (b == 1 && token == 4)
          ASSERT_FALSE(std::isfinite(to_float(after[at])));
        else
          ASSERT_EQ(after[at].bits, before[at].bits) << "token " << token << " of " << b;
      }
      const auto values = Tokens::elements<std::uint16_t>(hit.cache.values());
      EXPECT_EQ(values, Tokens::elements<std::uint16_t>(clean.cache.values()));
    });
}

/// A weight that is NaN or infinite affects its output feature and no other.
TEST_F(NarrowProjections, NaNStaysInItsFeature) {
  constexpr Index E = 18, F = 37, N = 7;
  const Rows up = Rows::random({F, E}, 1), down = Rows::random({E, F}, 2), x = Rows::random({N, E}, 3);
  for (const float poison : {std::nanf(""), INFINITY}) {
    Rows hit = down, large = down;
    hit.data()[std::size_t(5 * F + F - 1)] = poison;
    large.data()[std::size_t(5 * F + F - 1)] = 0x1p100f;
    for (int index = 0; index < num_built_isas(); ++index) {
      if (!isa_supported(index)) continue;
      set_isa(built_isa(index));
      for (const WeightFormat format : kFormats) {
        Rows before = nans<float>({N, E}), after = before;
        FeedForward({{up.view()}, {large.view()}}, Activation::none, format).forward(x.view(), before.view());
        FeedForward({{up.view()}, {hit.view()}}, Activation::none, format).forward(x.view(), after.view());
        for (std::size_t i = 0; i < after.data().size(); ++i) {
          SCOPED_TRACE(std::string(built_isa(index)) + ", format " + std::to_string(int(format)));
          if (i % E == 5)
            ASSERT_FALSE(std::isfinite(after.data()[i])) << i;
          else
            ASSERT_EQ(after.data()[i], before.data()[i]) << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace mha

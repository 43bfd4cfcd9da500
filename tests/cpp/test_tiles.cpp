// Products of tile registers, those of the processor where it has some and those of the model: bit for bit what
// docs/numerics.md says of TDPBF16PS, by a second computation in exact integer arithmetic.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>

#include "arrays.hpp"
#include "bf16_products.hpp"
#include "exact_arithmetic.hpp"
#include "mha/attention.hpp"
#include "mha/linear.hpp"
#include "mha/runtime.hpp"
#include "platform/dispatch.hpp"
#include "platform/floating_point_state.hpp"
#include "platform/known_answers.hpp"

namespace mha {
namespace {

using testing::added;
using testing::Array;
using testing::Elements;
using testing::Exact;
using testing::expect_projections;
using testing::fused;
using testing::kElements;
using testing::kInfinity;
using testing::kNan;
using testing::Projection;
using testing::widened;

TEST(Tiles, TheExactArithmeticOfTheTestIsThatOfTheProcessor) {
  const FloatingPointState state;
  std::mt19937 random(3);
  for (int i = 0; i < 200000; ++i) {
    const auto any = [&] { return static_cast<std::uint32_t>(random()); };
    const auto near = [&] {
      return static_cast<std::uint32_t>((random() & 0x807fffffU) | (120 + random() % 12) << 23);
    };
    const std::uint32_t a = i % 2 ? any() : near(), b = i % 2 ? any() : near(), c = i % 2 ? any() : near();
    float x, y, z;
    std::memcpy(&x, &a, 4), std::memcpy(&y, &b, 4), std::memcpy(&z, &c, 4);
    volatile float volatile_x = x, volatile_z = z;
    const float computed = volatile_x + volatile_z;
    std::uint32_t bits;
    std::memcpy(&bits, &computed, 4);
    const std::uint32_t expected = added(a, c);
    if (expected == kNan) {
      ASSERT_NE(computed, computed);
    } else {
      ASSERT_EQ(bits, expected) << std::hex << a << " + " << c;
    }
    // Factors of 8 significant bits, as bf16 has them: a double holds their product, and is rounded once. Sums of
    // products and other numbers, which a double need not hold, are computed by the tests below.
    const std::uint32_t short_a = a & 0xffff0000U, short_b = b & 0xffff0000U;
    std::memcpy(&x, &short_a, 4), std::memcpy(&y, &short_b, 4);
    volatile double exact = static_cast<double>(x) * static_cast<double>(y);
    const float once = static_cast<float>(exact);
    std::memcpy(&bits, &once, 4);
    const std::uint32_t alone = fused(short_a, short_b, 0);
    if (alone == kNan) {
      ASSERT_NE(once, once);
    } else if (!Exact(short_a).is_zero() && !Exact(short_b).is_zero() && (alone << 1) != 0) {
      ASSERT_EQ(bits, alone) << std::hex << short_a << " * " << short_b;
    }
  }
}

struct Product {
  alignas(64) BFloat16 a[16][32];
  alignas(64) BFloat16 b[16][16][2];
  alignas(64) std::uint32_t c[16][16];

  std::uint32_t expected(int m, int n) const {
    std::uint32_t first = 0, second = 0;
    for (int k = 0; k < 16; ++k) {
      first = fused(widened(a[m][2 * k]), widened(b[k][n][0]), first);
      second = fused(widened(a[m][2 * k + 1]), widened(b[k][n][1]), second);
    }
    return added(c[m][n], added(first, second));
  }
};

Product random_product(const Elements& elements, std::mt19937& random) {
  Product p{};
  const auto factor = [&] { return elements.factor(random); };
  for (auto& row : p.a)
    for (BFloat16& x : row) x = factor();
  for (auto& row : p.b)
    for (auto& pair : row)
      for (BFloat16& x : pair) x = factor();
  for (auto& row : p.c)
    for (std::uint32_t& x : row) x = elements.sum(random);
  return p;
}

void expect_exact_product(const TileInstructions& tiles, const Product& p, int& numbers) {
  alignas(64) float sums[16][16];
  std::memcpy(sums, p.c, sizeof sums);
  tiles.multiply_bf16(&p.a[0][0], &p.b[0][0][0], &sums[0][0]);
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 16; ++n) {
      std::uint32_t bits;
      std::memcpy(&bits, &sums[m][n], sizeof bits);
      const std::uint32_t expected = p.expected(m, n);
      if (expected == kNan) {
        ASSERT_NE(sums[m][n], sums[m][n]);
      } else {
        ASSERT_EQ(bits, expected) << "element " << m << ", " << n;
      }
      numbers += (expected & 0x7f800000U) != 0x7f800000U && (expected << 1) != 0;
    }
}

/// Products of `count` tiles for each kind of elements. A NaN is as good as any other.
void expect_exact_pairs(const TileInstructions& tiles, int count) {
  const FloatingPointState state;
  std::mt19937 random(1);
  for (const Elements& elements : kElements) {
    SCOPED_TRACE(elements.name);
    int numbers = 0;
    for (int i = 0; i < count; ++i) {
      SCOPED_TRACE(i);
      expect_exact_product(tiles, random_product(elements, random), numbers);
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_GT(numbers, count) << "nothing but zeros, infinities and NaN";
  }
}

// 2^-126 - 2^-power: what is subnormal before it is rounded, and 2^-126 after that, stays.
void expect_exact_edge(const TileInstructions& tiles) {
  const FloatingPointState state;
  const auto two_to = [](int power) { return static_cast<std::uint16_t>((127 + power) << 7); };
  for (const int power : {149, 150, 151, 152}) {
    SCOPED_TRACE(power);
    Product p{};
    for (auto& row : p.a) {
      row[0].bits = two_to(-63);
      row[2].bits = static_cast<std::uint16_t>(0x8000 | two_to(-75));
    }
    for (int n = 0; n < 16; ++n) {
      p.b[0][n][0].bits = two_to(-63);
      p.b[1][n][0].bits = two_to(75 - power);
    }
    EXPECT_EQ(p.expected(0, 0), power < 151 ? 0U : 0x00800000U);
    int numbers = 0;
    expect_exact_product(tiles, p, numbers);
  }
}

void expect_exact_bytes(const TileInstructions& tiles, int count) {
  std::mt19937 random(2);
  for (int i = 0; i < count; ++i) {
    alignas(64) std::uint8_t a[16][64];
    alignas(64) std::int8_t b[16][16][4];
    alignas(64) std::int32_t c[16][16];
    const bool is_extreme = i % 4 == 0;
    for (auto& row : a)
      for (std::uint8_t& x : row) x = is_extreme ? 255 : static_cast<std::uint8_t>(random());
    for (auto& row : b)
      for (auto& four : row)
        for (std::int8_t& x : four) x = is_extreme ? -128 : static_cast<std::int8_t>(random());
    std::int32_t before[16][16];
    for (auto& row : before)
      for (std::int32_t& x : row) x = static_cast<std::int32_t>(random());
    std::memcpy(c, before, sizeof c);
    tiles.multiply_bytes(&a[0][0], &b[0][0][0], &c[0][0]);
    for (int m = 0; m < 16; ++m)
      for (int n = 0; n < 16; ++n) {
        std::int64_t exact = before[m][n];
        for (int k = 0; k < 64; ++k) exact += std::int64_t{a[m][k]} * b[k / 4][n][k % 4];
        ASSERT_EQ(static_cast<std::uint32_t>(c[m][n]), static_cast<std::uint32_t>(exact)) << m << ", " << n;
      }
  }
}

/// The tile instructions of an instruction set; null pointers if this machine does not run it.
TileInstructions tiles_of(const std::string& name) {
  TileInstructions tiles{};
  for (int index = 0; index < num_built_isas(); ++index)
    if (name == built_isa(index) && isa_supported(index)) {
      set_isa(built_isa(index));
      tiles = active_kernels().tiles;
      set_isa(nullptr);
    }
  return tiles;
}

constexpr int kTilesOfEachKind = 450;  // with nine kinds more than 10^6 sums of 32 products

TEST(Tiles, TheModelIsExact) {
  const TileInstructions model = tiles_of("amx_model");
  if (model.multiply_bf16 == nullptr) GTEST_SKIP() << "no model in this build: MHA_AMX_MODEL";
  expect_exact_pairs(model, kTilesOfEachKind);
  expect_exact_edge(model);
  expect_exact_bytes(model, 100);
}

TEST(Tiles, TheProcessorDoesWhatTheModelDoes) {
  const TileInstructions processor = tiles_of("amx");
  if (processor.multiply_bf16 == nullptr)
    GTEST_SKIP() << "this processor has no tiles, or the build does not know them";
  expect_exact_pairs(processor, 10 * kTilesOfEachKind);
  expect_exact_edge(processor);
  expect_exact_bytes(processor, 1000);
}

// Ways in which tiles could be different, for the comparison to notice.
TileInstructions model_tiles;
void multiply_in_one_chain(const BFloat16* a, const BFloat16* b, float* c) {
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 16; ++n) {
      std::uint32_t bits;
      std::memcpy(&bits, c + 16 * m + n, sizeof bits);
      for (int k = 0; k < 32; ++k)
        bits = fused(std::uint32_t{a[32 * m + k].bits} << 16, std::uint32_t{b[32 * (k / 2) + 2 * n + k % 2].bits} << 16,
                     bits);
      std::memcpy(c + 16 * m + n, &bits, sizeof bits);
    }
}
void multiply_with_signs(const std::uint8_t* a, const std::int8_t* b, std::int32_t* c) {
  std::array<std::uint8_t, 16 * 64> halved{};
  for (std::size_t i = 0; i < halved.size(); ++i) halved[i] = a[i] & 0x7f;
  model_tiles.multiply_bytes(halved.data(), b, c);
}
void multiply_nothing(const BFloat16*, const BFloat16*, float*) {}

TEST(Tiles, TheKnownAnswersAreThoseOfTheModel) {
  model_tiles = tiles_of("amx_model");
  if (model_tiles.multiply_bf16 == nullptr) GTEST_SKIP() << "no model in this build: MHA_AMX_MODEL";
  const FloatingPointState state;
  EXPECT_TRUE(gives_known_answers(model_tiles));
  EXPECT_FALSE(gives_known_answers({&multiply_in_one_chain, model_tiles.multiply_bytes}));
  EXPECT_FALSE(gives_known_answers({&multiply_nothing, model_tiles.multiply_bytes}));
  EXPECT_FALSE(gives_known_answers({model_tiles.multiply_bf16, &multiply_with_signs}));
  const FloatingPointState keeps_subnormals(Subnormals::kept);
  EXPECT_FALSE(gives_known_answers(model_tiles)) << "the answers do not tell whether subnormal numbers are flushed";
}

std::uint32_t sum_of_steps(Projection& projection, Index r, Index n) {
  std::uint32_t total = 0;
  for (Index step = 0; step < projection.features(); step += 32) {
    std::uint32_t chains[2] = {0, 0};
    for (Index k = step; k < std::min(step + 32, projection.features()); ++k)
      chains[k % 2] = fused(widened(projection.x(r, k)), widened(projection.weight(k, n)), chains[k % 2]);
    total = added(total, added(chains[0], chains[1]));
  }
  return total;
}

TEST(Tiles, ProjectionsAreSumsOfSteps) {
  int tested = 0;
  for (const char* const isa : {"amx_model", "amx"})
    if (tiles_of(isa).multiply_bf16 != nullptr)
      expect_projections(isa, {1, 2, 31, 32, 33, 64, 94, 100, 160}, &sum_of_steps), ++tested;
  if (tested == 0) GTEST_SKIP() << "this machine runs no instruction set that has tiles";
}

/// A product without steps is 0, wherever its sums lie: here in memory that holds those of the call before.
TEST(Tiles, NoFeaturesAreZeros) {
  constexpr Index kQueries = 40, kKeys = 70;
  int tested = 0;
  for (const char* const isa : {"amx_model", "amx"}) {
    if (tiles_of(isa).multiply_bf16 == nullptr) continue;
    SCOPED_TRACE(isa);
    ++tested;
    set_isa(isa);
    for (const Index dim : {32, 0}) {
      const Array<BFloat16> query({1, kQueries, dim}, {0x4000}), key({1, kKeys, dim}, {0x3f80});
      const Array<BFloat16> value({1, kKeys, 32}, {0x3f80});
      Array<float> lse({1, kQueries}, 0);
      Array<BFloat16> out({1, kQueries, 32}, {0});
      AttentionOptions options;
      options.num_threads = 1;
      options.scale = 1;
      scaled_dot_product_attention(query.view(), key.view(), value.view(), out.view(), lse.view(), options);
      for (const float row : lse.data()) EXPECT_FLOAT_EQ(row, std::log(70.0f) + 2 * float(dim)) << dim;
    }
    set_isa(nullptr);
  }
  if (tested == 0) GTEST_SKIP() << "this machine runs no instruction set that has tiles";
}

/// What a call of the library costs in configurations of tiles, on the instruction set amx_model.
template <class Call>
std::int64_t configurations(const TileInstructions& model, Call call) {
  set_isa("amx_model");
  const std::int64_t before = model.times_configured();
  call();
  set_isa(nullptr);
  return model.times_configured() - before;
}

template <class T>
void project(T element, WeightFormat format, Index rows) {
  const Array<T> weight({64, 96}, element), x({rows, 96}, element), out({rows, 64}, element);
  Linear(LinearWeights(weight.view()), format).forward(x.view(), out.view(), 1);
}

TEST(Tiles, AreConfiguredForWhatTheyMultiplyAlone) {
  const TileInstructions model = tiles_of("amx_model");
  if (model.multiply_bf16 == nullptr) GTEST_SKIP() << "no model in this build: MHA_AMX_MODEL";
  constexpr Index kHeads = 2, kMostQueries = 16, kKeys = 100, kDim = 64;
  const Array<BFloat16> query({kHeads, kMostQueries, kDim}, BFloat16{0x3f80}), key({kHeads, kKeys, kDim}, {0x3c00});
  const auto attend = [&](Index queries) {
    Array<BFloat16> out({kHeads, queries, kDim}, {0});
    AttentionOptions options;
    options.num_threads = 1;
    scaled_dot_product_attention(TensorView(query.data().data(), {kHeads, queries, kDim}), key.view(), key.view(),
                                 out.view(), {}, options);
  };
  EXPECT_EQ(configurations(model, [&] { attend(1); }), 0) << "decode takes vectors";
  EXPECT_EQ(configurations(model, [&] { attend(kMostQueries); }), kHeads) << "once for each head";

  for (const Index rows : {1, 2, 40}) {
    SCOPED_TRACE(rows);
    const bool are_many = rows > 1;  // a single row takes vectors
    EXPECT_EQ(configurations(model, [&] { project<BFloat16>({0x3f80}, WeightFormat::plain, rows); }) > 0, are_many);
    EXPECT_EQ(configurations(model, [&] { project<float>(1, WeightFormat::int8, rows); }) > 0, are_many);
    EXPECT_EQ(configurations(model, [&] { project<float>(1, WeightFormat::int4, rows); }) > 0, rows > 2);
    EXPECT_EQ(configurations(model, [&] { project<float>(1, WeightFormat::plain, rows); }), 0);
    EXPECT_EQ(configurations(model, [&] { project<float>(1, WeightFormat::bf16, rows); }), 0);
  }
}

}  // namespace
}  // namespace mha

// BFDOT of Arm, bit for bit what docs/numerics.md says of it, by a second computation in exact integer arithmetic: the
// instruction itself, and the sums of the kernels that multiply by it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "bf16_products.hpp"
#include "exact_arithmetic.hpp"
#include "mha/runtime.hpp"
#include "platform/floating_point_state.hpp"

namespace mha {
namespace {

using testing::added;
using testing::Elements;
using testing::expect_projections;
using testing::kElements;
using testing::kNan;
using testing::multiplied;
using testing::Projection;
using testing::Rounding;
using testing::widened;

bool runs(const std::string& name) {
  for (int index = 0; index < num_built_isas(); ++index)
    if (name == built_isa(index)) return isa_supported(index);
  return false;
}

struct Pair {
  BFloat16 first, second;
};

std::uint32_t dot(const Pair& a, const Pair& b, std::uint32_t c) {
  const std::uint32_t first = multiplied(widened(a.first), widened(b.first), Rounding::odd);
  const std::uint32_t second = multiplied(widened(a.second), widened(b.second), Rounding::odd);
  return added(c, added(first, second, Rounding::odd), Rounding::odd);
}

TEST(Pairs, ToOddIsNotToNearest) {
  constexpr std::uint32_t kOne = 0x3f800000, kTiny = 0x2f800000;  // 1 and 2^-32
  EXPECT_EQ(added(kOne, kTiny), kOne);
  EXPECT_EQ(added(kOne, kTiny, Rounding::odd), kOne + 1);
  EXPECT_EQ(added(kOne, kTiny | 0x80000000U, Rounding::odd), kOne - 1);
  EXPECT_EQ(added(kOne + 1, kTiny, Rounding::odd), kOne + 1);
  EXPECT_EQ(added(kOne, kOne, Rounding::odd), 0x40000000U) << "what is exact stays";
  EXPECT_EQ(multiplied(0x7f7f0000, 0x40000000, Rounding::odd), 0x7f800000U) << "what is too large is infinite";
  EXPECT_EQ(multiplied(0x80800000U, 0x3f000000, Rounding::odd), 0x80000000U) << "what is subnormal is 0";
}

#if defined(__aarch64__)
#if defined(__clang__)
#define MHA_TARGET __attribute__((target("bf16")))
#else
#define MHA_TARGET __attribute__((target("arch=armv8.2-a+bf16")))
#endif

MHA_TARGET void multiply_pairs(const Pair* a, const Pair* b, std::uint32_t* c) {
  float32x4_t sums;
  bfloat16x8_t x, y;
  std::memcpy(&sums, c, sizeof sums);
  std::memcpy(&x, a, sizeof x);
  std::memcpy(&y, b, sizeof y);
  sums = vbfdotq_f32(sums, x, y);
  std::memcpy(c, &sums, sizeof sums);
}

TEST(Pairs, TheProcessorRoundsThemToOdd) {
  if (!runs("neonbf16")) GTEST_SKIP() << "this processor has no BFDOT, or the build does not know it";
  constexpr int kLanes = 4, kVectors = 30000;
  // In any state: the instruction has one of its own.
  for (const Subnormals subnormals : {Subnormals::zero, Subnormals::kept}) {
    const FloatingPointState state(subnormals);
    std::mt19937 random(1);
    for (const Elements& elements : kElements) {
      SCOPED_TRACE(elements.name);
      int numbers = 0;
      for (int i = 0; i < kVectors; ++i) {
        Pair a[kLanes], b[kLanes];
        std::uint32_t c[kLanes], before[kLanes];
        for (int lane = 0; lane < kLanes; ++lane) {
          a[lane] = {elements.factor(random), elements.factor(random)};
          b[lane] = {elements.factor(random), elements.factor(random)};
          before[lane] = c[lane] = elements.sum(random);
        }
        multiply_pairs(a, b, c);
        for (int lane = 0; lane < kLanes; ++lane) {
          const std::uint32_t expected = dot(a[lane], b[lane], before[lane]);
          if (expected == kNan) {
            ASSERT_GT(c[lane] & 0x7fffffffU, 0x7f800000U);
          } else {
            ASSERT_EQ(c[lane], expected) << "vector " << i << ", lane " << lane;
          }
          numbers += (expected & 0x7f800000U) != 0x7f800000U && (expected << 1) != 0;
        }
      }
      EXPECT_GT(numbers, kVectors / 100) << "nothing but zeros, infinities and NaN";
    }
  }
}
#endif

/// Partial sums of 128 pairs, as of float32; these are rounded to nearest when they are added up.
std::uint32_t sum_of_pairs(Projection& projection, Index r, Index n) {
  constexpr Index kPart = 256;
  const Index features = projection.features();
  std::uint32_t total = 0;
  for (Index part = 0; part < features; part += kPart) {
    std::uint32_t sum = 0;
    for (Index k = part; k < std::min(part + kPart, features); k += 2) {
      const bool is_whole = k + 1 < features;
      sum = dot({projection.x(r, k), is_whole ? projection.x(r, k + 1) : BFloat16{0}},
                {projection.weight(k, n), is_whole ? projection.weight(k + 1, n) : BFloat16{0}}, sum);
    }
    total = added(total, sum);
  }
  return total;
}

TEST(Pairs, ProjectionsAreSumsOfPairs) {
  if (!runs("neonbf16")) GTEST_SKIP() << "this machine does not run neonbf16";
  expect_projections("neonbf16", {1, 2, 31, 64, 101, 256, 257, 300, 520}, &sum_of_pairs);
}

}  // namespace
}  // namespace mha

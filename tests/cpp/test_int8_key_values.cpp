// Keys and values of int8 with a scale for each row: they are quantized as stated, and attention over them has the bits
// of attention in f32 over the numbers that they stand for.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "arrays.hpp"
#include "execute/run_plan.hpp"
#include "plan/make_plan.hpp"
#include "platform/dispatch.hpp"
#include "row_kernels.hpp"

namespace mha {
namespace {

using testing::Array;
using testing::kInf;
using testing::kNaN;
using testing::nans;
using testing::on_every_isa;
using testing::random;
using testing::same_bits;

/// Rows [heads, rows, columns] of int8, and the numbers that they stand for.
struct Int8Rows {
  std::vector<std::int8_t> integers;
  std::vector<float> scales;
  Array<float> numbers;

  Int8Rows(Index heads, Index rows, Index columns, const std::vector<float>& given)
      : integers(given.size()), scales(std::size_t(heads * rows)), numbers({1, heads, rows, columns}, 0.0f) {
    active_kernels().quantize_heads(
        {heads * rows, columns, given.data(), columns, 1, integers.data(), columns, scales.data()});
    for (std::size_t i = 0; i < integers.size(); ++i)
      numbers.data()[i] = float(integers[i]) * scales[i / std::size_t(columns)];
  }

  Input input(Index rows, Index columns) const {
    return {reinterpret_cast<const std::byte*>(integers.data()), 0, rows * columns, columns, 1};
  }
  Input scale_input(Index rows) const { return {reinterpret_cast<const std::byte*>(scales.data()), 0, rows * 4, 4, 1}; }
};

struct Results {
  std::vector<float> out, lse;
};

class Int8KeyValues : public ::testing::Test {
 protected:
  Index H = 4, Hk = 2, Tq = 1, Tk = 200, D = 64, Dv = 64;
  std::vector<float> key, value;

  void fill() {
    key = random<float>(Hk * Tk * D, 1);
    value = random<float>(Hk * Tk * Dv, 2);
  }

  /// The results over int8 and over the numbers, of what `output` says.
  void expect_same(AttentionOutput output, const AttentionOptions& options) {
    const auto query = Array<float>::random({1, H, Tq, D}, 3);
    const Int8Rows k(Hk, Tk, D, key), v(Hk, Tk, Dv, value);
    const bool attends = output == AttentionOutput::attended_values;
    Results results[2];
    for (bool is_int8 : {false, true}) {
      auto out = nans<float>({1, H, Tq, attends ? Dv : Tk}), lse = nans<float>({1, H, Tq});
      AttentionArguments arguments{"",         query.view(), k.numbers.view(), v.numbers.view(),
                                   out.view(), lse.view(),   options};
      if (!attends) arguments.value = arguments.lse = {};
      AttentionPlan plan = make_plan(arguments, output, active_kernels());
      if (is_int8) {
        KeyValues& stored = plan.key_values;
        stored.key = k.input(Tk, D);
        if (attends) stored.value = v.input(Tk, Dv);
        stored.element_size = 1;
        stored.key_scale = k.scale_input(Tk);
        if (attends) stored.value_scale = v.scale_input(Tk);
      }
      run_plan(plan, options.num_threads);
      results[is_int8] = {out.data(), lse.data()};
    }
    const auto sizes = [&] {
      return ::testing::Message() << "H " << H << ", Hk " << Hk << ", Tq " << Tq << ", Tk " << Tk << ", D " << D
                                  << ", Dv " << Dv << ", " << options.num_threads << " threads";
    };
    EXPECT_TRUE(same_bits(results[1].out, results[0].out)) << sizes();
    if (attends) {
      EXPECT_TRUE(same_bits(results[1].lse, results[0].lse)) << sizes();
    }
  }

  void expect_same_of_all(AttentionOptions options = {}) {
    for (int threads : {1, 3}) {
      options.num_threads = threads;
      for (AttentionOutput output :
           {AttentionOutput::attended_values, AttentionOutput::weights, AttentionOutput::scores})
        expect_same(output, options);
    }
  }
};

TEST_F(Int8KeyValues, AnyNumberOfRowsAndKeys) {
  on_every_isa([&] {
    for (const auto& [heads, queries] : {std::pair<Index, Index>{2, 1},
                                         {4, 1},
                                         {6, 1},
                                         {8, 1},
                                         {10, 1},
                                         {6, 2},
                                         {14, 1},
                                         {16, 1},
                                         {2, 5},
                                         {2, 40},
                                         {4, 70}}) {
      H = heads;
      Tq = queries;
      for (Index keys : {1, 16, 17, 63, 65, 200, 513, 1025}) {
        Tk = keys;
        fill();
        expect_same_of_all();
        AttentionOptions options;
        options.is_causal = true;
        options.query_offset = Tk - Tq;
        options.window_left = Tk / 2 + 3;
        expect_same_of_all(options);
      }
    }
  });
}

TEST_F(Int8KeyValues, AnyHeadDim) {
  on_every_isa([&] {
    for (Index heads : {2, 8})
      for (const auto& [d, dv] : {std::pair<Index, Index>{16, 16},
                                  {32, 64},
                                  {48, 80},
                                  {80, 48},
                                  {96, 16},
                                  {112, 128},
                                  {128, 128},
                                  {144, 256},
                                  {256, 144},
                                  {320, 64},
                                  {20, 24},
                                  {33, 5},
                                  {64, 20}}) {
        H = heads;
        D = d;
        Dv = dv;
        fill();
        expect_same_of_all();
        Tq = 20;
        expect_same_of_all();
        Tq = 1;
      }
  });
}

TEST_F(Int8KeyValues, MasksBiasesAndNaNBehindThem) {
  Tk = 700;
  fill();
  std::vector<char> visible(std::size_t(Tk), 1);
  for (Index j = 0; j < Tk; j += 3) visible[std::size_t(j)] = 0;
  const auto slopes = random<float>(16, 7);
  for (bool is_poisoned : {false, true}) {
    for (Index j = 0; is_poisoned && j < Hk * Tk; ++j)
      if (!visible[std::size_t(j % Tk)] || j % Tk >= 650) {
        key[std::size_t(j * D + j % D)] = kNaN<float>;
        value[std::size_t(j * Dv + j % Dv)] = kInf<float>;
      }
    const std::int64_t lengths[] = {650};
    AttentionOptions options;
    options.key_lengths = lengths;
    on_every_isa([&] {
      for (const auto& [heads, queries] : {std::pair<Index, Index>{2, 1}, {6, 1}, {16, 1}, {4, 30}}) {
        H = heads;
        Tq = queries;
        AttentionOptions masked = options, capped = options;
        masked.attn_mask = TensorView(reinterpret_cast<const bool*>(visible.data()), {Tk});
        expect_same_of_all(masked);
        capped.softcap = 2;
        capped.alibi_slopes = TensorView(slopes.data(), {H});
        capped.query_offset = 650 - Tq;
        capped.is_causal = true;
        expect_same_of_all(capped);
      }
    });
  }
}

TEST_F(Int8KeyValues, RowsThatAreNotFinite) {
  fill();
  key[5] = kNaN<float>;
  value[std::size_t(70 * Dv)] = -kInf<float>;
  on_every_isa([&] {
    for (Index queries : {1, 30}) {
      Tq = queries;
      expect_same_of_all();
    }
  });
}

TEST_F(Int8KeyValues, LargestNumbers) {
  fill();
  for (float& number : value) number = std::copysign(std::numeric_limits<float>::max(), number);
  on_every_isa([&] {
    for (Index queries : {1, 30}) {
      Tq = queries;
      expect_same_of_all();
    }
  });
}

/// What the comment of quantize_heads.hpp states, in double where that is exact.
void quantize(const float* x, Index columns, std::int8_t* integers, float* scale) {
  float most = 0;
  for (Index c = 0; c < columns; ++c)
    if (!(std::fabs(x[c]) <= most) && !std::isnan(most)) most = std::fabs(x[c]);
  *scale = most / 127;
  if (std::isfinite(most) && std::isinf(127 * *scale)) *scale = std::nextafter(*scale, 0.0f);
  for (Index c = 0; c < columns; ++c) {
    const bool has_number = std::isfinite(most) && *scale > 0;
    const float steps = has_number ? x[c] / *scale : 0;
    integers[c] = std::int8_t(std::fmin(std::fmax(std::nearbyint(steps), -127.0f), 127.0f));
  }
}

TEST(QuantizeHeads, IsWhatIsStated) {
  constexpr float kMax = std::numeric_limits<float>::max(), kLeast = std::numeric_limits<float>::denorm_min();
  for (Index columns : {1, 3, 4, 8, 15, 16, 64, 80}) {
    std::vector<float> x = random<float>(40 * columns, 5);
    const auto row = [&](Index r) { return x.data() + r * columns; };
    const float extremes[] = {0,           -0.0f,         kMax,        -kMax,  std::nextafter(kMax, 0.0f),
                              kInf<float>, -kInf<float>,  kNaN<float>, kLeast, 63 * kLeast,
                              64 * kLeast, -190 * kLeast, 1e-38f,      3e38f};
    Index r = 0;
    for (float extreme : extremes) {  // alone in a row of zeros, and among numbers
      std::fill_n(row(r), columns, 0.0f);
      *row(r++) = extreme;
      row(r++)[columns / 2] = extreme;
    }
    *row(r) = kNaN<float>;
    row(r++)[columns - 1] = kInf<float>;
    for (Index c = 0; c < columns; ++c) row(r)[c] = float(c % 2 == 0 ? c : -c) + 0.5f;  // ties: steps of 1
    row(r++)[0] = 127;
    for (Index c = 0; c < columns; ++c) row(r)[c] *= 1e-42f;
    std::vector<std::int8_t> expected(x.size()), actual(x.size() + 1);
    std::vector<float> expected_scales(40), scales(40);
    for (Index i = 0; i < 40; ++i)
      quantize(row(i), columns, expected.data() + i * columns, &expected_scales[std::size_t(i)]);
    on_every_isa([&] {
      std::fill(actual.begin(), actual.end(), std::int8_t{99});
      active_kernels().quantize_heads({40, columns, x.data(), columns, 1, actual.data(), columns, scales.data()});
      EXPECT_EQ(actual.back(), 99) << "written behind the last row";
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_EQ(int(actual[i]), int(expected[i])) << "element " << i << " of rows of " << columns << ": " << x[i];
      EXPECT_TRUE(same_bits(scales, expected_scales)) << columns;
    });
  }
}

}  // namespace
}  // namespace mha

// Gradients of norms, activations, rotary positions and tables, and AdamW: in C the bits of C++, outputs that begin as
// NaN and have strides, and calls that are refused. The Python tests compare the numbers with an oracle.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "arrays.hpp"
#include "c_calls.hpp"
#include "every_isa.hpp"
#include "mha/mha.hpp"

namespace mha {
namespace {

using testing::Array;
using testing::c_tensor;
using testing::expect_failure;
using testing::expect_words;
using testing::message_of;
using testing::nans;
using testing::on_every_isa;
using testing::Owned;

using Rows = Array<float>;

constexpr Index kRows = 70, kColumns = 21;  // of a span and of vectors some are left over

/// An output in a wider array: with gaps between rows, or between columns, that stay NaN.
struct Strided {
  explicit Strided(bool gaps_in_rows)
      : memory(nans<float>({kRows, 2 * kColumns})),
        view(memory.view().data, DType::f32, {kRows, kColumns}, {2 * kColumns, gaps_in_rows ? 2 : 1}) {}

  void expect_equal(const Rows& dense) const {
    std::size_t written = 0;
    for (const float element : memory.data()) written += std::isnan(element) ? 0 : 1;
    EXPECT_EQ(written, dense.data().size());
    for (Index r = 0; r < kRows; ++r)
      for (Index c = 0; c < kColumns; ++c)
        ASSERT_EQ(static_cast<const float*>(view.data)[r * view.strides[0] + c * view.strides[1]],
                  dense.data()[std::size_t(r * kColumns + c)]);
  }

  Rows memory;
  MutableTensorView view;
};

void expect_written(const Rows& rows) {
  for (const float element : rows.data()) ASSERT_FALSE(std::isnan(element));
}

TEST(RowGradients, Norms) {
  const Rows x = Rows::random({kRows, kColumns}, 1), dout = Rows::random({kRows, kColumns}, 2);
  const Rows weight = Rows::random({kColumns}, 3);
  const mha_tensor c_x = c_tensor(x), c_dout = c_tensor(dout), c_weight = c_tensor(weight);
  on_every_isa([&] {
    for (const NormKind kind : {NormKind::layer, NormKind::rms, NormKind::rms_unit_offset}) {
      const bool has_bias = kind == NormKind::layer;
      Rows dx = nans<float>({kRows, kColumns}), dweight = nans<float>({kColumns}), dbias = dweight;
      norm_gradient(kind, x.view(), weight.view(), 1e-5, dout.view(),
                    {dx.view(), dweight.view(), has_bias ? dbias.view() : MutableTensorView()});
      expect_written(dx);
      expect_written(dweight);
      if (has_bias) expect_written(dbias);
      for (const bool gaps_in_rows : {false, true}) {
        const Strided strided(gaps_in_rows);
        norm_gradient(kind, x.view(), weight.view(), 1e-5, dout.view(), {strided.view, {}, {}}, 2);
        strided.expect_equal(dx);
      }
      Rows c_dx = nans<float>({kRows, kColumns}), c_dweight = nans<float>({kColumns}), c_dbias = c_dweight;
      const mha_tensor results[] = {c_tensor(c_dx), c_tensor(c_dweight), c_tensor(c_dbias)};
      const mha_norm_gradients wanted = {&results[0], &results[1], has_bias ? &results[2] : nullptr};
      EXPECT_OK(mha_norm_gradient(static_cast<mha_norm_kind>(kind), &c_x, &c_weight, 1e-5, &c_dout, &wanted, 2));
      EXPECT_EQ(c_dx.data(), dx.data());
      EXPECT_EQ(c_dweight.data(), dweight.data());
      if (has_bias) {
        EXPECT_EQ(c_dbias.data(), dbias.data());
      }
    }
  });
  Rows dx = nans<float>({kRows, kColumns});
  const mha_tensor c_dx = c_tensor(dx);
  const mha_norm_gradients wanted = {&c_dx, nullptr, nullptr}, bias = {nullptr, nullptr, &c_weight};
  expect_failure(MHA_INVALID_ARGUMENT, mha_norm_gradient(3, &c_x, &c_weight, 1e-5, &c_dout, &wanted, 0), {"kind"});
  expect_failure(MHA_INVALID_ARGUMENT, mha_norm_gradient(MHA_NORM_LAYER, &c_x, &c_weight, 1e-5, &c_dout, nullptr, 0),
                 {"gradients"});
  expect_failure(MHA_INVALID_ARGUMENT, mha_norm_gradient(MHA_NORM_RMS, &c_x, &c_weight, 1e-5, &c_dout, &bias, 0),
                 {"there is no bias"});
  expect_words(message_of<std::invalid_argument>(
                   [&] { norm_gradient(NormKind::layer, x.view(), {}, 1e-5, dout.view(), {{x.view()}, {}, {}}); }),
               {"the gradient of x must not overlap x"});
  expect_words(message_of<std::invalid_argument>(
                   [&] { norm_gradient(NormKind::layer, x.view(), {}, 1e-5, dout.view(), {{}, weight.view(), {}}); }),
               {"the gradient of weight needs a weight"});
}

TEST(RowGradients, Activations) {
  const Rows x = Rows::random({kRows, kColumns}, 1), up = Rows::random({kRows, kColumns}, 2);
  const Rows dout = Rows::random({kRows, kColumns}, 3);
  const mha_tensor c_x = c_tensor(x), c_up = c_tensor(up), c_dout = c_tensor(dout);
  on_every_isa([&] {
    for (int number = MHA_ACTIVATION_NONE; number <= MHA_ACTIVATION_SILU; ++number) {
      const auto which = static_cast<Activation>(number);
      Rows out = nans<float>({kRows, kColumns}), dx = out, dup = out;
      activate(which, x.view(), up.view(), out.view());
      activation_gradient(which, x.view(), up.view(), dout.view(), {dx.view(), dup.view()});
      expect_written(out);
      expect_written(dx);
      expect_written(dup);
      if (which == Activation::none)
        for (std::size_t i = 0; i < x.data().size(); ++i) {
          ASSERT_EQ(out.data()[i], x.data()[i] * up.data()[i]);
          ASSERT_EQ(dx.data()[i], dout.data()[i] * up.data()[i]);
          ASSERT_EQ(dup.data()[i], dout.data()[i] * x.data()[i]);
        }
      for (const bool gaps_in_rows : {false, true}) {
        const Strided forward(gaps_in_rows), of_x(gaps_in_rows), of_up(gaps_in_rows);
        activate(which, x.view(), up.view(), forward.view, 2);
        activation_gradient(which, x.view(), up.view(), dout.view(), {of_x.view, of_up.view}, 2);
        forward.expect_equal(out);
        of_x.expect_equal(dx);
        of_up.expect_equal(dup);
      }
      Rows c_result = nans<float>({kRows, kColumns}), c_dx = c_result, c_dup = c_result;
      const mha_tensor results[] = {c_tensor(c_result), c_tensor(c_dx), c_tensor(c_dup)};
      const mha_activation_gradients wanted = {&results[1], &results[2]};
      EXPECT_OK(mha_activate(number, &c_x, &c_up, &results[0], 2));
      EXPECT_OK(mha_activation_gradient(number, &c_x, &c_up, &c_dout, &wanted, 2));
      EXPECT_EQ(c_result.data(), out.data());
      EXPECT_EQ(c_dx.data(), dx.data());
      EXPECT_EQ(c_dup.data(), dup.data());
    }
  });
  const mha_activation_gradients wanted = {nullptr, &c_up};
  expect_failure(MHA_INVALID_ARGUMENT, mha_activate(9, &c_x, nullptr, &c_up, 0), {"activation"});
  expect_failure(MHA_INVALID_ARGUMENT, mha_activate(MHA_ACTIVATION_RELU, &c_x, nullptr, &c_x, 0),
                 {"out must not overlap x"});
  expect_failure(MHA_INVALID_ARGUMENT, mha_activation_gradient(MHA_ACTIVATION_RELU, &c_x, nullptr, &c_dout, &wanted, 0),
                 {"the gradient of up needs an up"});
}

TEST(RowGradients, RotationAndTables) {
  const Rows cos = Rows::random({9, 3}, 1), sin = Rows::random({9, 3}, 2), x = Rows::random({2, 3, 4, 7}, 3);
  const std::int64_t positions[] = {8, 0, 1, 2, 3, 3, 7, 5};
  const mha_tensor c_cos = c_tensor(cos), c_sin = c_tensor(sin), c_x = c_tensor(x);
  on_every_isa([&] {
    for (const RotaryPairs pairs : {RotaryPairs::halves, RotaryPairs::neighbours}) {
      const RotaryEmbedding rotary(cos.view(), sin.view(), pairs);
      mha_rotary* handle = nullptr;
      ASSERT_EQ(mha_rotary_create(&c_cos, &c_sin, static_cast<mha_rotary_pairs>(pairs), &handle), MHA_OK);
      const Owned<mha_rotary> owned(handle, &mha_rotary_destroy);
      for (const bool backwards : {false, true}) {
        Rows out = nans<float>({2, 3, 4, 7}), in_place = x, c_out = out;
        rotary.rotate(x.view(), positions, out.view(), backwards);
        rotary.rotate(in_place.view(), positions, in_place.view(), backwards, 2);
        expect_written(out);
        EXPECT_EQ(in_place.data(), out.data());
        const mha_tensor c_result = c_tensor(c_out);
        EXPECT_OK(mha_rotary_rotate(handle, &c_x, positions, &c_result, backwards, 2));
        EXPECT_EQ(c_out.data(), out.data());
      }
    }

    const Rows dout = Rows::random({kRows, kColumns}, 4);
    std::vector<std::int64_t> ids;
    for (Index i = 0; i < kRows; ++i) ids.push_back(i * i % 11);
    Rows table = nans<float>({12, kColumns}), c_table = table;
    embedding_gradient(ids.data(), dout.view(), table.view());
    expect_written(table);
    const mha_tensor c_dout = c_tensor(dout), c_result = c_tensor(c_table);
    EXPECT_OK(mha_embedding_gradient(ids.data(), &c_dout, &c_result, 2));
    EXPECT_EQ(c_table.data(), table.data());
    expect_failure(MHA_INVALID_ARGUMENT, mha_embedding_gradient(nullptr, &c_dout, &c_result, 0), {"ids"});
  });
}

TEST(RowGradients, AdamW) {
  const Rows gradient = Rows::random({kRows, kColumns}, 1), weight = Rows::random({kRows, kColumns}, 2);
  on_every_isa([&] {
    Rows w = weight, m = Rows({kRows, kColumns}, 0), v = m, c_w = weight, c_m = m, c_v = m;
    const Strided strided(true);
    for (Index r = 0; r < kRows; ++r)
      for (Index c = 0; c < kColumns; ++c)
        static_cast<float*>(strided.view.data)[r * 2 * kColumns + 2 * c] = weight.data()[std::size_t(r * kColumns + c)];
    Rows of_strided = m, squares = m;
    const mha_tensor tensors[] = {c_tensor(c_w), c_tensor(gradient), c_tensor(c_m), c_tensor(c_v)};
    for (std::int64_t step = 1; step <= 3; ++step) {
      adamw(w.view(), gradient.view(), m.view(), v.view(), {0.1, 0.8, 0.9, 1e-6, 0.5, 2, step});
      adamw(strided.view, gradient.view(), of_strided.view(), squares.view(), {0.1, 0.8, 0.9, 1e-6, 0.5, 2, step}, 2);
      const mha_adamw_step numbers = {0.1, 0.8, 0.9, 1e-6, 0.5, 2, step};
      EXPECT_OK(mha_adamw(&tensors[0], &tensors[1], &tensors[2], &tensors[3], &numbers, 2));
    }
    expect_written(w);
    EXPECT_NE(w.data(), weight.data());
    strided.expect_equal(w);
    EXPECT_EQ(of_strided.data(), m.data());
    EXPECT_EQ(c_w.data(), w.data());
    EXPECT_EQ(c_m.data(), m.data());
    EXPECT_EQ(c_v.data(), v.data());
    double expected = 0, found = 0;
    for (const float number : gradient.data()) expected += double(number) * double(number);
    EXPECT_OK(mha_sum_of_squares(&tensors[1], 2, &found));
    EXPECT_NEAR(found, expected, 1e-12 * expected);
  });
  Rows w = weight, m = Rows({kRows, kColumns}, 0), v = m;
  const mha_tensor c_w = c_tensor(w), c_gradient = c_tensor(gradient), c_m = c_tensor(m), c_v = c_tensor(v);
  const auto refused = [&](AdamWStep step) {
    return message_of<std::invalid_argument>([&] { adamw(w.view(), gradient.view(), m.view(), v.view(), step); });
  };
  expect_words(refused({-1}), {"lr must be a finite number of at least 0"});
  expect_words(refused({0.1, 1}), {"beta1 must be at least 0 and less than 1"});
  expect_words(refused({0.1, 0.9, 0.9, 0, 0, 1, 0}), {"step must be at least 1"});
  const mha_adamw_step numbers = {0.1, 0.8, 0.9, 1e-6, 0.5, 2, 1};
  expect_failure(MHA_INVALID_ARGUMENT, mha_adamw(&c_w, &c_gradient, &c_w, &c_v, &numbers, 0),
                 {"m must not overlap weight"});
  expect_failure(MHA_INVALID_ARGUMENT, mha_adamw(&c_w, &c_gradient, &c_m, &c_v, nullptr, 0), {"step"});
  expect_failure(MHA_INVALID_ARGUMENT, mha_sum_of_squares(&c_w, 0, nullptr), {"sum"});
  EXPECT_EQ(w.data(), weight.data());
}

}  // namespace
}  // namespace mha

// linear and linear_gradient compared with sums in f64, bits on any number of threads and with any strides, the calls of
// C, and the calls that are refused.
#include "mha/linear_gradient.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "arrays.hpp"
#include "c_calls.hpp"
#include "every_isa.hpp"
#include "mha/errors.hpp"
#include "mha/linear.hpp"

namespace mha {
namespace {

using testing::Array;
using testing::c_tensor;
using testing::expect_close;
using testing::expect_failure;
using testing::expect_words;
using testing::message_of;
using testing::nans;
using testing::on_every_isa;

/// A call, and what it reads and writes.
template <class T>
struct GradientCall {
  Index rows, in, out;
  Array<T> x, weight, dout, dx, dweight, dbias;

  GradientCall(Index given_rows, Index given_in, Index given_out)
      : rows(given_rows),
        in(given_in),
        out(given_out),
        x(Array<T>::random({rows, in}, 1)),
        weight(Array<T>::random({out, in}, 2)),
        dout(Array<T>::random({rows, out}, 3)),
        dx(nans<T>({rows, in})),
        dweight(nans<T>({out, in})),
        dbias(nans<T>({out})) {}

  void run(int num_threads) {
    linear_gradient(x.view(), weight.view(), dout.view(), {dx.view(), dweight.view(), dbias.view()}, num_threads);
  }
};

template <class T>
std::vector<double> product(const Array<T>& a, Index rows, Index row, Index step, const Array<T>& b, Index depth,
                            Index columns) {
  std::vector<double> sums;
  for (Index i = 0; i < rows; ++i)
    for (Index j = 0; j < columns; ++j) {
      double sum = 0;
      for (Index k = 0; k < depth; ++k)
        sum += double(a.data()[std::size_t(i * row + k * step)]) * double(b.data()[std::size_t(k * columns + j)]);
      sums.push_back(sum);
    }
  return sums;
}

template <class T>
void expect_gradients(Index rows, Index in, Index out) {
  GradientCall<T> call(rows, in, out);
  const double eps = 50 * std::numeric_limits<T>::epsilon();
  call.run(1);
  expect_close(call.dx.data(), product(call.dout, rows, out, 1, call.weight, out, in), eps * std::sqrt(double(out)));
  expect_close(call.dweight.data(), product(call.dout, out, 1, out, call.x, rows, in), eps * std::sqrt(double(rows)));
  const Array<T> ones({rows, 1}, T(1));
  expect_close(call.dbias.data(), product(call.dout, out, 1, out, ones, rows, 1), eps * std::sqrt(double(rows)));
  GradientCall<T> shared(rows, in, out);
  shared.run(3);
  EXPECT_EQ(call.dx.data(), shared.dx.data());
  EXPECT_EQ(call.dweight.data(), shared.dweight.data());
  EXPECT_EQ(call.dbias.data(), shared.dbias.data());
}

TEST(LinearGradient, IsTheSumOfItsProducts) {
  on_every_isa([] {
    for (const Index rows : {1, 127, 129, 260})
      for (const Index in : {1, 65, 130})
        for (const Index out : {1, 25, 70}) {
          SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(in) + " to " + std::to_string(out));
          expect_gradients<float>(rows, in, out);
          expect_gradients<double>(rows, in, out);
        }
  });
}

TEST(LinearGradient, WithoutRowsIsZero) {
  GradientCall<float> call(0, 5, 3);
  call.run(2);
  EXPECT_EQ(call.dweight.data(), std::vector<float>(15, 0));
  EXPECT_EQ(call.dbias.data(), std::vector<float>(3, 0));
}

TEST(LinearGradient, GoesToStridedMemory) {
  GradientCall<float> call(140, 66, 30);
  call.run(1);
  Array<float> spread = nans<float>({30 * 2 * 66 * 3});
  const MutableTensorView to(spread.data().data(), {30, 66}, {2 * 66 * 3, 3});
  linear_gradient(call.x.view(), {}, call.dout.view(), {{}, to, {}});
  for (Index o = 0; o < 30; ++o)
    for (Index i = 0; i < 66; ++i)
      ASSERT_EQ(spread.data()[std::size_t(o * 2 * 66 * 3 + i * 3)], call.dweight.data()[std::size_t(o * 66 + i)]);
  EXPECT_TRUE(std::isnan(spread.data()[1]));
}

TEST(Linear, WithWeightsOfOneCallHasTheBitsOfTheLayer) {
  on_every_isa([] {
    const auto x = Array<float>::random({5, 9}, 1), weight = Array<float>::random({70, 9}, 2),
               bias = Array<float>::random({70}, 3);
    Array<float> once = nans<float>({5, 70}), layer = nans<float>({5, 70});
    linear(x.view(), {weight.view(), bias.view()}, once.view(), 2);
    Linear({weight.view(), bias.view()}).forward(x.view(), layer.view());
    EXPECT_EQ(once.data(), layer.data());
  });
}

TEST(LinearGradient, InC) {
  GradientCall<float> call(9, 7, 5);
  call.run(1);
  Array<float> dx = nans<float>({9, 7}), dbias = nans<float>({5}), out = nans<float>({9, 5}), expected = out;
  const mha_tensor c_x = c_tensor(call.x), c_weight = c_tensor(call.weight), c_dout = c_tensor(call.dout),
                   c_dx = c_tensor(dx), c_dbias = c_tensor(dbias), c_out = c_tensor(out);
  const mha_linear_gradients gradients = {&c_dx, nullptr, &c_dbias};
  EXPECT_OK(mha_linear_gradient(nullptr, &c_weight, &c_dout, &gradients, 1));
  EXPECT_EQ(dx.data(), call.dx.data());
  EXPECT_EQ(dbias.data(), call.dbias.data());
  expect_failure(MHA_INVALID_ARGUMENT, mha_linear_gradient(&c_x, &c_weight, &c_dout, nullptr, 1),
                 {"mha_linear_gradient: gradients: a null pointer"});
  const mha_linear_weights weights = {&c_weight, nullptr, nullptr, MHA_WEIGHT_FORMAT_PLAIN};
  EXPECT_OK(mha_linear_once(&c_x, &weights, &c_out, 1));
  linear(call.x.view(), {call.weight.view()}, expected.view());
  EXPECT_EQ(out.data(), expected.data());
}

TEST(LinearGradientValidation, WhatIsRefused) {
  GradientCall<float> call(4, 6, 3);
  Array<double> doubles({4, 6}, 3);
  LinearGradients views;
  const auto refused = [&](auto error, const TensorView& x, const TensorView& weight) {
    const std::string message =
        message_of<decltype(error)>([&] { linear_gradient(x, weight, call.dout.view(), views); });
    EXPECT_TRUE(std::isnan(call.dx.data()[0])) << "written before the error: " << message;
    views = {call.dx.view(), call.dweight.view(), call.dbias.view()};
    expect_words(message, {"linear_gradient: "});
    return message;
  };
  const std::invalid_argument value("");
  const DTypeError dtype("");
  const TensorView x = call.x.view(), weight = call.weight.view();
  expect_words(refused(dtype, doubles.view(), weight), {"x float64"});
  expect_words(refused(value, {}, weight), {"the gradient of weight needs x"});
  expect_words(refused(value, x, {}), {"the gradient of x needs weight"});
  expect_words(refused(value, x, x), {"weight must be [3, 6]", "weight [4, 6]"});
  expect_words(refused(value, weight, weight), {"x and dout must have the same rows"});
  views.x = call.dweight.view();
  expect_words(refused(value, x, weight), {"gradients.x must have the features of weight"});
  views.weight = call.dx.view();
  expect_words(refused(value, x, weight), {"gradients.weight must be [3, 6]"});
  views.x = call.x.view();
  expect_words(refused(value, x, weight), {"gradients.x must not overlap x"});
  views.bias.data = call.dweight.data().data();
  expect_words(refused(value, x, weight), {"gradients.weight must not overlap gradients.bias"});
  views.weight.strides[0] = 0;
  expect_words(refused(value, x, weight), {"gradients.weight", "stride of 0"});
  expect_words(message_of<std::invalid_argument>([&] { linear(x, weight, call.dx.view()); }),
               {"linear: out must have 3 features"});
}

}  // namespace
}  // namespace mha

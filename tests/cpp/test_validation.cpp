// Calls that are refused: the type of the exception, its words, and outputs that are not written to.
#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>

#include "arrays.hpp"
#include "mha/attention.hpp"

namespace mha {
namespace {

using testing::expect_words;
using testing::message_of;

/// The arguments of a valid call, of which each test changes one.
class Validation : public ::testing::Test {
 protected:
  static constexpr Index B = 2, H = 4, Hk = 2, Tq = 5, Tk = 7, D = 8, Dv = 6;
  testing::Array<float> query_{{B, H, Tq, D}, 1}, key_{{B, Hk, Tk, D}, 1}, value_{{B, Hk, Tk, Dv}, 1};
  testing::Array<float> out_{{B, H, Tq, Dv}, 3}, lse_{{B, H, Tq}, 3}, weights_{{B, H, Tq, Tk}, 3};
  testing::Array<double> doubles_{{B, H, Tq, D}, 1};
  TensorView query = query_.view(), key = key_.view(), value = value_.view();
  MutableTensorView out = out_.view(), lse = lse_.view(), weights = weights_.view();
  AttentionOptions options;

  template <class Error = std::invalid_argument>
  std::string attend() {
    const std::string message =
        message_of<Error>([&] { scaled_dot_product_attention(query, key, value, out, lse, options); });
    for (const auto* array : {&out_, &lse_})
      for (float element : array->data()) EXPECT_EQ(element, 3) << "written before the error: " << message;
    expect_words(message, {"scaled_dot_product_attention: "});
    return message;
  }

  template <class Error = std::invalid_argument>
  std::string weigh() {
    const std::string message = message_of<Error>([&] { attention_weights(query, key, weights, options); });
    for (float element : weights_.data()) EXPECT_EQ(element, 3) << "written before the error: " << message;
    expect_words(message, {"attention_weights: "});
    return message;
  }

  static MutableTensorView with_extent(MutableTensorView view, int axis, Index extent) {
    view.extents[axis] = extent;
    return view;
  }
};

TEST_F(Validation, TheCallIsGood) {
  EXPECT_NO_THROW(scaled_dot_product_attention(query, key, value, out, lse, options));
  EXPECT_NO_THROW(attention_weights(query, key, weights, options));
  EXPECT_EQ(out_.data()[0], 1);
}

TEST_F(Validation, Ranks) {
  query = {};
  expect_words(attend(), {"query", "axes"});
  expect_words(weigh(), {"query", "axes"});
  query = TensorView(query_.data().data(), {D});
  expect_words(attend(), {"query", "2 to 4 axes", "[8]"});
  query = query_.view();
  key = {};
  expect_words(attend(), {"key", "axes"});
  key = key_.view();
  value = TensorView(value_.data().data(), {Dv});
  expect_words(attend(), {"value", "2 to 4 axes", "[6]"});
}

TEST_F(Validation, Shapes) {
  const TensorView good_key = key;
  key = with_extent(key_.view(), 0, 1);
  expect_words(attend(), {"key", "batch", "query [2, 4, 5, 8]", "key [1, 2, 7, 8]", "value [2, 2, 7, 6]"});
  key = with_extent(key_.view(), 3, 7);
  expect_words(attend(), {"key", "head_dim", "[2, 2, 7, 7]"});
  key = with_extent(key_.view(), 1, 3);
  expect_words(attend(), {"heads", "[2, 3, 7, 8]"});
  expect_words(weigh(), {"heads", "[2, 3, 7, 8]"});
  key = with_extent(key_.view(), 1, 0);
  expect_words(attend(), {"heads", "[2, 0, 7, 8]"});
  key = with_extent(key_.view(), 2, -1);
  expect_words(attend(), {"key", "negative"});
  key = good_key;
  value = with_extent(value_.view(), 2, 6);
  expect_words(attend(), {"value", "length", "[2, 2, 6, 6]"});
  value = with_extent(value_.view(), 1, 1);
  expect_words(attend(), {"value", "heads", "[2, 1, 7, 6]"});
  value = with_extent(value_.view(), 0, 1);
  expect_words(attend(), {"value", "batch", "[1, 2, 7, 6]"});
}

TEST_F(Validation, Outputs) {
  out = {};
  expect_words(attend(), {"out"});
  out = with_extent(out_.view(), 3, 5);
  expect_words(attend(), {"out", "[2, 4, 5, 5]"});
  out = MutableTensorView(out_.data().data(), {H, Tq, Dv});
  expect_words(attend(), {"out", "[4, 5, 6]"});
  out = out_.view();
  lse = with_extent(lse_.view(), 2, 4);
  expect_words(attend(), {"lse", "[2, 4, 4]"});
  weights = with_extent(weights_.view(), 3, 6);
  expect_words(weigh(), {"weights", "[2, 4, 5, 6]"});
}

TEST_F(Validation, ElementTypes) {
  query = doubles_.view();
  expect_words(attend<DTypeError>(), {"query float64", "key float32", "value float32"});
  query = query_.view();
  query.dtype = DType::boolean;
  expect_words(attend<DTypeError>(), {"query bool"});
  query = query_.view();
  lse.dtype = DType::f64;
  expect_words(attend<DTypeError>(), {"lse float64"});
  lse = lse_.view();
  out.dtype = DType::f64;
  expect_words(attend<DTypeError>(), {"out float64"});
  out = out_.view();
  options.attn_mask = TensorView(doubles_.data().data(), {Tq, Tk});
  expect_words(attend<DTypeError>(), {"attn_mask float64"});
  options.attn_mask = {};
  options.key_mask = TensorView(query_.data().data(), {B, Tk});
  expect_words(attend<DTypeError>(), {"key_mask float32"});
}

TEST_F(Validation, Masks) {
  const bool unmasked[B * H * Tq * Tk] = {};
  options.attn_mask = TensorView(unmasked, {Tq, Tk + 1});
  expect_words(attend(), {"attn_mask", "[5, 8]", "[2, 4, 5, 7]"});
  expect_words(weigh(), {"attn_mask", "[5, 8]", "[2, 4, 5, 7]"});
  options.attn_mask = TensorView(unmasked, {Hk, Tq, Tk});
  expect_words(attend(), {"attn_mask", "[2, 5, 7]"});
  options.attn_mask = {};
  options.key_mask = TensorView(unmasked, {B, Tk - 1});
  expect_words(attend(), {"key_mask", "[2, 6]", "[2, 7]"});
  options.key_mask = TensorView(unmasked, {B, 1, Tk});
  expect_words(attend(), {"key_mask", "[2, 1, 7]"});
}

TEST_F(Validation, Values) {
  const std::int64_t too_long[] = {7, 8}, negative[] = {7, -1};
  options.key_lengths = too_long;
  expect_words(attend(), {"key_lengths", "[0, 7]", "8", "batch element 1"});
  options.key_lengths = negative;
  expect_words(weigh(), {"key_lengths", "-1"});
  options.key_lengths = nullptr;
  options.window_left = -2;
  expect_words(attend(), {"window", "(-2, -1)"});
  options.window_left = -1;
  options.window_right = -3;
  expect_words(attend(), {"window", "(-1, -3)"});
  options.window_right = -1;
  options.scale = std::numeric_limits<double>::infinity();
  expect_words(attend(), {"scale", "finite"});
  options.scale = 1;
  for (double softcap : {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    options.softcap = softcap;
    expect_words(attend(), {"softcap", "finite"});
    expect_words(weigh(), {"softcap", "finite"});
  }
  options.softcap = 0;
  options.num_threads = -1;
  expect_words(attend(), {"num_threads", "-1"});
}

TEST_F(Validation, NumbersOfEachHead) {
  const auto check = [&](const char* name, TensorView& numbers) {
    const auto words = [name](const char* shape) { return std::string(name) + " " + shape; };
    numbers = TensorView(query_.data().data(), {Hk});
    expect_words(attend(), {"must be [H] = [4]", words("[2]").c_str()});
    expect_words(weigh(), {"must be [H] = [4]", words("[2]").c_str()});
    numbers = TensorView(query_.data().data(), {B + 1, H});
    expect_words(attend(), {words("[3, 4]").c_str()});
    numbers = TensorView(doubles_.data().data(), {H});
    expect_words(attend<DTypeError>(), {words("float64").c_str()});
    expect_words(weigh<DTypeError>(), {words("float64").c_str()});
    numbers = TensorView(out_.data().data() + 5, {H});
    expect_words(attend(), {"out must not overlap", name});
    numbers = TensorView(lse_.data().data() + 5, {H});
    expect_words(attend(), {"lse must not overlap", name});
    numbers = TensorView(weights_.data().data() + 5, {H});
    expect_words(weigh(), {"weights must not overlap", name});
    numbers = {};
  };
  check("alibi_slopes", options.alibi_slopes);
  check("sinks", options.sinks);
  options.alibi_slopes = TensorView(query_.data().data(), {H});
  options.alibi_slopes.extents[0] = Hk;
  expect_words(attend(), {"or [B, H] = [2, 4]"});
  options.alibi_slopes = {};
  options.sinks = TensorView(query_.data().data(), {1, H});
  expect_words(attend(), {"sinks must be [H] = [4]", "sinks [1, 4]"});
}

TEST_F(Validation, AnOddNumberOfBiasesForEachHead) {
  TensorView& bias = options.position_bias;
  const auto expect_shape = [&](const char* shape) {
    const std::string got = std::string("got position_bias ") + shape;
    expect_words(attend(), {"position_bias must be [H, 2 R + 1] = [4, an odd number]", got.c_str()});
    expect_words(weigh(), {"position_bias must be [H, 2 R + 1] = [4, an odd number]", got.c_str()});
  };
  float* const data = query_.data().data();
  bias = TensorView(data, {H, 4});
  expect_shape("[4, 4]");
  bias = TensorView(data, {H, 0});
  expect_shape("[4, 0]");
  bias = TensorView(data, {Hk, 5});
  expect_shape("[2, 5]");
  bias = TensorView(data, {1, H, 5});
  expect_shape("[1, 4, 5]");
  bias = TensorView(data, {H});
  expect_shape("[4]");
  bias = TensorView(doubles_.data().data(), {H, 5});
  expect_words(attend<DTypeError>(), {"position_bias must be float32; got position_bias float64"});
  bias = TensorView(out_.data().data() + 5, {H, 5});
  expect_words(attend(), {"out must not overlap position_bias"});
  bias = TensorView(weights_.data().data() + 5, {H, 5});
  expect_words(weigh(), {"weights must not overlap position_bias"});
  bias = TensorView(data, {H, 1});
  EXPECT_NO_THROW(scaled_dot_product_attention(query, key, value, out, lse, options));
}

TEST_F(Validation, OutputsThatOverlap) {
  out = MutableTensorView(query_.data().data(), {B, H, Tq, Dv});
  expect_words(attend(), {"out must not overlap query"});
  testing::Array<float> shared({B * Hk * Tk * Dv + B * H * Tq * Dv - 1}, 1);  // an element of both
  value = TensorView(shared.data().data(), {B, Hk, Tk, Dv});
  out = MutableTensorView(shared.data().data() + B * Hk * Tk * Dv - 1, {B, H, Tq, Dv});
  expect_words(attend(), {"out must not overlap value"});
  value = value_.view();
  out = MutableTensorView(out_.data().data(), {B, H, Tq, Dv}, {H * Dv, Dv, 0, 1});
  expect_words(attend(), {"out", "stride of 0"});
  out = out_.view();
  lse = MutableTensorView(out_.data().data(), {B, H, Tq});
  expect_words(attend(), {"lse must not overlap out"});
  lse = MutableTensorView(key_.data().data(), {B, H, Tq});
  expect_words(attend(), {"lse must not overlap key"});
  testing::Array<float> room({B * H * Tq * Tk}, 1);  // for the weights, which are more than the keys
  key = TensorView(room.data().data(), {B, Hk, Tk, D});
  weights = MutableTensorView(room.data().data(), {B, H, Tq, Tk});
  expect_words(weigh(), {"weights must not overlap key"});
}

TEST_F(Validation, AnOutputAmongTheInputsOfOneBuffer) {
  // [B, T, 4, H, D]: query, key, value and out in turn. The ranges of addresses overlap, the elements do not.
  testing::Array<float> packed({B, Tq, 4 * H * D}, 1);
  const auto part = [&](Index i) {
    return MutableTensorView(packed.data().data() + i * H * D, {B, H, Tq, D}, {Tq * 4 * H * D, D, 4 * H * D, 1});
  };
  EXPECT_NO_THROW(scaled_dot_product_attention(part(0), part(1), part(2), part(3)));
  // With `out` one head further on, the elements overlap.
  MutableTensorView shifted = part(2);
  shifted.data = packed.data().data() + 2 * H * D + D;
  EXPECT_THROW(scaled_dot_product_attention(part(0), part(1), part(2), shifted), std::invalid_argument);
}

TEST_F(Validation, WhatIsEmptyOverlapsNothing) {
  const TensorView no_keys(query_.data().data(), {B, Hk, 0, D}), no_values(out_.data().data(), {B, Hk, 0, Dv});
  EXPECT_NO_THROW(scaled_dot_product_attention(query, no_keys, no_values, out));
}

}  // namespace
}  // namespace mha

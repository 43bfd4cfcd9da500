// attention_gradient compared with differences of attention in f64, the bits on any number of threads, and the calls
// that it refuses.
#include "mha/attention_gradient.hpp"

#include <gtest/gtest.h>

#include <cstdint>

#include "arrays.hpp"
#include "c_calls.hpp"
#include "every_isa.hpp"

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

constexpr Index B = 2, H = 4, Hk = 2;

/// A call with every option, and what it reads and writes.
template <class T>
struct GradientCall {
  Index Tq, Tk, D = 20, Dv = 17;
  Array<T> query, key, value, attn_mask, alibi_slopes, position_bias, sinks, dout, dlse, out, lse;
  std::vector<Array<T>> results;
  AttentionOptions options;

  explicit GradientCall(Index queries = 37, Index keys = 101)
      : Tq(queries),
        Tk(keys),
        query(Array<T>::random({B, H, Tq, D}, 1)),
        key(Array<T>::random({B, Hk, Tk, D}, 2)),
        value(Array<T>::random({B, Hk, Tk, Dv}, 3)),
        attn_mask(Array<T>::random({H, Tq, Tk}, 4)),
        alibi_slopes(Array<T>::random({H}, 5)),
        position_bias(Array<T>::random({H, 31}, 6)),
        sinks(Array<T>::random({H}, 7)),
        dout(Array<T>::random({B, H, Tq, Dv}, 8)),
        dlse(Array<T>::random({B, H, Tq}, 9)),
        out(nans<T>({B, H, Tq, Dv})),
        lse(nans<T>({B, H, Tq})) {
    for (const Array<T>* argument : arguments()) {
      results.push_back(*argument);
      for (T& element : results.back().data()) element = std::numeric_limits<T>::quiet_NaN();
    }
    for (T& slope : alibi_slopes.data()) slope /= 16;
    options.is_causal = true;
    options.query_offset = 40;
    options.window_left = 60;
    options.softcap = 2;
  }

  std::vector<Array<T>*> arguments() {
    return {&query, &key, &value, &attn_mask, &alibi_slopes, &position_bias, &sinks};
  }

  void with_options() {
    options.attn_mask = attn_mask.view();
    options.alibi_slopes = alibi_slopes.view();
    options.position_bias = position_bias.view();
    options.sinks = sinks.view();
  }

  void forward() {
    with_options();
    scaled_dot_product_attention(query.view(), key.view(), value.view(), out.view(), lse.view(), options);
  }
  /// The function whose gradient dout and dlse are.
  double total() {
    forward();
    double sum = 0;
    for (std::size_t i = 0; i < out.data().size(); ++i) sum += double(out.data()[i]) * double(dout.data()[i]);
    for (std::size_t i = 0; i < lse.data().size(); ++i) sum += double(lse.data()[i]) * double(dlse.data()[i]);
    return sum;
  }

  AttentionGradients views() {
    return {results[0].view(), results[1].view(), results[2].view(), results[3].view(),
            results[4].view(), results[5].view(), results[6].view()};
  }
  void differentiate(const AttentionGradients& gradients) {
    with_options();
    attention_gradient(query.view(), key.view(), value.view(), out.view(), lse.view(), dout.view(), gradients, options,
                       dlse.view());
  }
  std::vector<std::vector<T>> numbers() const {
    std::vector<std::vector<T>> all;
    for (const Array<T>& result : results) all.push_back(result.data());
    return all;
  }
};

TEST(Gradient, OfEveryArgumentIsADifferenceOfAttention) {
  on_every_isa([] {
    GradientCall<double> call;
    call.forward();
    call.differentiate(call.views());
    const auto found = call.numbers();
    for (std::size_t a = 0; a < call.arguments().size(); ++a) {
      std::vector<double>& argument = call.arguments()[a]->data();
      const auto direction = Array<double>::random({Index(argument.size())}, 11 + unsigned(a)).data(), given = argument;
      const auto total_at = [&](double by) {
        for (std::size_t i = 0; i < given.size(); ++i) argument[i] = given[i] + by * direction[i];
        return call.total();
      };
      const double step = a == 4 ? 2e-5 : 1e-3;  // the error is of its fourth power; slopes multiply distances
      const double difference = (8 * (total_at(step) - total_at(-step)) - (total_at(2 * step) - total_at(-2 * step)));
      argument = given;
      double expected = 0, size = 1;
      for (std::size_t i = 0; i < given.size(); ++i) {
        expected += found[a][i] * direction[i];
        size += std::abs(found[a][i] * direction[i]);
      }
      EXPECT_NEAR(difference / (12 * step), expected, 1e-8 * size) << "argument " << a;
    }
  });
}

TEST(Gradient, OfF32IsNearF64) {
  GradientCall<double> wide;
  GradientCall<float> narrow;
  for (std::size_t a = 0; a < wide.arguments().size(); ++a) {
    const std::vector<float>& from = narrow.arguments()[a]->data();
    wide.arguments()[a]->data().assign(from.begin(), from.end());
  }
  wide.dout.data().assign(narrow.dout.data().begin(), narrow.dout.data().end());
  wide.dlse.data().assign(narrow.dlse.data().begin(), narrow.dlse.data().end());
  wide.forward();
  wide.differentiate(wide.views());
  on_every_isa([&] {
    narrow.forward();
    narrow.differentiate(narrow.views());
    for (std::size_t a = 0; a < wide.results.size(); ++a) {
      SCOPED_TRACE(a);
      double largest = 0;
      for (double element : wide.results[a].data()) largest = std::max(largest, std::abs(element));
      expect_close(narrow.results[a].data(), wide.results[a].data(), 2e-5 * largest);
    }
  });
}

TEST(Gradient, TheSameBitsOnAnyNumberOfThreads) {
  on_every_isa([] {
    // The second has few heads and several spans, which threads share out where no option wants a gradient.
    for (const Index keys : {101, 1200}) {
      GradientCall<float> call(150, keys);
      for (const bool of_options : {false, true}) {
        AttentionGradients views = call.views();
        if (!of_options) views.attn_mask = views.alibi_slopes = views.position_bias = views.sinks = {};
        call.options.num_threads = 1;
        call.forward();
        call.differentiate(views);
        const auto expected = call.numbers();
        for (const int threads : {2, 3, 7, 16}) {
          call.options.num_threads = threads;
          for (Array<float>& result : call.results) result.data().assign(result.data().size(), 7);
          call.differentiate(views);
          for (std::size_t a = 0; a < (of_options ? 7 : 3); ++a)
            EXPECT_EQ(call.results[a].data(), expected[a]) << threads << " threads, argument " << a;
        }
      }
    }
  });
}

TEST(Gradient, EachByItself) {
  GradientCall<float> call(37, 600);
  call.forward();
  call.differentiate(call.views());
  const auto expected = call.numbers();
  const AttentionGradients all = call.views();
  for (Array<float>& result : call.results) result.data().assign(result.data().size(), 7);
  for (auto member : {&AttentionGradients::query, &AttentionGradients::key, &AttentionGradients::value,
                      &AttentionGradients::attn_mask, &AttentionGradients::alibi_slopes,
                      &AttentionGradients::position_bias, &AttentionGradients::sinks}) {
    AttentionGradients one;
    one.*member = all.*member;
    call.differentiate(one);
  }
  EXPECT_EQ(call.numbers(), expected);
  call.differentiate({});
}

TEST(Gradient, StridedResults) {
  GradientCall<float> call;
  call.forward();
  call.differentiate(call.views());
  const auto expected = call.numbers();
  auto apart = nans<float>({B, call.Tq, H, 2 * call.D});  // [B, T, H, D], every second element
  AttentionGradients views;
  views.query = MutableTensorView(apart.data().data(), {B, H, call.Tq, call.D},
                                  {2 * H * call.Tq * call.D, 2 * call.D, 2 * H * call.D, 2});
  call.differentiate(views);
  std::size_t at = 0;
  for (Index b = 0; b < B; ++b)
    for (Index h = 0; h < H; ++h)
      for (Index t = 0; t < call.Tq; ++t)
        for (Index d = 0; d < call.D; ++d, ++at) {
          const auto place = static_cast<std::size_t>(((b * call.Tq + t) * H + h) * 2 * call.D + 2 * d);
          ASSERT_EQ(apart.data()[place], expected[0][at]);
          ASSERT_TRUE(std::isnan(apart.data()[place + 1])) << "memory between the elements was written";
        }
}

TEST(Gradient, TheFunctionsOfCAreThoseOfCpp) {
  GradientCall<float> call;
  call.forward();
  call.differentiate(call.views());
  const auto expected = call.numbers();
  for (Array<float>& result : call.results) result.data().assign(result.data().size(), 7);
  const mha_tensor inputs[] = {c_tensor(call.query), c_tensor(call.key),  c_tensor(call.value), c_tensor(call.out),
                               c_tensor(call.lse),   c_tensor(call.dout), c_tensor(call.dlse)};
  const mha_tensor options_of_call[] = {c_tensor(call.attn_mask), c_tensor(call.alibi_slopes),
                                        c_tensor(call.position_bias), c_tensor(call.sinks)};
  std::vector<mha_tensor> outputs;
  for (const Array<float>& result : call.results) outputs.push_back(c_tensor(result));
  const mha_attention_gradients gradients = {&outputs[0], &outputs[1], &outputs[2], &outputs[3],
                                             &outputs[4], &outputs[5], &outputs[6]};
  mha_attention_options options = mha_default_options();
  options.attn_mask = &options_of_call[0];
  options.alibi_slopes = &options_of_call[1];
  options.position_bias = &options_of_call[2];
  options.sinks = &options_of_call[3];
  options.is_causal = true;
  options.query_offset = 40;
  options.window_left = 60;
  options.softcap = 2;
  EXPECT_OK(mha_attention_gradient(&inputs[0], &inputs[1], &inputs[2], &inputs[3], &inputs[4], &inputs[5], &gradients,
                                   &options, &inputs[6]));
  EXPECT_EQ(call.numbers(), expected);
  expect_failure(MHA_INVALID_ARGUMENT,
                 mha_attention_gradient(&inputs[0], &inputs[1], &inputs[2], &inputs[3], &inputs[4], &inputs[5], nullptr,
                                        nullptr, nullptr),
                 {"mha_attention_gradient: gradients: a null pointer"});
}

TEST(Gradient, OfARaggedBatchIsThatOfEachSequence) {
  constexpr Index D = 20;
  const std::int64_t starts[] = {0, 9, 9, 40};
  const RaggedBatch batch{3, starts, starts};
  const auto x = Array<float>::random({40, 2, D}, 1), dout = Array<float>::random({40, 2, D}, 2);
  auto out = nans<float>({40, 2, D}), lse = nans<float>({40, 2}), expected = nans<float>({40, 2, D});
  std::vector<Array<float>> found(4, nans<float>({40, 2, D}));
  AttentionOptions options;
  options.is_causal = true;
  scaled_dot_product_attention_varlen(x.view(), x.view(), x.view(), batch, out.view(), lse.view(), options);
  AttentionGradients gradients;
  gradients.query = found[0].view();
  gradients.key = found[1].view();
  gradients.value = found[2].view();
  attention_gradient_varlen(x.view(), x.view(), x.view(), batch, out.view(), lse.view(), dout.view(), gradients,
                            options);
  for (int b : {0, 2}) {
    const Index rows = starts[b + 1] - starts[b], first = starts[b] * 2 * D;
    const auto part = [&](const Array<float>& array) {
      return TensorView(array.data().data() + first, {2, rows, D}, {D, 2 * D, 1});
    };
    const TensorView sums(lse.data().data() + starts[b] * 2, {2, rows}, {1, 2});
    AttentionGradients one;
    one.key = MutableTensorView(expected.data().data() + first, {2, rows, D}, {D, 2 * D, 1});
    attention_gradient(part(x), part(x), part(x), part(out), sums, part(dout), one, options);
  }
  EXPECT_EQ(found[1].data(), expected.data());

  const mha_tensor c_x = c_tensor(x), c_out = c_tensor(out), c_lse = c_tensor(lse), c_dout = c_tensor(dout),
                   c_dkey = c_tensor(found[3]);
  const mha_ragged_batch c_batch = {3, starts, starts, nullptr};
  mha_attention_options c_options = mha_default_options();
  c_options.is_causal = true;
  mha_attention_gradients c_gradients = {};
  c_gradients.key = &c_dkey;
  EXPECT_OK(mha_attention_gradient_varlen(&c_x, &c_x, &c_x, &c_batch, &c_out, &c_lse, &c_dout, &c_gradients, &c_options,
                                          nullptr));
  EXPECT_EQ(found[3].data(), expected.data());
}

TEST(GradientValidation, WhatIsRefused) {
  GradientCall<float> call;
  call.forward();
  AttentionGradients views = call.views();
  Array<double> doubles({B, H, call.Tq, call.D}, 3);
  const auto refused = [&](auto error) {
    const std::string message = message_of<decltype(error)>([&] { call.differentiate(views); });
    EXPECT_TRUE(std::isnan(call.results[0].data()[0])) << "written before the error: " << message;
    expect_words(message, {"attention_gradient: "});
    views = call.views();
    return message;
  };
  const std::invalid_argument value("");
  const DTypeError dtype("");
  views.query.extents[2] = call.Tk;
  expect_words(refused(value), {"the gradient of query", "[2, 4, 101, 20]"});
  views.key.extents[1] = H;
  expect_words(refused(value), {"the gradient of key", "[2, 2, 101, 20]", "[2, 4, 101, 20]"});
  views.query = doubles.view();
  expect_words(refused(dtype), {"the gradient of query must be float32; got float64"});
  views.sinks.extents[0] = 3;
  expect_words(refused(value), {"the gradient of sinks must have the shape of sinks"});
  views.attn_mask.rank = 2;
  expect_words(refused(value), {"the gradient of attn_mask must have the shape of attn_mask"});
  views.value.strides[1] = 0;
  expect_words(refused(value), {"the gradient of value", "stride of 0"});
  const std::pair<const char*, const Array<float>*> read[] = {{"query", &call.query},
                                                              {"key", &call.key},
                                                              {"value", &call.value},
                                                              {"out", &call.out},
                                                              {"lse", &call.lse},
                                                              {"dout", &call.dout},
                                                              {"dlse", &call.dlse},
                                                              {"attn_mask", &call.attn_mask},
                                                              {"sinks", &call.sinks},
                                                              {"alibi_slopes", &call.alibi_slopes},
                                                              {"position_bias", &call.position_bias}};
  for (const auto& [name, array] : read) {
    views.sinks.data = const_cast<float*>(array->data().data());
    expect_words(refused(value), {"the gradient of sinks must not overlap", name});
  }
  views.value = views.key;
  views.value.extents[3] = call.Dv;
  expect_words(refused(value), {"the gradient of value must not overlap the gradient of key"});
  EXPECT_NO_THROW(call.differentiate(views));
}

}  // namespace
}  // namespace mha

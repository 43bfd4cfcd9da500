// What somebody else writes: attention, the layer over a cache, what is thrown. Exits with 1 if anything is wrong.
#include <mha/mha.hpp>

#include <cmath>
#include <cstdio>
#include <limits>
#include <new>
#include <stdexcept>
#include <vector>

namespace {

int failures = 0;

void expect(bool is_true, const char* what) {
  if (is_true) return;
  std::fprintf(stderr, "consumer: %s\n", what);
  ++failures;
}

template <class Error, class Call>
bool throws(Call call) {
  try {
    call();
  } catch (const Error&) {
    return true;
  }
  return false;
}

/// Where all scores are equal the result is the mean of the values.
void attend_to_equal_keys() {
  constexpr mha::Index H = 8, T = 512, D = 64;
  const std::vector<float> same(H * T * D, 1.f);
  std::vector<float> value(H * T * D), out(H * T * D, std::numeric_limits<float>::quiet_NaN());
  for (std::size_t i = 0; i < value.size(); ++i) value[i] = static_cast<float>(i / D % T);
  const mha::TensorView keys(same.data(), {H, T, D});
  mha::AttentionOptions options;
  options.num_threads = 2;
  mha::scaled_dot_product_attention(keys, keys, mha::TensorView(value.data(), {H, T, D}),
                                    mha::MutableTensorView(out.data(), {H, T, D}), {}, options);
  bool is_mean = true;
  for (float x : out) is_mean = is_mean && std::abs(x - (T - 1) / 2.f) < 1e-3f * T;
  expect(is_mean, "attention to equal keys is not the mean of the values");
}

/// A layer whose weights are all the identity.
void decode_with_a_layer() {
  constexpr mha::Index E = 4;
  std::vector<double> identity(E * E), x = {1, 2, 3, 4}, out(E);
  for (std::size_t i = 0; i < E; ++i) identity[i * E + i] = 1;
  const mha::TensorView weight(identity.data(), {E, E});
  const mha::MultiHeadAttention layer({E, 2}, {weight, weight, weight, weight});
  mha::KVCache cache({1, 2, 8, 2, 0, mha::DType::f64});
  const mha::TensorView token(x.data(), {1, 1, E});
  for (int step = 0; step < 3; ++step)
    layer.forward(token, token, token, cache, mha::MutableTensorView(out.data(), {1, 1, E}));
  expect(cache.longest() == 3, "the cache does not hold three tokens");
  bool is_same = true;
  for (std::size_t i = 0; i < E; ++i) is_same = is_same && std::abs(out[i] - x[i]) < 1e-12;
  expect(is_same, "attention to copies of a token is not the token");
}

/// Across the boundary of a shared library, too.
void catch_what_is_thrown() {
  const std::vector<float> x(6);
  const mha::TensorView narrow(x.data(), {2, 3}), wide(x.data(), {3, 2});
  std::vector<float> out(6);
  const mha::MutableTensorView result(out.data(), {2, 3});
  expect(throws<std::invalid_argument>([&] { mha::scaled_dot_product_attention(narrow, wide, wide, result); }),
         "shapes that disagree are no std::invalid_argument");
  const std::vector<double> y(6);
  const mha::TensorView other(y.data(), {2, 3});
  expect(throws<mha::DTypeError>([&] { mha::scaled_dot_product_attention(narrow, other, other, result); }),
         "dtypes that disagree are no mha::DTypeError");
  expect(throws<std::bad_alloc>([] { mha::KVCache cache({1, 1, mha::Index{1} << 62, 1}); }),
         "a cache without end is no std::bad_alloc");
}

}  // namespace

int main() {
  attend_to_equal_keys();
  decode_with_a_layer();
  catch_what_is_thrown();
  std::printf("mha_native %s, %s, %d threads\n", MHA_VERSION, mha::active_isa(), mha::num_threads());
  return failures > 0;
}

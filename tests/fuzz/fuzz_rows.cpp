#include "calls.hpp"

namespace mha::fuzz {
namespace {

/// A layer that takes each row by itself: x [..., width], and out, [..., out_width] or, if that is 0, like x, which it may
/// be.
template <class Forward>
void fuzz_rows(const char* name, Choices& c, Tally& tally, mha_dtype dtype, std::ptrdiff_t width, Forward forward,
               std::ptrdiff_t out_width = 0) {
  Call call(name, c, tally);
  Call::Extents extents{width};
  for (std::ptrdiff_t axes = c.between(0, 3); axes-- > 0;) extents.insert(extents.begin(), c.between(0, 5));
  if (c.once_in(6)) extents[0] = extents.size() > 1 ? c.between(60, 300) : width;
  const bool in_place = out_width == 0 && c.once_in(3);
  Argument& x = in_place ? call.dense(dtype, extents) : call.tensor(dtype, extents);
  if (out_width > 0) extents.back() = out_width;
  Argument& out = in_place ? call.in_place_of(x) : call.tensor(dtype, extents, Role::output);
  int num_threads = int(c.below(3));
  call.small(num_threads);
  call.mutate();
  call.run([&](int threads) { return forward(x.get(), out.get(), threads > 0 ? threads : num_threads); });
}

}  // namespace

void fuzz_norm(Choices& c, Tally& tally) {
  const mha_dtype dtype = any_dtype(c);
  const std::ptrdiff_t width = c.once_in(6) ? c.between(100, 300) : c.between(2, 40);
  const Norm norm = some_norm(c, tally, dtype, width, true);
  if (norm.handle == nullptr || mha_norm_embed_dim(norm.handle) != width || mha_norm_eps(norm.handle) != 1e-5) return;
  if (c.once_in(4)) {
    Call call("mha_norm_copy_weights", c, tally);
    Argument& weight = call.maybe(call.tensor(mha_norm_dtype(norm.handle), {width}, Role::output), 3);
    Argument& bias = call.maybe(call.tensor(mha_norm_dtype(norm.handle), {width}, Role::output), 3);
    call.expect_unwritten();
    call.mutate();
    call.run([&](int) { return mha_norm_copy_weights(norm.handle, weight.get(), bias.get()); });
  }
  fuzz_rows("mha_norm_forward", c, tally, mha_norm_dtype(norm.handle), width,
            [&](const mha_tensor* x, const mha_tensor* out, int num_threads) {
              return mha_norm_forward(norm.handle, x, out, num_threads);
            });
}

void fuzz_linear(Choices& c, Tally& tally) {
  const std::ptrdiff_t in = c.once_in(6) ? c.between(60, 300) : c.between(1, 30), out = c.between(1, 140);
  const LinearLayer layer = some_linear(c, tally, any_dtype(c), out, in);
  if (layer.handle == nullptr) return;
  const std::ptrdiff_t width = mha_linear_in_features(layer.handle), out_width = mha_linear_out_features(layer.handle);
  if (width != in || out_width != out) return;
  if (c.once_in(4)) copy_linear_weights(c, tally, layer.handle);
  const auto forward = [&](const mha_tensor* x, const mha_tensor* result, int num_threads) {
    return mha_linear_forward(layer.handle, x, result, num_threads);
  };
  fuzz_rows("mha_linear_forward", c, tally, mha_linear_dtype(layer.handle), in, forward, out);
}

void fuzz_feed_forward(Choices& c, Tally& tally) {
  const std::ptrdiff_t width = c.once_in(6) ? c.between(60, 140) : c.between(1, 30);
  const FeedForwardLayer layer = some_feed_forward(c, tally, any_dtype(c), width, true);
  if (layer.handle == nullptr || mha_feed_forward_embed_dim(layer.handle) != width) return;
  if (c.once_in(4)) copy_feed_forward_weights(c, tally, layer.handle);
  fuzz_rows("mha_feed_forward_forward", c, tally, mha_feed_forward_dtype(layer.handle), width,
            [&](const mha_tensor* x, const mha_tensor* out, int num_threads) {
              return mha_feed_forward_forward(layer.handle, x, out, num_threads);
            });
}

void fuzz_positions(Choices& c, Tally& tally) {
  Call call("mha_sinusoidal_positions", c, tally);
  Argument& out = call.tensor(any_dtype(c), {c.between(0, 9), c.between(0, 9)}, Role::output);
  std::int64_t first = c.between(-3, 1000);
  call.number(first);
  call.take_any_shape();
  call.mutate();
  call.run([&](int) { return mha_sinusoidal_positions(out.get(), first); });
}

void fuzz_embedding(Choices& c, Tally& tally) {
  Call call("mha_embed_tokens", c, tally);
  const mha_dtype dtype = any_dtype(c);
  const std::ptrdiff_t size = c.between(0, 4), words = c.between(1, 20), places = c.once_in(4) ? 90 : c.between(1, 9);
  const std::ptrdiff_t width = c.between(2, 40);
  const std::vector<std::int64_t> starts = any_offsets(c, size, places);
  const auto& tokens = call.pointer(call.integers(any_counts(c, starts.back(), words - 1)));
  const auto& texts_at = call.pointer(call.integers(starts));
  Argument& word_rows = call.dense(dtype, {words, width});
  const bool are_given = c.once_in(2);
  const auto& at = call.pointer(are_given ? call.integers(any_counts(c, starts.back(), places - 1)) : nullptr);
  Argument& position_rows = call.dense(dtype, {places, width});
  Argument& norm_weight = call.maybe(call.dense(dtype, {width}), 3);
  Argument& norm_bias = call.maybe(call.dense(dtype, {width}), 3);
  Argument& out = call.dense(dtype, {starts.back(), width}, Role::output);
  double eps = 1e-5;
  int num_threads = int(c.below(3));
  call.real(eps);
  call.small(num_threads);
  call.mutate();
  call.run([&](int threads) {
    const mha_embedding_tables tables{word_rows.get(), position_rows.get(), norm_weight.get(), norm_bias.get(), eps};
    return mha_embed_tokens(tokens, at, texts_at, size, &tables, out.get(), threads > 0 ? threads : num_threads);
  });
}

void fuzz_pooling(Choices& c, Tally& tally) {
  Call call("mha_mean_pool", c, tally);
  const mha_dtype dtype = any_dtype(c);
  const std::ptrdiff_t size = c.between(0, 4), width = c.between(0, 40);
  const std::vector<std::int64_t> starts = any_offsets(c, size, c.once_in(4) ? 200 : 9);
  const auto& texts_at = call.pointer(call.integers(starts));
  Argument& x = call.tensor(dtype, {starts.back(), width});
  Argument& out = call.tensor(accumulator_of(dtype), {size, width}, Role::output);
  const bool normalize = c.once_in(2);
  int num_threads = int(c.below(3)), texts = int(size);
  call.small(num_threads);
  if (c.once_in(8)) {
    texts = -1;
    call.expect_refusal("a negative number of texts");
  }
  call.mutate();
  call.run([&](int threads) {
    return mha_mean_pool(x.get(), texts_at, texts, normalize, out.get(), threads > 0 ? threads : num_threads);
  });
}

void fuzz_runtime(Choices& c, Tally& tally) {
  Call call("the runtime", c, tally);
  int number = int(c.between(0, 2));
  call.small(number);
  call.expect_refusal("perhaps a wrong number");
  call.mutate();
  switch (c.below(4)) {
    case 0:
      call.run([&](int) { return mha_set_num_threads(number); });
      mha_set_num_threads(0);
      break;
    case 1: {
      // An instruction set of this machine, which the calls that follow use, or a name that is none.
      const int count = mha_num_built_isas();
      const char* const name = c.once_in(3) ? c.one_of({"", "avx1024", "\xff"}) : mha_built_isa(int(c.below(count)));
      call.run([&](int) { return mha_set_isa(name); });
      break;
    }
    case 2:
      if ((mha_built_isa(number) != nullptr) != (number >= 0 && number < mha_num_built_isas()))
        throw Finding("mha_built_isa(" + std::to_string(number) + ")");
      mha_isa_supported(number);
      break;
    default: {
      const std::ptrdiff_t extents[5] = {c.between(-1, 3), PTRDIFF_MAX, c.between(0, 3), PTRDIFF_MAX, 2};
      const mha_tensor tensor = mha_dense(nullptr, MHA_DTYPE_f32, int(c.between(-1, 5)), extents);
      if (tensor.data != nullptr) throw Finding("mha_dense has data that nobody gave it");
    }
  }
}

}  // namespace mha::fuzz

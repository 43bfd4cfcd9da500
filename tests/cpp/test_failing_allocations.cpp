// When memory runs out, at whichever allocation, a call says so, has changed nothing, and the next one is right.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "allocator.hpp"
#include "c_calls.hpp"
#include "mha/multi_head_attention.hpp"

namespace mha {
namespace {

using testing::Array;
using testing::c_tensor;
using testing::fail_allocation;
using testing::Owned;

using Rows = Array<float>;

/// What a call is to change, and nothing else: arrays and caches.
struct Watched {
  std::vector<Rows*> outputs;
  std::vector<mha_cache*> caches;

  std::vector<float> now() const {
    std::vector<float> all;
    for (const Rows* output : outputs) all.insert(all.end(), output->data().begin(), output->data().end());
    for (mha_cache* cache : caches) {
      const mha_cache_config config = mha_cache_config_of(cache);
      for (std::ptrdiff_t b = 0; b < config.batch_size; ++b) {
        const std::int64_t length = mha_cache_lengths(cache)[b];
        all.push_back(static_cast<float>(length));
        all.push_back(static_cast<float>(mha_paged_cache_free_pages(cache)));
        for (const mha_tensor& memory : {mha_cache_keys(cache), mha_cache_values(cache)})
          for (std::ptrdiff_t h = 0; h < memory.extents[1]; ++h) {
            const float* const head = static_cast<float*>(memory.data) + b * memory.strides[0] + h * memory.strides[1];
            all.insert(all.end(), head, head + length * memory.extents[3]);
          }
      }
    }
    return all;
  }
};

/// Makes the call on a thread of its own, which has no scratch memory yet, with one failing allocation after another,
/// until there is none left to fail.
void expect_recovery(const Watched& watched, const std::function<mha_status()>& call) {
  for (long n = 1;; ++n) {
    ASSERT_LT(n, 1000) << "allocates for ever";
    const std::vector<float> before = watched.now();
    mha_status status = MHA_OK;
    std::string sentence;
    std::thread([&] {
      fail_allocation(n);
      status = call();
      fail_allocation(0);
      sentence = mha_last_error();
      if (status != MHA_OK) {
        EXPECT_EQ(watched.now(), before) << "allocation " << n;
        return;
      }
    }).join();
    if (status == MHA_OK) {
      EXPECT_GT(n, 1) << "allocates nothing";
      EXPECT_NE(watched.now(), before);
      return;
    }
    EXPECT_EQ(status, MHA_OUT_OF_MEMORY) << "allocation " << n << ": " << sentence;
    EXPECT_NE(sentence, "");
  }
}

/// The same for what makes a handle.
template <class Handle>
Owned<Handle> expect_recovery(const std::function<mha_status(Handle**)>& create, void (*destroy)(Handle*)) {
  Handle* handle = nullptr;
  for (long n = 1; handle == nullptr && n < 1000; ++n) {
    fail_allocation(n);
    const mha_status status = create(&handle);
    fail_allocation(0);
    EXPECT_EQ(status, handle ? MHA_OK : MHA_OUT_OF_MEMORY) << "allocation " << n << ": " << mha_last_error();
    if (handle == nullptr && status == MHA_OK) break;
    EXPECT_TRUE(handle == nullptr || n > 1) << "allocates nothing";
  }
  return {handle, destroy};
}

constexpr Index kBatch = 2, kLength = 40, kEmbed = 24, kHeads = 3, kCapacity = 100, kLayers = 2;

Owned<mha_cache> cache() {
  const mha_cache_config config = {kBatch, kHeads, kCapacity, kEmbed / kHeads, 0, MHA_DTYPE_f32};
  return expect_recovery<mha_cache>([&](mha_cache** made) { return mha_cache_create(&config, made); },
                                    &mha_cache_destroy);
}

Owned<mha_layer> attention(mha_weight_format format) {
  const Rows matrix = Rows::random({kEmbed, kEmbed}, 1), vector = Rows::random({kEmbed}, 2);
  const mha_tensor weight = c_tensor(matrix), bias = c_tensor(vector);
  const mha_layer_config config = {kEmbed, kHeads, 0, 0, 0, 0, 0, 0, true, true, format};
  const mha_linear_weights linear = {&weight, &bias, nullptr, MHA_WEIGHT_FORMAT_PLAIN};
  const mha_layer_weights weights = {linear, linear, linear, linear, &bias, &bias};
  return expect_recovery<mha_layer>([&](mha_layer** made) { return mha_layer_create(&config, &weights, made); },
                                    &mha_layer_destroy);
}

Owned<mha_feed_forward> feed_forward() {
  const Rows matrix = Rows::random({kEmbed, kEmbed}, 3);
  const mha_tensor weight = c_tensor(matrix);
  const mha_feed_forward_weights weights = {{&weight, nullptr, nullptr, MHA_WEIGHT_FORMAT_PLAIN},
                                            {&weight, nullptr, nullptr, MHA_WEIGHT_FORMAT_PLAIN},
                                            {&weight, nullptr, nullptr, MHA_WEIGHT_FORMAT_PLAIN}};
  return expect_recovery<mha_feed_forward>(
      [&](mha_feed_forward** made) {
        return mha_feed_forward_create(&weights, MHA_ACTIVATION_GELU, MHA_WEIGHT_FORMAT_PLAIN, made);
      },
      &mha_feed_forward_destroy);
}

Owned<mha_norm> norm() {
  const Rows vector = Rows::random({kEmbed}, 4);
  const mha_tensor weight = c_tensor(vector);
  return expect_recovery<mha_norm>([&](mha_norm** made) { return mha_norm_create(&weight, &weight, 1e-5, made); },
                                   &mha_norm_destroy);
}

mha_attention_options two_threads() {
  mha_attention_options options = mha_default_options();
  options.num_threads = 2;
  return options;
}

TEST(FailingAllocations, Attention) {
  const Rows x = Rows::random({kBatch, kHeads, 200, 32}, 1);
  Rows out = x, lse({kBatch, kHeads, 200}, 0), weights({kBatch, kHeads, 200, 200}, 0);
  const mha_tensor c_x = c_tensor(x), c_out = c_tensor(out), c_lse = c_tensor(lse), c_weights = c_tensor(weights);
  const mha_attention_options options = two_threads();
  expect_recovery({{&out, &lse}, {}},
                  [&] { return mha_scaled_dot_product_attention(&c_x, &c_x, &c_x, &c_out, &c_lse, &options); });
  expect_recovery({{&weights}, {}},
                  [&] { return mha_attention_weights(&c_x, &c_x, &c_weights, &options, MHA_WEIGHTS); });
  const mha_statistics results = {&c_lse, nullptr, nullptr, nullptr, nullptr};
  expect_recovery({{&lse}, {}}, [&] { return mha_attention_statistics(&c_x, &c_x, &results, &options); });
}

TEST(FailingAllocations, GradientOfAttention) {
  // The second has one head and several spans, which threads share out.
  for (const Index heads : {kHeads, Index{1}}) {
    const Index length = heads == 1 ? 1100 : 200;
    const Rows x = Rows::random({1, heads, length, 32}, 1);
    Rows out = x, lse({1, heads, length}, 0), dquery = x, dkey = x, dsinks({heads}, 0);
    const mha_tensor c_x = c_tensor(x), c_out = c_tensor(out), c_lse = c_tensor(lse), c_dquery = c_tensor(dquery),
                     c_dkey = c_tensor(dkey), c_dsinks = c_tensor(dsinks);
    const Rows sinks({heads}, 0.5F);
    const mha_tensor c_sinks = c_tensor(sinks);
    mha_attention_options options = two_threads();
    options.sinks = &c_sinks;
    EXPECT_OK(mha_scaled_dot_product_attention(&c_x, &c_x, &c_x, &c_out, &c_lse, &options));
    mha_attention_gradients gradients = {};
    gradients.query = &c_dquery;
    gradients.key = &c_dkey;
    if (heads > 1) gradients.sinks = &c_dsinks;
    expect_recovery({{&dquery, &dkey, &dsinks}, {}}, [&] {
      return mha_attention_gradient(&c_x, &c_x, &c_x, &c_out, &c_lse, &c_x, &gradients, &options, nullptr);
    });
  }
}

TEST(FailingAllocations, RaggedBatch) {
  const Rows x = Rows::random({90, kHeads, 8}, 1);
  Rows out = Rows::random({90, kHeads, 8}, 2);
  const mha_tensor c_x = c_tensor(x), c_out = c_tensor(out);
  const std::int64_t offsets[] = {0, 7, 50, 90};
  const mha_ragged_batch batch = {3, offsets, offsets, nullptr};
  const mha_attention_options options = two_threads();
  expect_recovery({{&out}, {}}, [&] {
    return mha_scaled_dot_product_attention_varlen(&c_x, &c_x, &c_x, &batch, &c_out, nullptr, &options);
  });
}

TEST(FailingAllocations, Merging) {
  const Rows x = Rows::random({9, 5}, 1), x_lse = Rows::random({9}, 2);
  Rows out = Rows::random({9, 5}, 3);
  const mha_tensor c_out = c_tensor(out);
  const std::vector<mha_tensor> outs(10, c_tensor(x)), lses(10, c_tensor(x_lse));
  expect_recovery({{&out}, {}}, [&] { return mha_merge_attention(outs.data(), lses.data(), 10, &c_out, nullptr, 1); });
}

TEST(FailingAllocations, Layers) {
  const Rows x = Rows::random({kBatch, kLength, kEmbed}, 5);
  Rows out({kBatch, kLength, kEmbed}, 0);
  const mha_tensor c_x = c_tensor(x), c_out = c_tensor(out);
  const mha_attention_options options = two_threads();
  for (const mha_weight_format format : {MHA_WEIGHT_FORMAT_PLAIN, MHA_WEIGHT_FORMAT_BF16, MHA_WEIGHT_FORMAT_INT8}) {
    const Owned<mha_layer> layer = attention(format);
    const Owned<mha_cache> tokens = cache();
    std::fill(out.data().begin(), out.data().end(), 0.0f);
    expect_recovery({{&out}, {tokens.get()}}, [&] {
      return mha_layer_forward_cached(layer.get(), &c_x, &c_x, &c_x, tokens.get(), &c_out, nullptr, &options, nullptr);
    });
    EXPECT_EQ(mha_cache_lengths(tokens.get())[0], kLength);
    expect_recovery({{}, {tokens.get()}},
                    [&] { return mha_layer_append_to(layer.get(), tokens.get(), &c_x, &c_x, nullptr, 2); });
  }
  const Owned<mha_feed_forward> network = feed_forward();
  std::fill(out.data().begin(), out.data().end(), 0.0f);
  expect_recovery({{&out}, {}}, [&] { return mha_feed_forward_forward(network.get(), &c_x, &c_out, 2); });
}

TEST(FailingAllocations, Transformers) {
  const Owned<mha_layer> self_attention = attention(MHA_WEIGHT_FORMAT_PLAIN);
  const Owned<mha_feed_forward> network = feed_forward();
  const Owned<mha_norm> norm1 = norm(), norm2 = norm();
  const mha_transformer_layer layer = {
      self_attention.get(), nullptr,     network.get(), norm1.get(), norm2.get(), nullptr,
      MHA_NORM_BEFORE,      norm1.get(), nullptr,       nullptr,     nullptr};
  const std::vector<mha_transformer_layer> layers(kLayers, layer);
  const Owned<mha_transformer> stack = expect_recovery<mha_transformer>(
      [&](mha_transformer** made) { return mha_transformer_create(layers.data(), kLayers, norm1.get(), made); },
      &mha_transformer_destroy);

  const Rows x = Rows::random({kBatch, kLength, kEmbed}, 6);
  Rows out({kBatch, kLength, kEmbed}, 0);
  const mha_tensor c_x = c_tensor(x), c_out = c_tensor(out);
  const Owned<mha_cache> first = cache(), second = cache();
  mha_cache* const caches[] = {first.get(), second.get()};
  const mha_attention_options layer_options[] = {two_threads(), two_threads()}, options = two_threads();
  mha_transformer_extras extras = {};
  extras.caches = caches;
  extras.layer_options = layer_options;
  expect_recovery({{&out}, {first.get(), second.get()}},
                  [&] { return mha_transformer_forward(stack.get(), &c_x, &c_out, &options, &extras); });
  EXPECT_EQ(mha_cache_lengths(second.get())[1], kLength);
}

TEST(FailingAllocations, APagedCache) {
  const mha_paged_cache_config config = {4, 64, kBatch, kHeads, kEmbed / kHeads, 0, MHA_DTYPE_f32};
  const Owned<mha_cache> tokens = expect_recovery<mha_cache>(
      [&](mha_cache** made) { return mha_paged_cache_create(&config, made); }, &mha_cache_destroy);
  const Rows square = Rows::random({kEmbed, kEmbed}, 1), x = Rows::random({kBatch, kLength, kEmbed}, 2);
  const MultiHeadAttention layer({kEmbed, kHeads},
                                 {{square.view()}, {square.view()}, {square.view()}, {square.view()}});
  auto* const c_layer = reinterpret_cast<const mha_layer*>(&layer);
  Rows out({kBatch, kLength, kEmbed}, 0);
  const mha_tensor c_x = c_tensor(x), c_out = c_tensor(out);
  const mha_attention_options options = two_threads();
  expect_recovery({{&out}, {tokens.get()}}, [&] {
    return mha_layer_forward_cached(c_layer, &c_x, &c_x, &c_x, tokens.get(), &c_out, nullptr, &options, nullptr);
  });
  EXPECT_EQ(mha_paged_cache_free_pages(tokens.get()), 2);
  EXPECT_TRUE(mha_paged_cache_check_pages(tokens.get()));
}

TEST(FailingAllocations, Pooling) {
  const Rows x = Rows::random({9, kEmbed}, 7);
  Rows out({2, kEmbed}, 0);
  const mha_tensor c_x = c_tensor(x), c_out = c_tensor(out);
  const std::int64_t offsets[] = {0, 4, 9};
  expect_recovery({{&out}, {}}, [&] { return mha_mean_pool(&c_x, offsets, 2, true, &c_out, 1); });
}

}  // namespace
}  // namespace mha

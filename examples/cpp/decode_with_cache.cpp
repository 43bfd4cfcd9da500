// Attention of a decoder, token by token over a cache: each step has the same bits as one call over all tokens.
#include <mha/mha.hpp>

#include <cmath>
#include <cstdio>
#include <vector>

int main() {
  constexpr mha::Index E = 32, H = 4, Hk = 2, D = E / H, T = 20;  // two query heads share keys and values
  std::vector<float> weights(E * E), x(T * E), together(T * E), one_by_one(T * E);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(std::sin(double(i * i))) / E;
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(std::cos(3 * double(i)));

  mha::MultiHeadAttentionConfig config;
  config.embed_dim = E;
  config.num_heads = H;
  config.num_kv_heads = Hk;
  const mha::TensorView wide(weights.data(), {E, E}), narrow(weights.data(), {Hk * D, E});
  const mha::MultiHeadAttention layer(config, {wide, narrow, narrow, wide});

  mha::AttentionOptions options;
  options.is_causal = true;
  const mha::TensorView all(x.data(), {T, E});
  layer.forward(all, all, all, mha::MutableTensorView(together.data(), {T, E}), {}, options);

  mha::KVCacheConfig sizes;
  sizes.num_kv_heads = Hk;
  sizes.head_dim = D;
  sizes.capacity = T;
  mha::KVCache cache(sizes);
  for (std::size_t t = 0; t < T; ++t) {
    const mha::TensorView token(x.data() + t * E, {1, E});
    layer.forward(token, token, token, cache, mha::MutableTensorView(one_by_one.data() + t * E, {1, E}), {}, options);
  }
  std::printf("%td tokens in the cache\n", cache.longest());
  return one_by_one != together;
}

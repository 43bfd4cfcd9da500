// Causal attention of 8 heads over 128 tokens, in place on arrays of the caller.
#include <mha/mha.hpp>

#include <cstdio>
#include <vector>

int main() {
  constexpr mha::Index H = 8, T = 128, D = 64;
  std::vector<float> x(H * T * D), out(H * T * D);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 17) - 8;

  const mha::TensorView tokens(x.data(), {H, T, D});
  mha::AttentionOptions options;
  options.is_causal = true;
  mha::scaled_dot_product_attention(tokens, tokens, tokens, mha::MutableTensorView(out.data(), {H, T, D}), {}, options);

  // The first token sees only itself.
  for (std::size_t i = 0; i < D; ++i)
    if (out[i] != x[i]) return 1;
  std::printf("%zu numbers, the last is %g\n", out.size(), out.back());
}

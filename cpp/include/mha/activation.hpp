// Activations of the feed-forward layer.
#pragma once

namespace mha {

/// `gelu` is exact, x Phi(x) with the normal distribution Phi; `gelu_tanh` is the approximation of it by a hyperbolic
/// tangent. `silu` is x / (1 + exp(-x)), and `quick_gelu`, of CLIP, x / (1 + exp(-1.702 x)). `swiglu_oai`, of gpt-oss, is
/// m / (1 + exp(-1.702 m)) with m = min(x, 7); it is multiplied not by `up` but by 1 + clamp(up, -7, 7).
enum class Activation : unsigned char { none, relu, gelu, gelu_tanh, silu, swiglu_oai, quick_gelu };

}  // namespace mha

// Activations of the feed-forward layer.
#pragma once

namespace mha {

/// `gelu` is exact, x Phi(x) with the normal distribution Phi; `gelu_tanh` is the approximation of it by a hyperbolic
/// tangent. `silu` is x / (1 + exp(-x)).
enum class Activation : unsigned char { none, relu, gelu, gelu_tanh, silu };

}  // namespace mha

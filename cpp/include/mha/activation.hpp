// Activations of the feed-forward layer.
#pragma once

namespace mha {

/// `gelu` is exact, x Phi(x) with the normal distribution Phi; `gelu_tanh` is the approximation of it by a hyperbolic
/// tangent.
enum class Activation : unsigned char { none, relu, gelu, gelu_tanh };

}  // namespace mha

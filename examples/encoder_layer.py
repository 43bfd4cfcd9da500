"""An encoder layer written out: attention, sum, norm, feed-forward, sum, norm; then the same as one call."""

import numpy as np

import mha_native as mha

B, T, E, H, F = 2, 12, 64, 4, 256

layer = mha.EncoderLayer(E, H, F, activation="gelu", seed=0)
w = layer.state_dict()  # names and layout of torch.nn.TransformerEncoderLayer
tokens = np.random.default_rng(0).standard_normal((B, T, E), dtype=np.float32)
x = tokens + mha.sinusoidal_positions(T, E)


def heads(projected):
    return projected.reshape(B, T, H, E // H).swapaxes(1, 2)  # [B, T, E] -> [B, H, T, D]


# Every token attends to every token: weighted means of the values, separately for each head.
q, k, v = np.split(x @ w["self_attn.in_proj_weight"].T + w["self_attn.in_proj_bias"], 3, axis=-1)
z = mha.scaled_dot_product_attention(heads(q), heads(k), heads(v))  # [B, H, T, D]
attended = z.swapaxes(1, 2).reshape(B, T, E) @ w["self_attn.out_proj.weight"].T + w["self_attn.out_proj.bias"]
y = layer.norm1(x + attended)

# The feed-forward transforms each token separately, through F features.
hidden = mha.reference.activate(y @ w["linear1.weight"].T + w["linear1.bias"], "gelu").astype(np.float32)
by_hand = layer.norm2(y + hidden @ w["linear2.weight"].T + w["linear2.bias"])

out = layer(x)
expected = mha.reference.encoder_layer(x, w, H, activation="gelu")
print(f"x {x.shape} -> out {out.shape}, computed with {mha.last_used_isa()}")
for name, result in (("the layer", out), ("by hand", by_hand)):
    error = np.abs(result - expected).max()
    print(f"largest error against float64, {name}: {error:.1e}, in results of up to {np.abs(expected).max():.1f}")
    assert error < 1e-5

# With pre-LN, the residual path is not normalized, so deep stacks end with a final norm.
stack = mha.Encoder(6, E, H, F, activation="gelu", norm_first=True, final_norm=True, seed=1)
whole, weights = stack(x, need_weights=True)
print(f"{len(stack.layers)} layers: {whole.shape}, weights of each {weights[0].shape}")
assert np.allclose(whole.mean(-1), 0, atol=1e-5)

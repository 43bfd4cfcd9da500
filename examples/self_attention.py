"""Self-attention with a layer: eight heads over one sequence, the weights of each head, and a check."""

import numpy as np

import mha_native as mha

EMBED_DIM, NUM_HEADS = 512, 8
words = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"]

rng = np.random.default_rng(0)
embeddings = {word: rng.standard_normal(EMBED_DIM, dtype=np.float32) for word in dict.fromkeys(words)}
x = np.stack([embeddings[word] for word in words]) + mha.sinusoidal_positions(len(words), EMBED_DIM)  # [T, E]

layer = mha.MultiHeadAttention(EMBED_DIM, NUM_HEADS, seed=0)  # random weights; see load_state_dict and from_torch
y, weights = layer(x, need_weights=True)  # [T, E], [H, T, T]

print(f"x {x.shape} -> y {y.shape}, weights {weights.shape}, computed with {mha.last_used_isa()}")
for head, of_head in enumerate(weights):
    query, key = np.unravel_index(of_head.argmax(), of_head.shape)
    print(f"  head {head}: '{words[query]}' attends most to '{words[key]}' ({of_head[query, key]:.2f})")

expected = mha.reference.multi_head_attention(x, x, x, layer.state_dict(), NUM_HEADS)
error = np.abs(y - expected).max()
print(f"largest error against float64: {error:.1e}, in results of up to {np.abs(expected).max():.1f}")
assert error < 1e-5
assert np.allclose(weights.sum(-1), 1, atol=1e-5)

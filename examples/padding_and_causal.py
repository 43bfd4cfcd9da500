"""Causal attention over a padded batch: masked keys and values have no effect, whatever they contain."""

import numpy as np

import mha_native as mha

B, H, T, D = 3, 4, 12, 32
lengths = np.array([12, 7, 3])

rng = np.random.default_rng(0)
query, key, value = rng.standard_normal((3, B, H, T, D), dtype=np.float32)
for b, length in enumerate(lengths):  # padding is never read, so it can even be NaN
    key[b, :, length:] = value[b, :, length:] = np.nan

out = mha.scaled_dot_product_attention(query, key, value, is_causal=True, key_lengths=lengths)
weights = mha.attention_weights(query, key, is_causal=True, key_lengths=lengths)
for b, length in enumerate(lengths):
    seen = np.count_nonzero(weights[b, 0], axis=-1)
    print(f"sequence of {length:2}: keys that each query sees: {' '.join(map(str, seen))}")

# The same sequence without padding, outside the batch, gives the same bits.
n = lengths[1]
alone = mha.scaled_dot_product_attention(query[1, :, :n], key[1, :, :n], value[1, :, :n], is_causal=True)
print(f"elements that differ when the sequence of {n} runs alone: {np.count_nonzero(alone != out[1, :, :n])}")
assert np.array_equal(alone, out[1, :, :n])

expected = mha.reference.scaled_dot_product_attention(query, key, value, is_causal=True, key_lengths=lengths)
error = np.abs(out - expected).max()
print(f"largest error against float64: {error:.1e}")
assert error < 1e-5

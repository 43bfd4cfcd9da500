"""A layer over sentences of different length without padding: only their own words are computed."""

import numpy as np

import mha_native as mha

E, H = 384, 12
lengths = np.array([5, 23, 11, 2, 40, 8, 17, 31])
offsets = np.concatenate([[0], np.cumsum(lengths)])  # where each sentence begins, and the end of the last

layer = mha.MultiHeadAttention(E, H, seed=0)
words = np.random.default_rng(1).standard_normal((offsets[-1], E), dtype=np.float32)  # one after another
out = layer(words, cu_seqlens_q=offsets)
sentences = np.add.reduceat(out, offsets[:-1]) / lengths[:, None]  # one mean per sentence
print(f"{len(lengths)} sentences of {lengths.min()} to {lengths.max()} words: {words.shape} -> {sentences.shape}")

# A padded batch computes more pairs of words for the same result.
padded, ragged = len(lengths) * lengths.max() ** 2, (lengths**2).sum()
print(f"pairs in each head: {ragged} instead of {padded} with padding")

# A sentence has the same bits alone and in a batch.
alone = np.concatenate([layer(sentence) for sentence in np.split(words, offsets[1:-1])])
print(f"elements that differ from each sentence alone: {np.count_nonzero(alone != out)}")
assert np.array_equal(alone, out)

# Attention without the layer, causal as in a decoder: queries, keys and values are views of one array.
query, key, value = words.reshape(-1, 3, 4, 32).swapaxes(0, 1)
attended = mha.scaled_dot_product_attention_varlen(query, key, value, offsets, offsets, is_causal=True)
expected = mha.reference.scaled_dot_product_attention_varlen(query, key, value, offsets, offsets, is_causal=True)
error = np.abs(attended - expected).max()
print(f"largest error against float64: {error:.1e}")
assert error < 1e-5

"""Grouped-query attention in a decoding step: 32 query heads share 8 key-value heads, which are never repeated."""

import numpy as np

import mha_native as mha

H, HK, PAST, NEW, D = 32, 8, 1000, 4, 64

rng = np.random.default_rng(0)
query = rng.standard_normal((1, H, NEW, D), dtype=np.float32)  # the last four tokens of a sequence
key, value = rng.standard_normal((2, 1, HK, PAST + NEW, D), dtype=np.float32)

# query_offset is the position of the first query among the keys: each token sees the past and itself.
options = {"is_causal": True, "query_offset": PAST}
out, lse = mha.scaled_dot_product_attention(query, key, value, return_lse=True, **options)
print(f"query {query.shape}, key {key.shape} -> out {out.shape}, lse {lse.shape}")
megabytes = (key.nbytes + value.nbytes) / 1e6
print(f"key and value: {megabytes:.1f} MB; with as many heads as the query: {megabytes * H / HK:.1f} MB")

# Query head h reads key-value head h // 4. Repeating them gives the same bits from four times the memory.
key_of_each, value_of_each = (x.repeat(H // HK, axis=1) for x in (key, value))
repeated = mha.scaled_dot_product_attention(query, key_of_each, value_of_each, **options)
print(f"elements that differ when heads are repeated: {np.count_nonzero(out != repeated)} of {out.size}")
assert np.array_equal(out, repeated)

expected, expected_lse = mha.reference.scaled_dot_product_attention(query, key, value, return_lse=True, **options)
error, lse_error = np.abs(out - expected).max(), np.abs(lse - expected_lse).max()
print(f"largest error against float64: out {error:.1e}, lse {lse_error:.1e} (lse near {lse.mean():.1f})")
assert error < 1e-6
assert lse_error < 1e-5

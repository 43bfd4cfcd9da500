"""Attention over keys in several places: attend to each part separately, then merge the results."""

from itertools import pairwise

import numpy as np

import mha_native as mha

B, H, HK, T, D = 2, 8, 2, 300, 64
CUTS = [0, 64, 190, 190, 300]  # four shards of different sizes, one of them empty

rng = np.random.default_rng(0)
query = rng.standard_normal((B, H, T, D), dtype=np.float32)
key, value = rng.standard_normal((2, B, HK, T, D), dtype=np.float32)

# Each call needs only its own keys and values, and could run in another process or machine. Positions are counted from
# the first key of the shard, so query i is at position i - first.
out, lse = None, None
for first, last in pairwise(CUTS):
    shard_out, shard_lse = mha.scaled_dot_product_attention(
        query, key[:, :, first:last], value[:, :, first:last], is_causal=True, query_offset=-first, return_lse=True
    )
    unseen = np.isneginf(shard_lse).mean()
    print(f"keys {first:3} to {last:3}: {unseen:4.0%} of the rows see no key")
    if out is None:
        out, lse = shard_out, shard_lse
    else:  # merge into the running result
        out, lse = mha.merge_attention([out, shard_out], [lse, shard_lse], out=out)

whole, whole_lse = mha.scaled_dot_product_attention(query, key, value, is_causal=True, return_lse=True)
error, lse_error = np.abs(out - whole).max(), np.abs(lse - whole_lse).max()
print(f"largest difference from one call over all keys: out {error:.1e}, lse {lse_error:.1e}")
assert error < 2e-6
assert lse_error < 2e-6

"""Read a prompt, then decode token by token over a cache, with rolled back drafts and forked beams."""

import numpy as np

import mha_native as mha

B, E, PROMPT, STEPS = 2, 64, 9, 6
layer = mha.MultiHeadAttention(E, 4, num_kv_heads=2, seed=0)
x = np.random.default_rng(0).standard_normal((B, PROMPT + STEPS, E), dtype=np.float32)
whole = layer(x, is_causal=True)  # the expected row of every step

cache = layer.new_cache(batch_size=B, capacity=32)
layer(x[:, :PROMPT], cache=cache, is_causal=True)
for t in range(PROMPT, PROMPT + STEPS):
    y = layer(x[:, t : t + 1], cache=cache, is_causal=True)
    assert np.array_equal(y[:, 0], whole[:, t]), "the bits differ"
print(f"decoded {STEPS} tokens after a prompt of {PROMPT}: {cache}")

# Read a draft of three tokens at once. The first sequence accepts one of them, the second sequence none.
before = cache.lengths
layer(np.ones((B, 3, E), np.float32), cache=cache, is_causal=True)
cache.rollback(np.array([2, 3]))
print(f"tokens after a draft: {cache.lengths.tolist()}, before it {before.tolist()}")
assert (cache.lengths - before).tolist() == [1, 0]

# Both beams continue the second sequence.
cache.reorder(np.array([1, 1]))
same = layer(np.tile(x[:1, :1], (B, 1, 1)), cache=cache, is_causal=True)
assert np.array_equal(same[0], same[1])
print(f"beams from one sequence: {cache.lengths.tolist()}")

"""A transformer in the shapes of translation: encode sentences of different length, then decode token by token."""

import numpy as np

import mha_native as mha

SOURCE, TARGET, E, H, F, BEGIN, END = 90, 70, 64, 4, 128, 1, 2
lengths = np.array([9, 4, 7])  # tokens of three sentences

rng = np.random.default_rng(0)
encoder = mha.Encoder(2, E, H, F, norm_first=True, final_norm=True, seed=1)
decoder = mha.Decoder(2, E, H, F, norm_first=True, final_norm=True, seed=2)
source_table = rng.standard_normal((SOURCE, E), dtype=np.float32)
target_table, scores_of = rng.standard_normal((2, TARGET, E), dtype=np.float32)  # embedding table, output weights

sentences = rng.integers(3, SOURCE, (len(lengths), lengths.max()))
sentences[np.arange(lengths.max()) >= lengths[:, None]] = 0  # padding
memory = encoder(source_table[sentences] + mha.sinusoidal_positions(lengths.max(), E), key_lengths=lengths)
print(f"sentences {sentences.shape} -> memory {memory.shape}")

# Step by step: project the memory once; each step reads one token over the caches.
caches, memory_caches = decoder.new_caches(3, 10), decoder.project_memory(memory, memory_lengths=lengths)
written = [np.full(3, BEGIN)]
for t in range(10):
    x = target_table[written[-1]] + mha.sinusoidal_positions(1, E, first_position=t)
    y = decoder(x[:, None], caches=caches, memory_caches=memory_caches)  # [3, 1, E]
    written.append((y[:, 0] @ scores_of.T).argmax(-1))
tokens = np.stack(written, axis=1)

# All tokens in one call: a row does not depend on later rows, so the bits are the same.
again = decoder(target_table[tokens[:, :10]] + mha.sinusoidal_positions(10, E), memory, memory_lengths=lengths)
print(f"elements of the last step that differ from one call: {np.count_nonzero(again[:, -1:] != y)}")
assert np.array_equal(again[:, -1:], y)

expected = mha.reference.decoder(
    target_table[tokens[:, :10]] + mha.sinusoidal_positions(10, E), memory, decoder.state_dict(), H,
    norm_first=True, memory_lengths=lengths,
)  # fmt: skip
error = np.abs(again - expected).max()
print(f"largest error against float64: {error:.1e}, in results of up to {np.abs(expected).max():.1f}")
assert error < 1e-4

# `generate` is the same loop. It can also sample, and stops when all sentences have ended.
options = {"memory": memory, "memory_lengths": lengths, "output_weight": scores_of, "max_new_tokens": 10}
steps = list(mha.generate(decoder, np.full((3, 1), BEGIN), target_table, **options))
for sentence, line in enumerate(np.stack([step.tokens for step in steps], axis=1)):
    print(f"  {sentence}: {' '.join(map(str, line))}")
    assert line.tolist() == tokens[sentence, 1:].tolist()
drawn = mha.generate(
    decoder, np.full((3, 1), BEGIN), target_table, temperature=0.8, top_p=0.9, seed=0, stop_token=END, **options
)
print("drawn: " + ", ".join(str(step.tokens.tolist()) for step in drawn))

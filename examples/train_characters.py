"""Train a language model of characters on a poem, without a framework: its losses, its heads, and a sample.

    python examples/train_characters.py [STEPS]

The text is "The Rime of the Ancient Mariner" by Samuel Taylor Coleridge (1834, public domain). Its last tenth is held
out, and the weights with the smallest loss there are kept. STEPS is 150; try 1000, which takes a minute on two cores.
"""

import sys
import time
from pathlib import Path

import numpy as np

import mha_native as mha

LAYERS, E, H, F = 3, 128, 4, 512
T, BATCH = 96, 16  # characters of a sequence, and sequences of a step
NOISE = 0.15  # part of the characters that are replaced in the input, against learning by heart
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 150

text = Path(__file__).with_name("ancient_mariner.txt").read_text(encoding="utf-8")
characters = sorted(set(text))
tokens = np.array([characters.index(character) for character in text])
train, held_out = np.split(tokens, [len(tokens) * 9 // 10])
held_out = held_out[: len(held_out) // (T + 1) * (T + 1)].reshape(-1, T + 1)

rng = np.random.default_rng(0)
rotary = mha.RotaryEmbedding.from_base(E // H, max_positions=512)
decoder = mha.CausalDecoder(
    LAYERS, E, H, F, norm_first=True, norm="rms", final_norm=True, activation="gelu", rotary=rotary, seed=0
)
# One table for both ends: the vectors of characters, and the weight of the logits.
table = 0.05 * rng.standard_normal((len(characters), E), dtype=np.float32)
optimizer = mha.optim.AdamW(
    {**decoder.state_dict(), "table": table},
    lr=3e-3,
    weight_decay=0.1,
    max_grad_norm=1.0,
    schedule=mha.optim.warmup_cosine(20, steps, min_factor=0.1),
)


def held_out_loss():
    """Return the mean cross-entropy of the next character of held-out text, in nats."""
    return float(mha.cross_entropy(decoder(table[held_out[:, :-1]]), table, held_out[:, 1:]).loss)


def train_a_step():
    """Train on a batch, and return its loss."""
    sequences = train[rng.integers(0, len(train) - T, (BATCH, 1)) + np.arange(T + 1)]
    noise = rng.random((BATCH, T)) < NOISE
    inputs = np.where(noise, rng.permuted(sequences[:, :-1]), sequences[:, :-1])
    rows, tape = decoder.forward_and_record(table[inputs])
    top = mha.cross_entropy(rows, table, sequences[:, 1:], wrt=("x", "weight"))
    gradients = tape.backward(top.x)
    of_inputs = mha.embedding_gradient(inputs, gradients.inputs["x"], len(characters))
    optimizer.step({**gradients.weights, "table": top.weight + of_inputs})
    use(optimizer.weights)
    return float(top.loss)


def use(weights):
    """Give these weights to the model."""
    table[:] = weights["table"]
    decoder.load_state_dict({name: weight for name, weight in weights.items() if name != "table"})


def describe_heads(when):
    """Print how many characters back each head looks, and the entropy of its weights, over held-out text."""
    print(f"heads {when} training: characters back, and entropy in nats")
    _, weights = decoder(table[held_out[:, :T]], need_weights=True)
    back = np.maximum(0, np.subtract.outer(np.arange(T), np.arange(T)))
    for i, layer in enumerate(weights):  # [B, H, T, T]
        distance = (layer * back).sum(-1).mean((0, 2))
        entropy = -(layer * np.log(np.maximum(layer, 1e-30))).sum(-1).mean((0, 2))
        print(f"  layer {i} ", *(f"{d:7.1f} {e:4.1f}" for d, e in zip(distance, entropy, strict=True)))


def sample(prompt, count=300):
    """Return a text that the model writes after `prompt`."""
    tokens = np.array([characters.index(character) for character in prompt])
    sampling = {"temperature": 0.7, "seed": 0, "window": (T - 1, 0)}  # each character sees T, as in training
    chosen = mha.generate(decoder, tokens, table, positions=None, max_new_tokens=count, **sampling)
    return prompt + "".join(characters[step.tokens[0]] for step in chosen)


describe_heads("before")
first = best = held_out_loss()
begin, losses, kept = time.perf_counter(), [], None
for step in range(1, steps + 1):
    losses.append(train_a_step())
    if step % max(1, steps // 10) == 0:
        loss, losses = np.mean(losses), []
        found = held_out_loss()
        print(f"step {step:4}: loss {loss:.2f} nats, held out {found:.2f} nats")
        if found < best:
            best, kept = found, {name: weight.copy() for name, weight in optimizer.weights.items()}
print(
    f"{steps} steps took {time.perf_counter() - begin:.0f} s; held out {first:.2f} nats before, {best:.2f} nats after"
)
use(kept)
describe_heads("after")
print(f"\n{sample('The ship ')}")
assert best < 0.8 * first

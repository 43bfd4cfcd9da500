"""Serve many requests to one language model at once, and compare the speed with one request after another.

    python examples/serve_many.py [MODEL [REQUESTS [NEW_TOKENS]]]

The model is a directory, a .gguf file or a name; default: the environment variable MHA_NATIVE_LANGUAGE_MODEL, or else a
small model with random weights, which writes nonsense. By default, 12 requests have prompts of 10 to 250 tokens and 24
new tokens; that takes a small model less than a minute on two cores. Give 64 64 for steadier numbers.
"""

import json
import os
import struct
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np

try:
    import tokenizers
    from tqdm import tqdm  # comes with tokenizers
except ImportError:
    sys.exit("this example needs the package tokenizers: pip install tokenizers")

from mha_native.models import CausalLM
from mha_native.serving import Batcher


def random_model(directory):
    """Write a Llama with random weights and one token per byte; return its directory."""
    sizes = {"hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = {"model_type": "llama", "vocab_size": 256, "num_hidden_layers": 4, "max_position_embeddings": 1024}
    width, inner, narrow = 256, 768, 128
    shapes = {"model.embed_tokens.weight": (256, width), "lm_head.weight": (256, width), "model.norm.weight": (width,)}
    for layer in (f"model.layers.{i}" for i in range(4)):
        for name, rows, columns in (
            ("self_attn.q_proj", width, width),
            ("self_attn.k_proj", narrow, width),
            ("self_attn.v_proj", narrow, width),
            ("self_attn.o_proj", width, width),
            ("mlp.gate_proj", inner, width),
            ("mlp.up_proj", inner, width),
            ("mlp.down_proj", width, inner),
        ):
            shapes[f"{layer}.{name}.weight"] = (rows, columns)
        shapes |= {f"{layer}.{norm}_layernorm.weight": (width,) for norm in ("input", "post_attention")}
    rng, header, data = np.random.default_rng(0), {}, b""
    for name, shape in shapes.items():
        tensor = (
            rng.standard_normal(shape, dtype=np.float32) / np.sqrt(shape[-1]) if len(shape) == 2 else np.ones(shape)
        )
        tensor = tensor.astype(np.float32).tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": (len(data), len(data) + len(tensor))}
        data += tensor
    text = json.dumps(header).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (directory / "config.json").write_text(json.dumps(config | sizes))
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def milliseconds(seconds):
    return f"median {1e3 * np.median(seconds):.0f} ms, 95th percentile {1e3 * np.percentile(seconds, 95):.0f} ms"


path = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("MHA_NATIVE_LANGUAGE_MODEL")
count = int(sys.argv[2]) if len(sys.argv) > 2 else 12
num_new = int(sys.argv[3]) if len(sys.argv) > 3 else 24
with tempfile.TemporaryDirectory() as directory:
    try:
        model = CausalLM.from_pretrained(path or random_model(Path(directory)), weight_dtype=os.environ.get("WEIGHTS"))
    except OSError as error:
        sys.exit(f"{error}\nexamples/README.md says how to get the model.")
print(model)

rng = np.random.default_rng(0)
text = model.tokenize((Path(__file__).parent / "town_notes.txt").read_text(encoding="utf-8"))
text = np.tile(text, -(-1000 // len(text)))
lengths = np.linspace(10, 250, count).astype(int)
rng.shuffle(lengths)
begins = rng.integers(0, len(text) - 250, count)
prompts = [text[begin : begin + length] for begin, length in zip(begins, lengths, strict=True)]
print(
    f"{count} requests with prompts of {lengths.min()} to {lengths.max()} tokens, {num_new} new tokens each at most\n"
)

with Batcher(model) as batcher:
    begin = perf_counter()
    requests = [batcher.submit(prompt, max_new_tokens=num_new) for prompt in prompts]
    texts = [request.result() for request in tqdm(requests, "all at once", leave=False)]
    together = perf_counter() - begin
statistics = [request.statistics for request in requests]
num_tokens = sum(each.new_tokens for each in statistics)
print(f"all at once:       {together:6.1f} s, {num_tokens / together:6.1f} new tokens a second")
print(f"  until the first token of a request: {milliseconds([each.first_token_seconds for each in statistics])}")
print(f"  from one token to the next:         {milliseconds([each.seconds_per_token for each in statistics])}")

begin, reading, first = perf_counter(), 0.0, []
for prompt, expected in zip(tqdm(prompts, "one after another", leave=False), texts, strict=True):
    started = perf_counter() - begin
    assert model.generate(prompt, max_new_tokens=num_new) == expected, (
        "the text differs from the text of the prompt alone"
    )
    reading += model.statistics.prompt_seconds
    first.append(started + model.statistics.prompt_seconds)
alone = perf_counter() - begin
print(f"one after another: {alone:6.1f} s, {num_tokens / alone:6.1f} new tokens a second")
print(f"  until the first token of a request: {milliseconds(first)}")
print(f"  prompts take {reading:.1f} s of it; they are limited by arithmetic, and a batch does not speed them up")
print(f"\nThe texts are the same, at {alone / together:.1f} times the throughput.")

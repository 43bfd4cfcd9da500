"""A tiny GPT-2 with random weights as transformers saves it, whose tokens are bytes and some words of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from checkpoints import byte_level_bpe, write_folder

Array = np.ndarray[Any, Any]

END, BEGIN = 0, 1  # special tokens
SPECIAL = ["<|end|>", "<|begin|>"]
WIDTH, LAYERS, HEADS, POSITIONS = 32, 2, 4, 48

TEMPLATE = (
    "{% for message in messages %}{{ bos_token + message['role'] }}: {{ message['content'] | trim }}{{ eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}{{ bos_token }}assistant:{% endif %}"
)


def tokenizer() -> tokenizers.Tokenizer:
    """BPE over bytes; special tokens are in no text unless it names them."""
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "a"), ("Ã", "©")]
    result = byte_level_bpe(SPECIAL, merges)
    result.decoder = tokenizers.decoders.ByteLevel()
    result.add_special_tokens(SPECIAL)
    return result


VOCABULARY = tokenizer().get_vocab_size()


def config(**changes: Any) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": VOCABULARY,
        "n_embd": WIDTH,
        "n_layer": LAYERS,
        "n_head": HEADS,
        "n_positions": POSITIONS,
        "eos_token_id": None,
        "bos_token_id": BEGIN,
        **changes,
    }


def tensors(vocab: int = VOCABULARY, positions: int = POSITIONS) -> dict[str, Array]:
    """Random weights, large enough that tokens depend on all that is before them."""
    rng = np.random.default_rng(5)

    def normal(*shape: int, scale: float) -> Array:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    result = {"wte.weight": normal(vocab, WIDTH, scale=0.4), "wpe.weight": normal(positions, WIDTH, scale=0.6)}
    shapes = {"attn.c_attn": (WIDTH, 3 * WIDTH), "attn.c_proj": (WIDTH, WIDTH)}
    shapes |= {"mlp.c_fc": (WIDTH, 4 * WIDTH), "mlp.c_proj": (4 * WIDTH, WIDTH)}
    norms = ["ln_f", *(f"h.{i}.{name}" for i in range(LAYERS) for name in ("ln_1", "ln_2"))]
    for i in range(LAYERS):
        for name, shape in shapes.items():
            result[f"h.{i}.{name}.weight"] = normal(*shape, scale=2 / np.sqrt(shape[0]))
            result[f"h.{i}.{name}.bias"] = normal(shape[1], scale=0.1)
    for name in norms:
        result[f"{name}.weight"] = 1 + normal(WIDTH, scale=0.1)
        result[f"{name}.bias"] = normal(WIDTH, scale=0.1)
    return result


def write(directory: Path, files: dict[str, Any] | None = None, **changes: Any) -> Path:
    """The files of the model. `changes` are entries of config.json; a file that is None is left out."""
    contents: dict[str, Any] = {
        "config.json": config(**changes),
        "tokenizer.json": tokenizer().to_str(),
        "tokenizer_config.json": {
            "bos_token": SPECIAL[BEGIN],
            "eos_token": {"content": SPECIAL[END], "special": True},
            "chat_template": TEMPLATE,
        },
        **(files or {}),
    }
    weights = tensors(changes.get("vocab_size", VOCABULARY), changes.get("n_positions", POSITIONS))
    return write_folder(directory, contents, {f"transformer.{name}": tensor for name, tensor in weights.items()})

"""A tiny GPT-2 with random weights as transformers saves it, whose tokens are bytes and some words of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tiny_generators
import tokenizers
from checkpoints import byte_level_bpe, random_weights, write_folder

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


def tensors(settings: dict[str, Any]) -> dict[str, Array]:
    """Random weights, large enough that tokens depend on all that is before them."""
    tables = {"transformer.wte.weight": 0.4, "transformer.wpe.weight": 0.6}
    shapes = tiny_generators.shapes(settings)  # norms are drawn last: tests look for texts that these weights write
    shapes = dict(sorted(shapes.items(), key=lambda entry: ("ln_" in entry[0], "ln_f" not in entry[0])))

    def size(name: str) -> float:
        return tables.get(name) or (0.1 if len(shapes[name]) == 1 else 2 / np.sqrt(shapes[name][0]))

    return random_weights(shapes, size, seed=5)


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
    return write_folder(directory, contents, tensors(config(**changes)))

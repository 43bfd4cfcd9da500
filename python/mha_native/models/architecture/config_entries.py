"""Entries of config.json that mean the same in models of any kind."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...functions.messages import shown
from ..files.json_files import read_size

# Activations: the name in config.json, and the name in the core.
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}

# Of families whose feed-forward may be gated, too.
LATER_ACTIVATIONS = {**ACTIVATIONS, "silu": "silu", "swish": "silu"}

# Entries that change what a model computes, and are empty or absent in one that is computed here.
ABSENT = {
    "auto_map": "the model has code of its own",
    "quantization_config": "weights must be in float32, float16 or bfloat16",
    "pruned_heads": "every layer must have all its heads",
}

# What config.json calls the types of layers.
FULL, SLIDING = "full_attention", "sliding_attention"

# The deepest models have some 130. Each is described before weights are looked for, however many config.json names.
_MOST_LAYERS = 4096


def refuse_present(path: Path, values: Mapping[str, Any], absent: Mapping[str, str]) -> None:
    """ValueError if what was read from `path` has one of the entries `absent`, which say why it must not."""
    for name, why in absent.items():
        if values.get(name):
            raise ValueError(f"{path}: {name} must be absent, since {why}; got {shown(values[name])}")


def width_of_heads(path: Path, names: tuple[str, str], embed_dim: int, num_heads: int) -> int:
    """E / H, which have entries of these names. ValueError unless the former is a multiple of the latter."""
    if embed_dim % num_heads:
        raise ValueError(f"{path}: {names[0]} must be a multiple of {names[1]}; got {embed_dim} and {num_heads}")
    return embed_dim // num_heads


def read_layer_count(path: Path, values: Mapping[str, Any], name: str) -> int:
    """The number of layers that differ from one another."""
    count = read_size(path, values, name)
    if count > _MOST_LAYERS:
        raise ValueError(f"{path}: {name} must be at most {_MOST_LAYERS}; got {shown(count)}")
    return count


def read_layer_types(path: Path, values: Mapping[str, Any], name: str, num_layers: int) -> list[str] | None:
    """The type of each layer, `FULL` or `SLIDING`; None if the file does not say it."""
    given = values.get(name)
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != num_layers or any(kind not in (FULL, SLIDING) for kind in given):
        raise ValueError(f"{path}: {name} must be a list of {num_layers} {FULL!r} or {SLIDING!r}; got {shown(given)}")
    return given


def read_tokens(path: Path, values: Mapping[str, Any], name: str, vocab_size: int) -> tuple[int, ...]:
    """The tokens that an entry says: one, several or none."""
    given = values.get(name)
    tokens = given if isinstance(given, list) else [] if given is None else [given]
    if not all(type(token) is int and 0 <= token < vocab_size for token in tokens):
        raise ValueError(f"{path}: {name} must be of tokens from 0 to {vocab_size - 1}; got {shown(given)}")
    return tuple(dict.fromkeys(tokens))

"""Entries of config.json that several families have, each checked."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..._messages import shown
from .._model_files import MAX_SIZE, read_choice, read_size
from .family import Family

# Activations: the name in config.json, and the name in the core.
_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}

# Of the families that came after BERT.
_LATER_ACTIVATIONS = _ACTIVATIONS | {"silu": "silu", "swish": "silu"}

# Entries of config.json that change what a model computes, and are empty or absent in one that is computed here.
_ABSENT = {
    "auto_map": "the model has code of its own",
    "quantization_config": "weights must be in float32, float16 or bfloat16",
    "pruned_heads": "every layer must have all its heads",
}

_MOST_LAYERS = 4096  # of a family whose layers differ: encoders have up to some 50


def check_is_encoder(path: Path, values: Mapping[str, Any], family: Family) -> None:
    """ValueError if config.json, read from `path`, describes what no encoder of the family computes."""
    read_choice(path, values, "is_decoder", False, False)
    read_choice(path, values, "add_cross_attention", False, False)
    for name, why in {**_ABSENT, **family.absent}.items():
        if values.get(name):
            raise ValueError(f"{path}: {name} must be absent, since {why}; got {shown(values[name])}")


def read_activation(path: Path, values: Mapping[str, Any], name: str, default: str, later: bool = False) -> str:
    """The activation that the entry `name` asks for, as the core calls it; `later`: of a family after BERT."""
    activations = _LATER_ACTIVATIONS if later else _ACTIVATIONS
    return activations[read_choice(path, values, name, default, *activations)]


def read_heads(path: Path, values: Mapping[str, Any], embed_dim: str, num_heads: str) -> tuple[int, int, int]:
    """E, H and D = E / H, of which the first two have entries of these names."""
    width, heads = read_size(path, values, embed_dim), read_size(path, values, num_heads)
    if width % heads:
        raise ValueError(f"{path}: {embed_dim} must be a multiple of {num_heads}; got {width} and {heads}")
    return width, heads, width // heads


def read_layer_count(path: Path, values: Mapping[str, Any], name: str) -> int:
    """The number of layers that differ from one another."""
    count = read_size(path, values, name)
    if count > _MOST_LAYERS:
        raise ValueError(f"{path}: {name} must be at most {_MOST_LAYERS}; got {shown(count)}")
    return count


def read_fraction(path: Path, values: Mapping[str, Any], name: str, default: float) -> float:
    """A positive number that has a point in the file."""
    value = values.get(name, default)
    if type(value) is not float or not 0 < value < math.inf:
        raise ValueError(f"{path}: {name} must be a positive number; got {shown(value)}")
    return value


def read_token(path: Path, values: Mapping[str, Any], name: str, default: int) -> int:
    """The number of a token."""
    value = values.get(name, default)
    if type(value) is not int or not 0 <= value < MAX_SIZE:
        raise ValueError(f"{path}: {name} must be an integer of at least 0; got {shown(value)}")
    return value

"""Entries of config.json that mean the same in models of any kind."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._messages import shown

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


def refuse_present(path: Path, values: Mapping[str, Any], absent: Mapping[str, str]) -> None:
    """ValueError if what was read from `path` has one of the entries `absent`, which say why it must not."""
    for name, why in absent.items():
        if values.get(name):
            raise ValueError(f"{path}: {name} must be absent, since {why}; got {shown(values[name])}")

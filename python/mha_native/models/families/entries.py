"""Entries of config.json that several families have, each checked."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..._messages import shown
from .._model_config import ABSENT, refuse_present
from .._model_files import read_choice, read_size
from .family import Family

_MOST_LAYERS = 4096  # of a family whose layers differ: encoders have up to some 50


def check_is_encoder(path: Path, values: Mapping[str, Any], family: Family) -> None:
    """ValueError if config.json, read from `path`, describes what no encoder of the family computes."""
    read_choice(path, values, "is_decoder", False, False)
    read_choice(path, values, "add_cross_attention", False, False)
    refuse_present(path, values, {**ABSENT, **family.absent})


def read_heads(path: Path, values: Mapping[str, Any], embed_dim: str, num_heads: str) -> tuple[int, int]:
    """E and H, which have entries of these names. ValueError unless the former is a multiple of the latter."""
    width, heads = read_size(path, values, embed_dim), read_size(path, values, num_heads)
    if width % heads:
        raise ValueError(f"{path}: {embed_dim} must be a multiple of {num_heads}; got {width} and {heads}")
    return width, heads


def read_layer_count(path: Path, values: Mapping[str, Any], name: str) -> int:
    """The number of layers that differ from one another."""
    count = read_size(path, values, name)
    if count > _MOST_LAYERS:
        raise ValueError(f"{path}: {name} must be at most {_MOST_LAYERS}; got {shown(count)}")
    return count

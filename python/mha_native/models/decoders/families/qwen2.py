"""Qwen2: biases of query, key and value; the last layers may see the last tokens only."""

from ..entries import Entries
from ..family import Family, Keys
from .llama import DEFAULTS

SLIDING = {"sliding_window": 4096, "max_window_layers": 28}


def window(entries: Entries) -> int | None:
    """The tokens that sliding layers see, if there are any."""
    return entries.size_or_none("sliding_window") if entries.flag("use_sliding_window") else None


def is_sliding(entries: Entries, i: int) -> bool:
    """Whether layer `i` is one of the last."""
    return i >= entries.count("max_window_layers")


FAMILY = Family(
    model_types=("qwen2",),
    keys=Keys(layer_types="layer_types"),
    defaults={**DEFAULTS, **SLIDING, "num_key_value_heads": 32},
    biases={"": frozenset({"query", "key", "value"})},
    window=window,
    is_sliding=is_sliding,
)

"""Qwen2: Llama with biases of query, key and value, and a window in the last layers."""

from ..files.entries import Entries
from .llama import FAMILY as LLAMA
from .mistral import window


def _window(entries: Entries) -> tuple[int, int] | None:
    return window(entries) if entries.flag("use_sliding_window") else None


def _is_sliding(entries: Entries, i: int) -> bool:
    return i >= entries.count("max_window_layers")


FAMILY = LLAMA._replace(
    model_types=("qwen2",),
    keys=LLAMA.keys._replace(layer_types="layer_types"),
    defaults={**LLAMA.defaults, "sliding_window": 4096, "max_window_layers": 28, "num_key_value_heads": 32},
    biases={"": frozenset({"query", "key", "value"})},
    window=_window,
    is_sliding=_is_sliding,
)

"""Mistral: Llama without biases, of which each layer may see the last tokens only."""

from ..entries import Entries
from ..family import Family
from .llama import DEFAULTS


def _window(entries: Entries) -> int | None:
    return entries.size_or_none("sliding_window")


def _is_sliding(entries: Entries, i: int) -> bool:
    return True


FAMILY = Family(
    model_types=("mistral",),
    defaults={**DEFAULTS, "num_key_value_heads": 8, "sliding_window": 4096},
    window=_window,
    is_sliding=_is_sliding,
)

"""Mistral: Llama without biases, and with a window in every layer."""

from ..files.entries import Entries
from .llama import FAMILY as LLAMA


def window(entries: Entries) -> tuple[int, int] | None:
    """Return the window of ``sliding_window`` tokens, the token itself included; None for null."""
    tokens = entries.size_or_none("sliding_window")
    return None if tokens is None else (tokens - 1, 0)


def is_sliding(entries: Entries, i: int) -> bool:
    """Return True: every layer has the window."""
    return True


FAMILY = LLAMA._replace(
    model_types=("mistral",),
    defaults={**LLAMA.defaults, "num_key_value_heads": 8, "sliding_window": 4096},
    biases={},
    window=window,
    is_sliding=is_sliding,
)

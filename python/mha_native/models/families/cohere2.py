"""Cohere's Command R7B and A: Command R with windows in most layers. Only these are rotated."""

from ..files.entries import Entries
from .cohere import FAMILY as COHERE


def _window(entries: Entries) -> tuple[int, int]:
    return entries.size("sliding_window") - 1, 0


def _is_sliding(entries: Entries, i: int) -> bool:
    return (i + 1) % entries.size("sliding_window_pattern") != 0


def _rotates(entries: Entries, i: int, has_window: bool) -> bool:
    return has_window


FAMILY = COHERE._replace(
    model_types=("cohere2",),
    keys=COHERE.keys._replace(layer_types="layer_types"),
    defaults={**COHERE.defaults, "sliding_window": 4096, "sliding_window_pattern": 4},
    refused={name: why for name, why in COHERE.refused.items() if name != "use_qk_norm"},
    bases={"": ("rope_theta", 10_000.0)},
    rotates=_rotates,
    window=_window,
    is_sliding=_is_sliding,
)

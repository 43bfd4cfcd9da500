"""EXAONE 4: OLMo 2 with norms of single heads; with windows in most layers, only these are rotated."""

from ..files.entries import Entries
from .mistral import window
from .olmo2 import FAMILY as OLMO2


def _is_sliding(entries: Entries, i: int) -> bool:
    return (i + 1) % entries.size("sliding_window_pattern") != 0


def _rotates(entries: Entries, i: int, has_window: bool) -> bool:
    return has_window or not entries.has("sliding_window")


FAMILY = OLMO2._replace(
    model_types=("exaone4",),
    keys=OLMO2.keys._replace(layer_types="layer_types"),
    defaults={**OLMO2.defaults, "num_key_value_heads": 32, "sliding_window": 4096, "sliding_window_pattern": 4},
    joint_qk_norm=False,
    qk_norm=True,
    biases={},
    rotates=_rotates,
    window=window,
    is_sliding=_is_sliding,
)

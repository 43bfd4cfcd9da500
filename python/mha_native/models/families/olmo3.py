"""OLMo 3: OLMo 2 with windows in three of four layers, where positions are never scaled."""

from ..architecture.family import FULL, SLIDING
from ..files.entries import Entries
from .mistral import window
from .olmo2 import FAMILY as OLMO2


def _is_sliding(entries: Entries, i: int) -> bool:
    return (i + 1) % 4 != 0


FAMILY = OLMO2._replace(
    model_types=("olmo3",),
    keys=OLMO2.keys._replace(layer_types="layer_types"),
    defaults={**OLMO2.defaults, "sliding_window": 4096},
    bases={FULL: ("rope_theta", 500_000.0), SLIDING: ("rope_theta", 500_000.0)},
    window=window,
    is_sliding=_is_sliding,
)

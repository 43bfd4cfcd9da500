"""OLMo 3: OLMo 2 with windows in three of four layers, where positions are never scaled."""

from ...functions.messages import shown
from ..architecture.config import ModelConfig
from ..architecture.family import FULL, SLIDING, Family, described
from ..files.entries import Entries
from .mistral import window
from .olmo2 import FAMILY as OLMO2

_BASE = 500_000.0


def _describe(family: Family, given: Entries, role: str, max_positions: int | None = None) -> ModelConfig:
    # transformers takes another base for the layers without a window alone.
    if given.positive("rope_theta", _BASE) != _BASE:
        raise ValueError(f"{given.path}: rope_theta must be {_BASE:.0f}; got {shown(given.values['rope_theta'])}")
    return described(family, given, role, max_positions)


def _is_sliding(entries: Entries, i: int) -> bool:
    return (i + 1) % 4 != 0


FAMILY = OLMO2._replace(
    model_types=("olmo3",),
    keys=OLMO2.keys._replace(layer_types="layer_types"),
    defaults={**OLMO2.defaults, "sliding_window": 4096},
    bases={FULL: ("rope_theta", _BASE), SLIDING: ("rope_theta", _BASE)},
    window=window,
    is_sliding=_is_sliding,
    describe=_describe,
)

"""SmolLM3: Llama without rotation in every fourth layer."""

from ...functions.messages import shown
from ..architecture.family import GENERATION
from ..files.entries import Entries
from .llama import FAMILY as LLAMA
from .mistral import window


def _rotates(entries: Entries, i: int, has_window: bool) -> bool:
    if not entries.has("no_rope_layers"):
        return (i + 1) % entries.size("no_rope_layer_interval") != 0
    given = entries.values["no_rope_layers"]
    if not isinstance(given, list) or len(given) <= i or any(flag not in (0, 1) for flag in given):
        raise ValueError(f"{entries.path}: no_rope_layers must be a list of 0 or 1 for each layer; got {shown(given)}")
    return bool(given[i])


def _window(entries: Entries) -> tuple[int, int] | None:
    return window(entries) if entries.flag("use_sliding_window") else None


def _is_sliding(entries: Entries, i: int) -> bool:
    return not _rotates(entries, i, False)


FAMILY = LLAMA._replace(
    model_types=("smollm3",),
    roles=frozenset({GENERATION}),
    keys=LLAMA.keys._replace(layer_types="layer_types"),
    defaults={
        **LLAMA.defaults,
        "num_key_value_heads": 4,
        "no_rope_layer_interval": 4,
        "tie_word_embeddings": True,
    },
    bases={"": ("rope_theta", 2_000_000.0)},
    rotates=_rotates,
    window=_window,
    is_sliding=_is_sliding,
)

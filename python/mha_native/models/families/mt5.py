"""mT5: T5 1.1 for many languages, with other defaults."""

from ..architecture.config import ModelConfig
from ..architecture.family import Family
from ..files.entries import Entries
from .t5 import FAMILY as T5
from .t5 import describe


def _describe(family: Family, given: Entries, role: str, max_positions: int | None = None) -> ModelConfig:
    # Its logits are not scaled, whatever files say of ties.
    entries = given._replace(values={**given.values, "scale_decoder_outputs": False})
    return describe(family, entries, role, max_positions)


FAMILY = T5._replace(
    model_types=("mt5",),
    defaults={
        **T5.defaults,
        "vocab_size": 250112,
        "d_ff": 1024,
        "num_layers": 8,
        "num_heads": 6,
        "feed_forward_proj": "gated-gelu",
        "decoder_start_token_id": 0,
    },
    describe=_describe,
)

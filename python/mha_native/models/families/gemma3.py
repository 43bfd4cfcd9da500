"""Gemma 3, text only: Gemma 2 with norms of heads in place of the cap, and other rotary bases in sliding layers."""

from ..architecture.config import BlockConfig, ModelConfig
from ..architecture.family import EMBEDDING, FULL, GENERATION, SLIDING, Family, described
from ..files.entries import Entries
from .gemma2 import FAMILY as GEMMA2

_BIDIRECTIONAL = "use_bidirectional_attention"


def _is_sliding(entries: Entries, i: int) -> bool:
    return (i + 1) % entries.size("sliding_window_pattern") != 0


def _describe(family: Family, given: Entries, role: str, max_positions: int | None = None) -> ModelConfig:
    if role != EMBEDDING or not (given.has(_BIDIRECTIONAL) and given.flag(_BIDIRECTIONAL)):
        return described(family, given, role, max_positions)
    others = {name: value for name, value in given.values.items() if name != _BIDIRECTIONAL}
    config = described(family, given._replace(values=others), role, max_positions)
    (stack,) = config.stacks
    blocks = tuple(map(_with_both_sides, stack.blocks))
    return config._replace(stacks=(stack._replace(blocks=blocks, is_causal=False),))


def _with_both_sides(block: BlockConfig) -> BlockConfig:
    """Return the block with a window of w // 2 tokens on each side in place of w tokens up to a query."""
    if block.window is None:
        return block
    radius = (block.window[0] + 1) // 2
    return block._replace(window=(radius, radius))


FAMILY = GEMMA2._replace(
    model_types=("gemma3_text",),
    roles=frozenset({EMBEDDING, GENERATION}),
    keys=GEMMA2.keys._replace(softcap=""),
    defaults={
        **GEMMA2.defaults,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "sliding_window_pattern": 6,
    },
    refused={**GEMMA2.refused, "attn_logit_softcapping": "transformers does not compute it"},
    qk_norm=True,
    bases={FULL: ("rope_theta", 1e6), SLIDING: ("rope_local_base_freq", 1e4)},
    is_sliding=_is_sliding,
    describe=_describe,
)

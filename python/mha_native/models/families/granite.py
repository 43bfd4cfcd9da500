"""Granite: Llama with multipliers of embeddings, scores, results of sublayers, and logits."""

from ..architecture.config import ModelConfig
from ..architecture.family import GENERATION, Family, described
from ..architecture.norms import NormConfig
from ..files.entries import Entries
from .llama import FAMILY as LLAMA


def _scale(entries: Entries, i: int) -> float:
    return entries.positive("attention_multiplier")


def _describe(family: Family, given: Entries, role: str, max_positions: int | None = None) -> ModelConfig:
    """Describe the model with a residual stream that is divided by the multiplier of results.

    Norms of its rows are the same with ``eps`` divided by the square of the multiplier. So no matrix changes.
    """
    entries = given._replace(values={**family.defaults, **given.values})
    residual = entries.positive("residual_multiplier")
    config = described(family, given, role, max_positions)
    (stack,) = config.stacks

    def divided(norm: NormConfig) -> NormConfig:
        return norm._replace(eps=norm.eps / residual**2)

    stack = stack._replace(
        front_end=stack.front_end._replace(scale=entries.positive("embedding_multiplier") / residual),
        blocks=tuple(block._replace(norm=divided(block.norm)) for block in stack.blocks),
        final_norm=divided(stack.blocks[0].norm),
    )
    head = None if config.head is None else config.head._replace(scale=1 / entries.positive("logits_scaling"))
    return config._replace(stacks=(stack,), head=head)


FAMILY = LLAMA._replace(
    model_types=("granite",),
    roles=frozenset({GENERATION}),
    defaults={
        **LLAMA.defaults,
        **dict.fromkeys(("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"), 1.0),
    },
    scale=_scale,
    describe=_describe,
)

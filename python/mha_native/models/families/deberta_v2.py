"""DeBERTa v2 and v3: BERT with disentangled attention, often without positions in the embeddings."""

import math
from typing import Any

from ...functions.messages import shown
from ..architecture.config import ATTENTION, FEED_FORWARD, POSITIONS, ModelConfig, RelativeConfig
from ..architecture.family import Family, described, width_of_heads
from ..files.entries import Entries
from .bert import FAMILY as BERT
from .bert import NAMES

_TERMS = {"c2p": "position_key", "p2c": "position_query"}

# A larger distance than in any model.
_MOST_DISTANCE = 1 << 14


def _terms(entries: Entries) -> set[str]:
    """Return which products with positions are added to scores, from a list or from names between bars."""
    given: Any = entries.values["pos_att_type"]
    terms = [term.strip() for term in given.lower().split("|")] if isinstance(given, str) else given
    if terms is None:
        return set()
    if not isinstance(terms, list) or not all(isinstance(term, str) and term in _TERMS for term in terms):
        raise ValueError(f"{entries.path}: pos_att_type must be a list of 'c2p' or 'p2c'; got {shown(given)}")
    return set(terms)


def _relative(entries: Entries, terms: set[str], norm: Any) -> RelativeConfig:
    """Return the table of relative positions. Numbers below 1 stand for a default."""
    farthest, span = (
        entries.size(name) if type(given := entries.values[name]) is not int or given >= 1 else None
        for name in ("max_relative_positions", "position_buckets")
    )
    farthest = farthest or entries.size("max_position_embeddings")
    norms = entries.values["norm_rel_ebd"]
    if not isinstance(norms, str):
        raise ValueError(f"{entries.path}: norm_rel_ebd must be a string, such as 'layer_norm'; got {shown(norms)}")
    has_norm = "layer_norm" in [part.strip() for part in norms.lower().split("|")]
    if farthest > _MOST_DISTANCE:
        raise ValueError(
            f"{entries.path}: max_relative_positions, or else max_position_embeddings, must be at most "
            f"{_MOST_DISTANCE}; got {shown(farthest)}"
        )
    # Logarithms of distances beyond half the buckets are compared with the farthest one.
    if span is not None and not 2 <= span < 2 * farthest - 2:
        raise ValueError(
            f"{entries.path}: position_buckets must be at least 2, and half of them less than max_relative_positions "
            f"({farthest}) - 1; got {span}"
        )
    return RelativeConfig(
        span=span or farthest,
        max_distance=None if span is None else farthest,
        norm=norm if has_norm else None,
        to_positions="c2p" in terms,
        from_positions="p2c" in terms,
    )


def _describe(family: Family, given: Entries, role: str, max_positions: int | None = None) -> ModelConfig:
    entries = given._replace(values={**family.defaults, **given.values})
    head_dim = width_of_heads(entries, "hidden_size", "num_attention_heads")
    entries.expect({"attention_head_size": head_dim, "embedding_size": entries.size("hidden_size")})
    if type(entries.values["conv_kernel_size"]) is not int or entries.values["conv_kernel_size"] > 0:
        raise ValueError(
            f"{entries.path}: conv_kernel_size must be 0, since the convolution after the first layer is unsupported; "
            f"got {shown(entries.values['conv_kernel_size'])}"
        )
    config, terms = described(family, given, role, max_positions), _terms(entries)
    (stack,) = config.stacks
    is_relative, is_shared = entries.flag("relative_attention"), entries.flag("share_att_key")
    own = frozenset(_TERMS[term] for term in terms) if is_relative and not is_shared else frozenset[str]()
    scale = 1 / math.sqrt(head_dim * (1 + len(terms)))
    stack = stack._replace(
        front_end=stack.front_end._replace(has_positions=entries.flag("position_biased_input")),
        blocks=tuple(block._replace(scale=scale, own_positions=own) for block in stack.blocks),
        relative=_relative(entries, terms, stack.front_end.norm) if is_relative and terms else None,
    )
    return config._replace(stacks=(stack,))


FAMILY = BERT._replace(
    model_types=("deberta-v2",),
    prefix="deberta.",
    stacks=(
        NAMES._replace(
            blocks=NAMES.blocks._replace(
                query="attention.self.query_proj",
                key="attention.self.key_proj",
                value="attention.self.value_proj",
                position_key="attention.self.pos_key_proj",
                position_query="attention.self.pos_query_proj",
            ),
            relative="encoder.rel_embeddings.weight",
            relative_norm="encoder.LayerNorm",
        ),
    ),
    defaults={
        **BERT.defaults,
        "layer_norm_eps": 1e-7,
        "type_vocab_size": 0,
        "relative_attention": False,
        "max_relative_positions": -1,
        "position_biased_input": True,
        "position_buckets": -1,
        "share_att_key": False,
        "pos_att_type": None,
        "norm_rel_ebd": "none",
        "conv_kernel_size": 0,
    },
    fewest_types=0,
    biases={"": ATTENTION | FEED_FORWARD | POSITIONS},
    describe=_describe,
)

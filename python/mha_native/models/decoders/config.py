"""What config.json says of a decoder, as data."""

import math

from ..architecture.build import BlockConfig, NormConfig
from ..architecture.config_entries import (
    ABSENT,
    FULL,
    LATER_ACTIVATIONS,
    SLIDING,
    read_layer_count,
    read_layer_types,
    refuse_present,
    width_of_heads,
)
from ..architecture.rotary import RotaryConfig, read_rotary
from .entries import Entries
from .families import FAMILIES
from .family import Family
from .source import DecoderConfig, ModelSource

_ABSENT = {**ABSENT, "per_layer_config": "layers must differ by what the family says alone"}


def family_of(source: ModelSource) -> Family:
    """The family of a model. ValueError, with a list of those that there are, if it is another one."""
    return FAMILIES[Entries(source.path, source.config).choice("model_type", *FAMILIES)]


def read_config(source: ModelSource, max_positions: int | None = None) -> DecoderConfig:
    """What a model computes.

    Parameters
    ----------
    source : ModelSource
    max_positions : int, optional
        The most tokens of a text. Default: what config.json says, beyond which it must not be where positions are
        learned. Rules of rotary positions that depend on the length of a text take this one.

    Raises
    ------
    ValueError
        If config.json says what cannot be, or what is not computed.
    """
    return described(family_of(source), Entries(source.path, source.config), max_positions)


def described(family: Family, given: Entries, max_positions: int | None = None) -> DecoderConfig:
    """What a model of this family computes, of which config.json says what is `given`: see `read_config`."""
    path = given.path
    entries, keys = Entries(path, {**family.defaults, **given.values}), family.keys
    refuse_present(path, entries.values, {**_ABSENT, **family.absent})
    for name, expected in (("is_causal", True), ("add_cross_attention", False), ("is_encoder_decoder", False)):
        if name in entries.values:
            entries.choice(name, expected)
    trained_positions = entries.size(keys.max_positions)
    max_positions = trained_positions if max_positions is None else max_positions
    if max_positions > trained_positions and family.names.positions is not None:
        raise ValueError(
            f"{path}: max_length must be at most {keys.max_positions}, {trained_positions}; got {max_positions}"
        )
    width = entries.size(keys.embed_dim)
    return DecoderConfig(
        vocab_size=entries.size("vocab_size"),
        embed_dim=width,
        trained_positions=trained_positions,
        max_positions=max_positions,
        blocks=tuple(_blocks(entries, family, trained_positions, max_positions)),
        final_norm=_norm(entries, family),
        embedding_scale=math.sqrt(width) if family.scales_embeddings else 1.0,
        logit_softcap=None if keys.logit_softcap is None else entries.positive_or_none(keys.logit_softcap),
        is_tied=entries.flag("tie_word_embeddings"),
        has_positions=family.names.positions is not None,
    )


def _norm(entries: Entries, family: Family) -> NormConfig:
    return NormConfig(family.norm, entries.eps(family.keys.eps), bias=family.norm == "layer")


def _blocks(entries: Entries, family: Family, trained_positions: int, max_positions: int) -> list[BlockConfig]:
    """What each layer computes."""
    keys, norm = family.keys, _norm(entries, family)
    width, num_heads = entries.size(keys.embed_dim), entries.size(keys.num_heads)
    num_layers = read_layer_count(entries.path, entries.values, keys.num_layers)
    num_kv_heads = (keys.num_kv_heads and entries.size_or_none(keys.num_kv_heads)) or num_heads
    if num_heads % num_kv_heads:
        raise ValueError(
            f"{entries.path}: {keys.num_heads} must be a multiple of {keys.num_kv_heads}; "
            f"got {num_heads} and {num_kv_heads}"
        )
    head_dim = keys.head_dim and entries.size_or_none(keys.head_dim)
    head_dim = head_dim or width_of_heads(entries.path, (keys.embed_dim, keys.num_heads), width, num_heads)
    tables = _rotary(entries, family, head_dim, trained_positions, max_positions)
    block = BlockConfig(
        embed_dim=width,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        feedforward_dim=_feedforward_dim(entries, family, width),
        activation=LATER_ACTIVATIONS[entries.choice(keys.activation, *LATER_ACTIVATIONS)],
        norm=norm,
        norms=family.norms,
        gated=family.gated,
        biases=frozenset().union(*(parts for flag, parts in family.biases.items() if not flag or entries.flag(flag))),
        qk_norm=norm if family.qk_norm else None,
        softcap=None if keys.softcap is None else entries.positive_or_none(keys.softcap),
    )
    window = family.window(entries)
    types = _layer_types(entries, family, window, num_layers)
    return [
        block._replace(
            rotary=tables.get(types[i], tables.get("")),
            window=(window - 1, 0) if window is not None and types[i] == SLIDING else None,
            scale=family.scale(entries, i),
        )
        for i in range(num_layers)
    ]


def _feedforward_dim(entries: Entries, family: Family, width: int) -> int:
    name = family.keys.feedforward_dim
    if family.usual_feedforward is not None and entries.values.get(name) is None:
        return family.usual_feedforward * width
    return entries.size(name)


def _rotary(
    entries: Entries, family: Family, head_dim: int, trained_positions: int, max_positions: int
) -> dict[str, RotaryConfig]:
    """How queries and keys are turned, by type of layer; "" for all types."""
    if not family.bases:
        return {}
    tables = read_rotary(entries.path, entries.values, head_dim, trained_positions, max_positions, family.bases)
    for rotary in tables.values():
        if 2 * len(rotary.frequencies) != head_dim:
            raise ValueError(
                f"{entries.path}: partial_rotary_factor must be such that all {head_dim} features of a head "
                f"are turned; got one by which {2 * len(rotary.frequencies)} are"
            )
    return tables


def _layer_types(entries: Entries, family: Family, window: int | None, num_layers: int) -> list[str]:
    name = family.keys.layer_types
    given = None if name is None else read_layer_types(entries.path, entries.values, name, num_layers)
    if given is None:
        return [SLIDING if window is not None and family.is_sliding(entries, i) else FULL for i in range(num_layers)]
    if window is None and SLIDING in given:
        raise ValueError(f"{entries.path}: {name} must not have {SLIDING!r} where there is no sliding_window")
    return given

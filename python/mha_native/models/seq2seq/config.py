"""What config.json says of an encoder-decoder, as data."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...functions.messages import shown
from ..architecture.build import BlockConfig, NormConfig
from ..architecture.config_entries import ABSENT, ACTIVATIONS, read_layer_count, refuse_present, width_of_heads
from ..decoders.entries import Entries
from ..decoders.source import ModelSource
from .families import FAMILIES
from .family import Family, StackKeys, StackNames

_USUAL_EPS = 1e-5

_ACTIVATIONS = {**ACTIVATIONS, "silu": "silu"}

# Models have up to 1024. The table is computed, and with 1024 features takes 64 MiB.
_MOST_SINES = 1 << 14

# Models have 128. The table of the bias has two columns for each.
_MOST_DISTANCE = 4096


class Seq2SeqConfig(NamedTuple):
    """What an encoder-decoder computes.

    Attributes
    ----------
    max_positions : int, optional
        P, the most tokens of a text, that the encoder reads or the decoder; None: there may be any number.
    encoder, decoder : tuple of BlockConfig
        The layers; what a decoder's layer reads of the memory is besides.
    norm : NormConfig
        Of all norms.
    embedding_scale, output_scale : float
        What embeddings are multiplied with, and what the head reads.
    num_buckets, max_distance : int, optional
        Of the bias by distance, if there is one.
    """

    vocab_size: int  # V
    embed_dim: int  # E
    max_positions: int | None
    encoder: tuple[BlockConfig, ...]
    decoder: tuple[BlockConfig, ...]
    norm: NormConfig
    embedding_scale: float
    output_scale: float
    is_tied: bool
    num_buckets: int | None = None
    max_distance: int | None = None


def family_of(source: ModelSource) -> Family:
    """The family of a model. ValueError, with a list of those that there are, if it is another one."""
    return FAMILIES[Entries(source.path, source.config).choice("model_type", *FAMILIES)]


def read_config(source: ModelSource) -> Seq2SeqConfig:
    """What a model computes.

    Raises
    ------
    ValueError
        If config.json says what cannot be, or what is not computed.
    """
    return described(family_of(source), source.path, source.config)


def described(family: Family, path: Path, values: Mapping[str, Any]) -> Seq2SeqConfig:
    """What a model of a family computes, by the entries of config.json, which is at `path`."""
    entries, keys = Entries(path, {**family.defaults, **values}), family.keys
    refuse_present(path, entries.values, {**ABSENT, **family.absent})
    for name, expected in family.expected.items():
        if name in entries.values:
            entries.choice(name, expected)
    width = entries.size(keys.embed_dim)
    norm = NormConfig(
        family.norm, _USUAL_EPS if keys.eps is None else entries.eps(keys.eps), bias=family.norm == "layer"
    )
    is_tied = entries.flag("tie_word_embeddings")
    scales_output = False
    if keys.scales_output is not None:  # where it is not said, a model whose head is its own does not
        scales_output = is_tied if entries.values.get(keys.scales_output) is None else entries.flag(keys.scales_output)
    num_buckets = None if keys.num_buckets is None else _num_buckets(entries, keys.num_buckets)
    return Seq2SeqConfig(
        vocab_size=entries.size("vocab_size"),
        embed_dim=width,
        max_positions=None if keys.max_positions is None else _max_positions(entries, family, keys.max_positions),
        encoder=_blocks(entries, family, keys.encoder, family.encoder, norm),
        decoder=_blocks(entries, family, keys.decoder, family.decoder, norm),
        norm=norm,
        embedding_scale=math.sqrt(width) if keys.scales_embeddings and entries.flag(keys.scales_embeddings) else 1.0,
        output_scale=1 / math.sqrt(width) if scales_output else 1.0,
        is_tied=is_tied,
        num_buckets=num_buckets,
        max_distance=None if num_buckets is None else _max_distance(entries, keys.max_distance, num_buckets),
    )


def _blocks(
    entries: Entries, family: Family, keys: StackKeys, names: StackNames, norm: NormConfig
) -> tuple[BlockConfig, ...]:
    """What each layer of a stack computes, without what it reads of a memory."""
    width, num_heads = entries.size(family.keys.embed_dim), entries.size(keys.num_heads)
    # Where the decoder's number is not said, it is the encoder's.
    depth = keys.num_layers if entries.values.get(keys.num_layers) is not None else family.keys.encoder.num_layers
    num_layers = read_layer_count(entries.path, entries.values, depth)
    if family.keys.head_dim is not None:
        head_dim = entries.size(family.keys.head_dim)
    else:
        head_dim = width_of_heads(entries.path, (family.keys.embed_dim, keys.num_heads), width, num_heads)
    activation, gated = _activation(entries, family)
    block = BlockConfig(
        embed_dim=width,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        feedforward_dim=entries.size(keys.feedforward_dim),
        activation=activation,
        norm=norm,
        norm_first=family.norm_first,
        gated=gated,
        biases=family.biases,
        scale=None if family.scales_scores else 1.0,
    )
    return (block,) * num_layers


def _activation(entries: Entries, family: Family) -> tuple[str, bool]:
    """The name in the core, and whether there is a gate. What says it again must agree."""
    keys, name = family.keys, entries.choice(family.keys.activation, *family.activations)
    activation, gated = family.activations[name]
    if keys.gated is not None and keys.gated in entries.values:
        entries.choice(keys.gated, gated)
    if keys.inner_activation is not None and keys.inner_activation in entries.values:
        entries.choice(keys.inner_activation, *(inner for inner, ours in _ACTIVATIONS.items() if ours == activation))
    return activation, gated


def _max_positions(entries: Entries, family: Family, name: str) -> int:
    count = entries.size(name)
    if family.sinusoidal and count > _MOST_SINES:
        raise ValueError(f"{entries.path}: {name} must be at most {_MOST_SINES}; got {shown(count)}")
    return count


def _num_buckets(entries: Entries, name: str) -> int:
    number = entries.size(name)
    if number < 4 or number % 4:
        raise ValueError(f"{entries.path}: {name} must be a multiple of 4; got {shown(number)}")
    return number


def _max_distance(entries: Entries, name: str, num_buckets: int) -> int:
    """The distance from which on all keys have one bucket; beyond those that have a bucket each, in either stack."""
    distance = entries.size(name)
    if not num_buckets // 2 < distance <= _MOST_DISTANCE:
        raise ValueError(
            f"{entries.path}: {name} must be more than half the buckets, {num_buckets // 2}, and at most "
            f"{_MOST_DISTANCE}; got {distance}"
        )
    return distance

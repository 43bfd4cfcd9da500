"""config.json of a family that is said by how it differs from BERT."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._blocks import BlockConfig, NormConfig
from .._model_files import read_choice, read_size
from .entries import check_is_encoder, read_activation, read_fraction, read_heads, read_token
from .family import Family
from .text_config import TextConfig

_DEFAULT_EPS = 1e-12  # of all families


def read_like_bert(path: Path, values: Mapping[str, Any], family: Family) -> TextConfig:
    """The entries of config.json, read from `path`. ValueError if it says what is not computed."""
    keys = family.keys
    read_choice(path, values, "position_embedding_type", "absolute", "absolute")
    check_is_encoder(path, values, family)
    for name, number in family.fixed.items():
        read_choice(path, values, name, number, number)
    positions = read_size(path, values, "max_position_embeddings")
    padding = None if family.padding is None else read_token(path, values, "pad_token_id", family.padding)
    first = 0 if padding is None else padding + 1
    if positions <= first:
        raise ValueError(
            f"{path}: max_position_embeddings must be more than pad_token_id and 1, behind which positions begin; "
            f"got {positions} and {padding}"
        )
    config = TextConfig(
        family=family,
        vocab_size=read_size(path, values, "vocab_size"),
        embed_dim=read_size(path, values, keys.embed_dim),
        num_layers=read_size(path, values, keys.num_layers),
        num_heads=read_size(path, values, keys.num_heads),
        feedforward_dim=read_size(path, values, keys.feedforward_dim),
        max_positions=positions - first,
        first_position=first,
        padding=padding,
        token_types=0 if keys.token_types is None else read_size(path, values, keys.token_types, 2),
        activation=_ACTIVATIONS[read_choice(path, values, keys.activation, "gelu", *_ACTIVATIONS)],
        eps=_DEFAULT_EPS if keys.eps is None else _positive(path, values, keys.eps, _DEFAULT_EPS),
        further_sizes={name: read_size(path, values, name, default) for name, default in family.further_sizes.items()},
    )
    if config.embed_dim % config.num_heads:
        raise ValueError(
            f"{path}: {keys.embed_dim} must be a multiple of {keys.num_heads}; "
            f"got {config.embed_dim} and {config.num_heads}"
        )
    return config

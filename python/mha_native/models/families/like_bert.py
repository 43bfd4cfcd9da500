"""config.json of a family that is said by how it differs from BERT."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..architecture.build import ATTENTION, FEED_FORWARD, BlockConfig, NormConfig
from ..architecture.config_entries import ACTIVATIONS
from ..files.json_files import read_choice, read_count, read_eps, read_size
from .entries import check_is_encoder, read_heads
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
    padding = None if family.padding is None else read_count(path, values, "pad_token_id", family.padding)
    first = 0 if padding is None else padding + 1
    if positions <= first:
        raise ValueError(
            f"{path}: max_position_embeddings must be more than pad_token_id and 1, behind which positions begin; "
            f"got {positions} and {padding}"
        )
    eps = _DEFAULT_EPS if keys.eps is None else read_eps(path, values, keys.eps, _DEFAULT_EPS)
    norm = NormConfig("layer", eps, bias=True)
    embed_dim, num_heads = read_heads(path, values, keys.embed_dim, keys.num_heads)
    block = BlockConfig(
        embed_dim=embed_dim,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=embed_dim // num_heads,
        feedforward_dim=read_size(path, values, keys.feedforward_dim),
        activation=ACTIVATIONS[read_choice(path, values, keys.activation, "gelu", *ACTIVATIONS)],
        norm=norm,
        norm_first=False,
        biases=ATTENTION | FEED_FORWARD,
    )
    return TextConfig(
        family=family,
        vocab_size=read_size(path, values, "vocab_size"),
        embed_dim=embed_dim,
        max_positions=positions - first,
        num_layers=read_size(path, values, keys.num_layers),
        blocks=(block,),
        norm=norm,
        first_position=first,
        padding=padding,
        token_types=0 if keys.token_types is None else read_size(path, values, keys.token_types, 2),
        further_sizes={name: read_size(path, values, name, default) for name, default in family.further_sizes.items()},
    )

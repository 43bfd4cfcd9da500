"""ModernBERT: norms before sublayers, gated feed-forwards, positions by which heads turn, windows in most layers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..architecture.build import ATTENTION, BlockConfig, NormConfig
from ..architecture.config_entries import FULL, LATER_ACTIVATIONS, SLIDING, read_layer_count, read_layer_types
from ..architecture.tensor_names import BlockNames
from ..files.json_files import read_choice, read_eps, read_flag, read_size
from .entries import check_is_encoder, read_heads, read_turns
from .family import Family, Names
from .text_config import TextConfig


def read_modernbert(path: Path, values: Mapping[str, Any], family: Family) -> TextConfig:
    """The entries of config.json, read from `path`. ValueError if it says what is not computed."""
    check_is_encoder(path, values, family)
    embed_dim, num_heads = read_heads(path, values, "hidden_size", "num_attention_heads")
    num_layers = read_layer_count(path, values, "num_hidden_layers")
    positions = read_size(path, values, "max_position_embeddings")
    turns = read_turns(
        path,
        values,
        embed_dim // num_heads,
        positions,
        {FULL: ("global_rope_theta", 160_000.0), SLIDING: ("local_rope_theta", 10_000.0)},
    )
    has_bias = read_flag(path, values, "norm_bias", False)
    norm = NormConfig("layer", read_eps(path, values, "norm_eps", 1e-5), bias=has_bias)
    biases = ATTENTION if read_flag(path, values, "attention_bias", False) else frozenset()
    if read_flag(path, values, "mlp_bias", False):
        biases |= {"gate", "up", "down"}
    block = BlockConfig(
        embed_dim=embed_dim,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=embed_dim // num_heads,
        feedforward_dim=read_size(path, values, "intermediate_size"),
        activation=LATER_ACTIVATIONS[read_choice(path, values, "hidden_activation", "gelu", *LATER_ACTIVATIONS)],
        norm=norm,
        gated=True,
        biases=biases,
    )
    radius = read_size(path, values, "local_attention", 128) // 2
    layer_types = read_layer_types(path, values, "layer_types", num_layers)
    if layer_types is None:
        every = read_size(path, values, "global_attn_every_n_layers", 3)
        layer_types = [SLIDING if i % every else FULL for i in range(num_layers)]
    blocks = [
        block._replace(rotary=turns[kind], window=(radius, radius) if kind == SLIDING else None) for kind in layer_types
    ]
    blocks[0] = blocks[0]._replace(norms=frozenset({"norm2"}))  # the norm of embeddings is right before it
    return TextConfig(
        family=family,
        vocab_size=read_size(path, values, "vocab_size"),
        embed_dim=embed_dim,
        max_positions=positions,
        num_layers=num_layers,
        blocks=tuple(blocks),
        norm=norm,
        final_norm=norm,
    )


FAMILY = Family(
    model_types=("modernbert",),
    prefix="model.",
    names=Names(
        words="embeddings.tok_embeddings.weight",
        positions=None,
        token_types=None,
        norm="embeddings.norm",
        final_norm="final_norm",
        blocks=BlockNames(
            layer="layers.{}.",
            query="attn.Wqkv",
            key="attn.Wqkv",
            value="attn.Wqkv",
            out="attn.Wo",
            gate="mlp.Wi",
            up="mlp.Wi",
            down="mlp.Wo",
            norm1="attn_norm",
            norm2="mlp_norm",
        ),
    ),
    absent={"rope_scaling": "positions must be described by rope_parameters"},
)

"""nomic-bert and GTE: BERT with gated feed-forwards, and positions by which heads turn."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..architecture.build import ATTENTION, BlockConfig, NormConfig
from ..architecture.config_entries import ABSENT, LATER_ACTIVATIONS, refuse_present
from ..architecture.tensor_names import BlockNames
from ..files.json_files import read_choice, read_count, read_eps, read_size
from .entries import check_is_encoder, read_heads, read_turns
from .family import Family, Names
from .text_config import TextConfig

# Entries of files that came before transformers had the model: what they are called now, and what others must say.
_FORMER_NAMES = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}
_FORMERLY: dict[str, object] = {
    "activation_function": "swiglu",
    "causal": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "parallel_block": False,
    "prenorm": False,
    "qkv_proj_bias": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True,
    "use_rms_norm": False,
}


def _with_names_of_today(path: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """config.json of a nomic-bert by the names that transformers has for its entries. Its code is known: ``auto_map``
    and what else is only read by that is left out."""
    for name, expected in _FORMERLY.items():
        read_choice(path, values, name, expected, expected)
    refuse_present(path, values, {"rotary_emb_scale_base": "angles must not depend on more than positions"})
    today = {new: values[old] for old, new in _FORMER_NAMES.items() if old in values}
    if values.get("rotary_scaling_factor") is not None:  # which counts beyond these positions
        trained = read_size(path, values, "max_trained_positions")
        today["max_position_embeddings"] = min(trained, read_size(path, values, "n_positions"))
    kept = ("vocab_size", "type_vocab_size", *ABSENT)
    return today | {name: values[name] for name in kept if name in values and name != "auto_map"}


def read_nomic(path: Path, values: Mapping[str, Any], family: Family) -> TextConfig:
    """The entries of config.json of a nomic-bert. ValueError if it says what is not computed."""
    if "n_embd" in values:
        values = _with_names_of_today(path, values)
    given = {name: value for name, value in values.items() if name != "head_dim" or value is not None}
    width, heads = read_heads(path, values, "hidden_size", "num_attention_heads")
    head_dim = read_size(path, given, "head_dim", width // heads)
    read_size(path, values, "type_vocab_size", 2)
    return _read(path, values, family, head_dim, "silu", 1000.0, frozenset(), 2)


def read_gte(path: Path, values: Mapping[str, Any], family: Family) -> TextConfig:
    """The entries of config.json of a GTE. ValueError if it says what is not computed."""
    width, heads = read_heads(path, values, "hidden_size", "num_attention_heads")
    return _read(path, values, family, width // heads, "gelu", 160_000.0, ATTENTION | {"down"}, 1)


def _read(
    path: Path,
    values: Mapping[str, Any],
    family: Family,
    head_dim: int,
    activation: str,
    base: float,
    biases: frozenset[str],
    token_types: int,
) -> TextConfig:
    """What is not said here is the default of the family."""
    check_is_encoder(path, values, family)
    embed_dim, num_heads = read_heads(path, values, "hidden_size", "num_attention_heads")
    positions = read_size(path, values, "max_position_embeddings")
    norm = NormConfig("layer", read_eps(path, values, "layer_norm_eps", 1e-12), bias=True)
    block = BlockConfig(
        embed_dim=embed_dim,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=head_dim,
        feedforward_dim=read_size(path, values, "intermediate_size"),
        activation=LATER_ACTIVATIONS[read_choice(path, values, "hidden_act", activation, *LATER_ACTIVATIONS)],
        norm=norm,
        norm_first=False,
        gated=True,
        biases=biases,
        rotary=read_turns(path, values, head_dim, positions, {"": ("rope_theta", base)})[""],
    )
    return TextConfig(
        family=family,
        vocab_size=read_size(path, values, "vocab_size"),
        embed_dim=embed_dim,
        max_positions=positions,
        num_layers=read_size(path, values, "num_hidden_layers"),
        blocks=(block,),
        norm=norm,
        token_types=read_count(path, values, "type_vocab_size", token_types),
    )


NOMIC = Family(
    model_types=("nomic_bert",),
    prefix="nomic_bert.",
    names=Names(
        positions=None,
        norm="emb_ln",
        blocks=BlockNames(
            layer="encoder.layers.{}.",
            query="attn.Wqkv",
            key="attn.Wqkv",
            value="attn.Wqkv",
            out="attn.out_proj",
            gate="mlp.fc12",
            up="mlp.fc11",
            down="mlp.fc2",
            norm1="norm1",
            norm2="norm2",
        ),
    ),
)

GTE = Family(
    model_types=("gte",),
    prefix="gte.",
    names=Names(
        positions=None,
        blocks=BlockNames(
            layer="encoder.layer.{}.",
            query="attention.qkv_proj",
            key="attention.qkv_proj",
            value="attention.qkv_proj",
            out="attention.o_proj",
            gate="mlp.up_gate_proj",
            up="mlp.up_gate_proj",
            down="mlp.down_proj",
            norm1="attn_ln",
            norm2="mlp_ln",
            up_first=True,
        ),
    ),
)

"""nomic-bert: BERT with gated feed-forwards and rotary positions, and files from before transformers had the model."""

from typing import Any

from ..architecture.config import ModelConfig
from ..architecture.family import GATED, Family, described, width_of_heads
from ..architecture.tensor_names import BlockNames
from ..files.entries import Entries
from .bert import FAMILY as BERT
from .bert import NAMES

# The former names of entries, and the values that the other former entries must have.
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
_KEPT = ("vocab_size", "type_vocab_size", "quantization_config", "pruned_heads")


def _renamed(former: Entries) -> Entries:
    """Return config.json by the names of transformers, without ``auto_map`` and other entries of its known code."""
    former.expect(_FORMERLY)
    former.refuse({"rotary_emb_scale_base": "angles must not depend on more than positions"})
    today: dict[str, Any] = {new: former.values[old] for old, new in _FORMER_NAMES.items() if old in former.values}
    if former.has("rotary_scaling_factor"):  # which has an effect beyond these positions
        today["max_position_embeddings"] = min(former.size("max_trained_positions"), former.size("n_positions"))
    return former._replace(values=today | {name: former.values[name] for name in _KEPT if name in former.values})


def _describe(family: Family, given: Entries, role: str, max_positions: int | None = None) -> ModelConfig:
    entries = _renamed(given) if "n_embd" in given.values else given
    width_of_heads(entries, family.keys.embed_dim, family.keys.stacks[0].num_heads)  # also with a head_dim
    return described(family, entries, role, max_positions)


FAMILY = BERT._replace(
    model_types=("nomic_bert",),
    prefix="nomic_bert.",
    keys=BERT.keys._replace(head_dim="head_dim"),
    stacks=(
        NAMES._replace(
            front_end=NAMES.front_end._replace(positions="", norm="emb_ln"),
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
    ),
    defaults={**BERT.defaults, "hidden_act": "silu"},
    expected={"is_decoder": False, "add_cross_attention": False, "partial_rotary_factor": 1.0},
    activations=GATED,
    biases={},
    bases={"": ("rope_theta", 1000.0)},
    describe=_describe,
)

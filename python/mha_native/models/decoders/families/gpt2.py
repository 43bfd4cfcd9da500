"""GPT-2: layer norms, learned positions, and matrices the other way round, those of query, key and value in one."""

import math

from ...architecture.build import ATTENTION, FEED_FORWARD
from ...architecture.tensor_names import BlockNames
from ..entries import Entries
from ..family import Family, Keys, Names


def _scale(entries: Entries, i: int) -> float:
    head_dim = entries.size("n_embd") // entries.size("n_head")
    scale = 1 / math.sqrt(head_dim) if entries.flag("scale_attn_weights") else 1.0
    return scale / (i + 1) if entries.flag("scale_attn_by_inverse_layer_idx") else scale


FAMILY = Family(
    model_types=("gpt2",),
    prefix="transformer.",
    keys=Keys(
        embed_dim="n_embd",
        num_layers="n_layer",
        num_heads="n_head",
        num_kv_heads=None,
        head_dim=None,
        feedforward_dim="n_inner",
        max_positions="n_positions",
        activation="activation_function",
        eps="layer_norm_epsilon",
    ),
    names=Names(
        words="wte.weight",
        positions="wpe.weight",
        final_norm="ln_f",
        blocks=BlockNames(
            layer="h.{}.",
            query="attn.c_attn",
            key="attn.c_attn",
            value="attn.c_attn",
            out="attn.c_proj",
            up="mlp.c_fc",
            down="mlp.c_proj",
            norm1="ln_1",
            norm2="ln_2",
            transposed=True,
        ),
    ),
    defaults={
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        "tie_word_embeddings": True,
    },
    norm="layer",
    gated=False,
    biases={"": ATTENTION | FEED_FORWARD},
    bases={},
    scale=_scale,
    usual_feedforward=4,
    # transformers takes these for n_embd and the others.
    absent=dict.fromkeys(
        ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"),
        "this family has other names",
    ),
)

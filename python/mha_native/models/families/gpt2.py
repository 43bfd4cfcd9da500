"""GPT-2: layer norms, learned positions, and transposed matrices; query, key and value are one matrix."""

import math

from ..architecture.config import ATTENTION, FEED_FORWARD
from ..architecture.family import GENERATION, UNGATED_WITH_SILU, Keys, StackKeys
from ..architecture.tensor_names import BlockNames, StackNames
from ..files.entries import Entries
from ..front_ends.tokens import TokensNames
from .llama import FAMILY as LLAMA


def _scale(entries: Entries, i: int) -> float:
    head_dim = entries.size("n_embd") // entries.size("n_head")
    scale = 1 / math.sqrt(head_dim) if entries.flag("scale_attn_weights") else 1.0
    return scale / (i + 1) if entries.flag("scale_attn_by_inverse_layer_idx") else scale


FAMILY = LLAMA._replace(
    model_types=("gpt2",),
    roles=frozenset({GENERATION}),
    prefix="transformer.",
    keys=Keys(
        embed_dim="n_embd",
        stacks=(StackKeys("n_layer", "n_head", "n_inner"),),
        max_positions="n_positions",
        activation="activation_function",
        eps="layer_norm_epsilon",
    ),
    stacks=(
        StackNames(
            front_end=TokensNames(words=("wte.weight",), positions="wpe.weight"),
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
            final_norm="ln_f",
        ),
    ),
    defaults={
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        "tie_word_embeddings": True,
    },
    # transformers takes these for n_embd and the others.
    refused={
        **LLAMA.refused,
        **dict.fromkeys(
            ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"),
            "this family has other names",
        ),
    },
    norm="layer",
    activations=UNGATED_WITH_SILU,
    biases={"": ATTENTION | FEED_FORWARD},
    bases={},
    scale=_scale,
    feedforward_factor=4,
)

"""GPT-NeoX and Pythia: parallel layers with two layer norms, biases, and a quarter of each head rotated."""

from ..architecture.config import ATTENTION, ModelConfig
from ..architecture.family import GENERATION, UNGATED_WITH_SILU, Family, Keys, described, width_of_heads
from ..architecture.tensor_names import BlockNames, StackNames
from ..files.entries import Entries
from ..front_ends.tokens import TokensNames
from .llama import FAMILY as LLAMA


def _describe(family: Family, given: Entries, role: str, max_positions: int | None = None) -> ModelConfig:
    others = {"partial_rotary_factor": "this family has rotary_pct", "rope_theta": "this family has rotary_emb_base"}
    given.refuse(others)
    given.expect({"head_dim": width_of_heads(given, "hidden_size", "num_attention_heads")})
    share = given.positive("rotary_pct", 0.25)
    return described(
        family, given._replace(values={**given.values, "partial_rotary_factor": share}), role, max_positions
    )


FAMILY = LLAMA._replace(
    model_types=("gpt_neox",),
    roles=frozenset({GENERATION}),
    prefix="gpt_neox.",
    keys=Keys(eps="layer_norm_eps", parallel="use_parallel_residual"),
    stacks=(
        StackNames(
            front_end=TokensNames(words=("embed_in.weight",)),
            blocks=BlockNames(
                layer="layers.{}.",
                query="attention.query_key_value",
                key="attention.query_key_value",
                value="attention.query_key_value",
                out="attention.dense",
                up="mlp.dense_h_to_4h",
                down="mlp.dense_4h_to_h",
                norm1="input_layernorm",
                norm2="post_attention_layernorm",
                by_heads=True,
            ),
            final_norm="final_layer_norm",
        ),
    ),
    defaults={
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "attention_bias": True,
        "use_parallel_residual": True,
        "tie_word_embeddings": False,
    },
    norm="layer",
    activations={**UNGATED_WITH_SILU, "gelu_fast": ("gelu_tanh", False)},
    biases={"attention_bias": ATTENTION, "": frozenset({"up", "down"})},
    bases={"": ("rotary_emb_base", 10000.0)},
    partial_rotary=True,
    describe=_describe,
)

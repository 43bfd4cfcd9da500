"""StableLM: Llama with layer norms, a quarter of each head rotated, and sometimes parallel layers with one norm."""

from ..architecture.config import ModelConfig
from ..architecture.family import GENERATION, Family, described, width_of_heads
from ..files.entries import Entries
from .llama import FAMILY as LLAMA


def _describe(family: Family, given: Entries, role: str, max_positions: int | None = None) -> ModelConfig:
    given.expect({"head_dim": width_of_heads(given, "hidden_size", "num_attention_heads")})
    is_parallel = given.flag(family.keys.parallel)
    norms = frozenset({"norm1"}) if is_parallel else family.norms
    return described(family._replace(norms=norms), given, role, max_positions)


FAMILY = LLAMA._replace(
    model_types=("stablelm",),
    roles=frozenset({GENERATION}),
    keys=LLAMA.keys._replace(head_dim="", eps="layer_norm_eps", parallel="use_parallel_residual"),
    defaults={
        "num_key_value_heads": 32,
        "hidden_act": "silu",
        "layer_norm_eps": 1e-5,
        "partial_rotary_factor": 0.25,
        "tie_word_embeddings": False,
    },
    refused={
        **LLAMA.refused,
        "qk_layernorm": "norms with other weights for each head are unsupported",
    },
    norm="layer",
    biases={"use_qkv_bias": frozenset({"query", "key", "value"})},
    partial_rotary=True,
    describe=_describe,
)

"""Phi-3 and Phi-4: Llama with query, key and value in one matrix, and gate and up in another; partial rotation."""

from ..architecture.config import ModelConfig
from ..architecture.family import GENERATION, Family, described
from ..architecture.rotary import expect_rules
from ..files.entries import Entries
from .llama import FAMILY as LLAMA
from .llama import NAMES
from .mistral import is_sliding, window

FUSED_GATE = NAMES.blocks._replace(gate="mlp.gate_up_proj", up="mlp.gate_up_proj")
_QKV = "self_attn.qkv_proj"


def _describe(family: Family, given: Entries, role: str, max_positions: int | None = None) -> ModelConfig:
    expect_rules(given, "default", "longrope")
    return described(family, given, role, max_positions)


FAMILY = LLAMA._replace(
    model_types=("phi3",),
    roles=frozenset({GENERATION}),
    stacks=(NAMES._replace(blocks=FUSED_GATE._replace(query=_QKV, key=_QKV, value=_QKV)),),
    defaults={
        **LLAMA.defaults,
        "rms_norm_eps": 1e-5,
        "original_max_position_embeddings": 4096,
        "sliding_window": None,
        "tie_word_embeddings": False,
    },
    biases={},
    partial_rotary=True,
    window=window,
    is_sliding=is_sliding,
    describe=_describe,
)

"""GLM-4 of 2024: Llama with gate and up in one matrix, and with half of each head rotated, in pairs of neighbours."""

from ..architecture.family import GENERATION
from .llama import FAMILY as LLAMA
from .llama import NAMES
from .phi3 import FUSED_GATE

FAMILY = LLAMA._replace(
    model_types=("glm",),
    roles=frozenset({GENERATION}),
    stacks=(NAMES._replace(blocks=FUSED_GATE),),
    defaults={
        **LLAMA.defaults,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "rms_norm_eps": 1.5625e-07,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
    },
    biases={"attention_bias": frozenset({"query", "key", "value"})},
    partial_rotary=True,
    interleaved=True,
)

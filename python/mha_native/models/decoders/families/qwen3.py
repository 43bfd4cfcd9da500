"""Qwen3: Qwen2 with norms of the heads of queries and keys, whose width is free, and biases that are a choice."""

from ...architecture.build import ATTENTION
from .qwen2 import FAMILY as QWEN2

FAMILY = QWEN2._replace(
    model_types=("qwen3",),
    defaults={**QWEN2.defaults, "head_dim": 128},
    qk_norm=True,
    biases={"attention_bias": ATTENTION},
)

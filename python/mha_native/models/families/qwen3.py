"""Qwen3: Qwen2 with norms of the heads of queries and keys, heads of any width, and optional biases."""

from ..architecture.config import ATTENTION
from .qwen2 import FAMILY as QWEN2

FAMILY = QWEN2._replace(
    model_types=("qwen3",),
    defaults={**QWEN2.defaults, "head_dim": 128},
    qk_norm=True,
    biases={"attention_bias": ATTENTION},
)

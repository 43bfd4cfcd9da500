"""Llama, and models that differ from it in nothing: every other family is said by how it differs from this one."""

from ...architecture.build import ATTENTION, FEED_FORWARD
from ..family import Family

DEFAULTS = {"hidden_act": "silu", "rms_norm_eps": 1e-6}

FAMILY = Family(
    model_types=("llama",),
    defaults=DEFAULTS,
    biases={"attention_bias": ATTENTION, "mlp_bias": FEED_FORWARD},
)

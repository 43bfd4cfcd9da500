"""Random weights of layers, as torch names them, in float64. No bias is 0 and no scale 1, or forgetting one would go
unnoticed."""

from __future__ import annotations

import numpy as np

import mha_native
from mha_native_bench.cases.case import Array, Case


def attention_state(case: Case, rng: np.random.Generator, seed: int) -> dict[str, Array]:
    """The weights of `torch.nn.MultiheadAttention`."""
    state = mha_native.MultiHeadAttention(case.E, case.H, dtype="float64", seed=seed).state_dict()
    for name in ("in_proj_bias", "out_proj.bias"):  # 0 in a new layer
        state[name] = rng.uniform(-0.1, 0.1, state[name].shape)
    return state


def encoder_layer_state(case: Case, rng: np.random.Generator) -> dict[str, Array]:
    """The weights of `torch.nn.TransformerEncoderLayer`."""
    width, hidden = case.E, case.F

    def uniform(*shape: int) -> Array:
        values: Array = rng.uniform(-1, 1, shape) * shape[-1] ** -0.5
        return values

    state = {
        "self_attn.in_proj_weight": uniform(3 * width, width),
        "self_attn.in_proj_bias": uniform(3 * width),
        "self_attn.out_proj.weight": uniform(width, width),
        "self_attn.out_proj.bias": uniform(width),
        "linear1.weight": uniform(hidden, width),
        "linear1.bias": uniform(hidden),
        "linear2.weight": uniform(width, hidden),
        "linear2.bias": uniform(width),
    }
    for norm in ("norm1", "norm2"):
        state[f"{norm}.weight"], state[f"{norm}.bias"] = 1 + uniform(width), uniform(width)
    return state

"""Random weights of layers, as torch names them, in float64. No bias is 0 and no scale 1, or forgetting one would go
unnoticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import mha_native
from mha_native_bench.cases.case import Array, Case

# The deviation of scores in ModernBERT and in decoders: weights of attention differ, so that what turns heads shows.
SHARPNESS = 3


class LayerNames(NamedTuple):
    """The names of the parts of a layer in the files of a model."""

    prefix: str  # with {} for the number of the layer
    projections: tuple[str, str, str]  # of queries, keys and values, which torch stacks
    others: dict[str, str]  # and torch's names

    def to_files(self, state: dict[str, Array], i: int) -> dict[str, Array]:
        """Layer `i` in float32, from the names of `torch.nn.TransformerEncoderLayer`."""
        tensors: dict[str, Array] = {}
        prefix = self.prefix.format(i)
        state = {name: array.astype(np.float32) for name, array in state.items()}
        for end in ("weight", "bias"):
            parts = np.split(state[f"self_attn.in_proj_{end}"], 3)
            named = dict(zip(self.projections, parts, strict=True))
            named |= {name: state[f"{torch_name}.{end}"] for name, torch_name in self.others.items()}
            tensors |= {f"{prefix}{name}.{end}": array.copy() for name, array in named.items()}
        return tensors

    def to_torch(self, tensors: dict[str, Array], i: int) -> dict[str, Array]:
        """The inverse of `to_files`."""
        state: dict[str, Array] = {}
        prefix = self.prefix.format(i)
        for end in ("weight", "bias"):
            parts = [tensors[f"{prefix}{name}.{end}"] for name in self.projections]
            state[f"self_attn.in_proj_{end}"] = np.concatenate(parts)
            for name, torch_name in self.others.items():
                state[f"{torch_name}.{end}"] = tensors[f"{prefix}{name}.{end}"]
        return state

    def all_to_torch(self, tensors: dict[str, Array], layers: int) -> dict[str, Array]:
        """The layers in the names of `torch.nn.TransformerEncoder`."""
        return {f"layers.{i}.{name}": array for i in range(layers) for name, array in self.to_torch(tensors, i).items()}


def attention_state(case: Case, rng: np.random.Generator, seed: int) -> dict[str, Array]:
    """The weights of `torch.nn.MultiheadAttention`."""
    state = mha_native.MultiHeadAttention(case.E, case.H, dtype="float64", seed=seed).state_dict()
    for name in ("in_proj_bias", "out_proj.bias"):  # 0 in a new layer
        state[name] = rng.uniform(-0.1, 0.1, state[name].shape)
    return state


def encoder_layer_state(case: Case, rng: np.random.Generator) -> dict[str, Array]:
    """The weights of `torch.nn.TransformerEncoderLayer`."""
    width, hidden = case.E, case.F

    uniform = uniform_weights(rng)
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


def modern_layer_state(case: Case, rng: np.random.Generator) -> dict[str, Array]:
    """The weights of a layer without biases, norms before its sublayers, with a gated feed-forward, in float32."""
    width, hidden, kv_width = case.E, case.F, case.Hk * case.D
    uniform = uniform_weights(rng)
    state = {
        "self_attn.in_proj_weight": uniform(width + 2 * kv_width, width),
        "self_attn.out_proj.weight": uniform(width, width),
        "gate.weight": uniform(hidden, width),
        "linear1.weight": uniform(hidden, width),
        "linear2.weight": uniform(width, hidden),
        "norm1.weight": 1 + uniform(width),
        "norm2.weight": 1 + uniform(width),
    }
    # Of a row of deviation 1 such weights make queries and keys of deviation sqrt(1 / 3).
    state["self_attn.in_proj_weight"][: width + kv_width] *= (3 * SHARPNESS) ** 0.5
    return {name: array.astype(np.float32) for name, array in state.items()}


def experts_state(case: Case, rng: np.random.Generator) -> dict[str, Array]:
    """The weights of `mha_native.Experts`, in float32. Experts share a few random matrices, which takes less time."""
    uniform = uniform_weights(rng)
    shapes = {"gate": (case.F, case.E), "linear1": (case.F, case.E), "linear2": (case.E, case.F)}
    shared = [{name: uniform(*shape).astype(np.float32) for name, shape in shapes.items()} for _ in range(5)]
    state = {"router.weight": uniform(case.X, case.E).astype(np.float32)}
    for i in range(case.X):
        state |= {f"experts.{i}.{name}.weight": array for name, array in shared[i % len(shared)].items()}
    return state


def uniform_weights(rng: np.random.Generator) -> Callable[..., Array]:
    """A function from a shape to weights that keep the size of rows about the same."""

    def uniform(*shape: int) -> Array:
        values: Array = rng.uniform(-1, 1, shape) * shape[-1] ** -0.5
        return values

    return uniform

"""Layers that turn queries and keys by random tables, and their reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mha_native import MultiHeadAttention, RotaryEmbedding, reference

Array = np.ndarray[Any, np.dtype[Any]]
E, H = 40, 4
P = 70  # positions of the tables
# D, R, whether neighbours are turned: whole vectors and less, all of a head and a part of it.
HEADS = [(16, 16, False), (16, 16, True), (10, 6, False), (10, 6, True), (64, 64, False), (80, 34, True), (3, 2, False)]
every_head = pytest.mark.parametrize(("head_dim", "rotary_dim", "interleaved"), HEADS)


def random_table(rotary_dim: int, interleaved: bool, dtype: Any = "float32", seed: int = 3) -> RotaryEmbedding:
    """Cosines and sines of random angles: what mixes up positions, or pairs, gives something else."""
    angles = np.random.default_rng(seed).uniform(0, 2 * np.pi, (P, rotary_dim // 2))
    kind = np.float64 if np.dtype(dtype) == np.float64 else np.float32
    return RotaryEmbedding(np.cos(angles).astype(kind), np.sin(angles).astype(kind), interleaved=interleaved)


def turned_layer(head: tuple[int, int, bool] = HEADS[0], dtype: Any = "float32", **options: Any) -> MultiHeadAttention:
    head_dim, rotary_dim, interleaved = head
    rotary = random_table(rotary_dim, interleaved, dtype)
    layer = MultiHeadAttention(E, H, **{"head_dim": head_dim, "rotary": rotary, "dtype": dtype, "seed": 5} | options)
    if layer.qk_norm is not None:  # whose weights are otherwise the same for query and key
        state = layer.state_dict()
        layer.load_state_dict(
            state | {n: random_rows(dtype, *x.shape, seed=len(n) + ord(n[0])) for n, x in state.items() if "norm" in n}
        )
    return layer


def random_rows(dtype: Any, *shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype)


def reference_of(layer: MultiHeadAttention, *inputs: Array, **options: Any) -> Any:
    rotary = layer.rotary
    assert rotary is not None
    return reference.multi_head_attention(
        *(np.asarray(x, np.float64) for x in inputs),
        {name: np.asarray(x, np.float64) for name, x in layer.state_dict().items()},
        layer.num_heads,
        num_kv_heads=layer.num_kv_heads,
        add_zero_attn=layer.add_zero_attn,
        qk_norm=layer.qk_norm,
        rotary=(rotary.cos, rotary.sin, rotary.interleaved),
        **options,
    )


def assert_near(actual: Array, expected: Array) -> None:
    """What is turned otherwise is off by the size of the numbers. Rounding is bounded in the tests of numerics."""
    digits = {"float64": 1e-13, "float32": 1e-5, "float16": 1e-2, "bfloat16": 6e-2}[str(actual.dtype)]
    assert np.isfinite(expected).all()
    assert np.abs(np.asarray(actual, np.float64) - expected).max() <= digits * max(1, np.abs(expected).max())


Same = Callable[[MultiHeadAttention, Array], Array]


def in_chunks(*ends: int) -> Same:
    """Over a cache, the rows up to each of `ends` in a call of their own."""

    def run(layer: MultiHeadAttention, x: Array) -> Array:
        cache = layer.new_cache(len(x), 64)
        parts = [x[:, begin:end] for begin, end in zip((0, *ends), (*ends, x.shape[1]), strict=True)]
        return np.concatenate([layer(part, cache=cache, is_causal=True) for part in parts], axis=1)

    return run

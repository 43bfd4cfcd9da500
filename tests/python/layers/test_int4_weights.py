"""Weights of four bits: the bits of int8 weights, and the search that chooses them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from int8_oracle import projection, weights
from tolerance import assert_same_bits

from mha_native import FeedForward, Linear, MultiHeadAttention

Array = np.ndarray[Any, Any]
F32 = np.float32
GROUP, MOST_MULTIPLIER, LEAST_CODE, MOST_CODE = 16, 15, -8, 7

# Features that fill no group, no block of 128 with its multipliers, and no block of 512 that becomes int8.
SIZES = [(1, 1), (3, 5), (16, 64), (29, 64), (64, 29), (129, 17), (512, 70), (576, 33), (1041, 70)]


def _rows(count: int, features: int, rng: Any) -> Array:
    """Rows of different sizes, half of them with outliers."""
    rows = rng.standard_normal((count, features)) * rng.uniform(0.01, 100, (count, 1))
    rows[::2, :: 1 + features // 3] *= 1000
    return rows.astype(F32)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_rows_have_the_bits_of_int8_weights(sizes: tuple[int, int], isa: str, num_threads: int, rng: Any) -> None:
    layer = Linear(*sizes, seed=0, weight_dtype="int4")
    state = layer.state_dict() | {"bias": rng.standard_normal(sizes[1]).astype(F32)}
    layer.load_state_dict(state)
    int8 = Linear(*sizes, weight_dtype="int8")
    int8.load_state_dict(state)
    x = _rows(70, sizes[0], rng)
    expected = projection(x, state["weight"], state["weight_scale"], state["bias"])
    assert_same_bits(int8(x, num_threads=num_threads), expected)
    for rows in (1, 2, 3, 4, 5, 8, 30, 70):
        assert_same_bits(layer(x[:rows], num_threads=num_threads), expected[:rows], label=f"{rows} rows")
        out = np.full((sizes[1], rows), np.nan, F32).T
        layer(np.asfortranarray(x[-rows:]), out=out, num_threads=num_threads)
        assert_same_bits(np.ascontiguousarray(out), expected[-rows:], label=f"{rows} rows by columns")


@pytest.mark.parametrize(
    "make",
    [
        lambda: MultiHeadAttention(30, 6, seed=0, weight_dtype="int4"),
        lambda: MultiHeadAttention(24, 4, num_kv_heads=2, head_dim=5, value_head_dim=3, seed=0, weight_dtype="int4"),
        lambda: FeedForward(70, 130, activation="gelu", seed=0, weight_dtype="int4"),
        lambda: FeedForward(130, 70, activation="silu", gated=True, seed=0, weight_dtype="int4"),
    ],
    ids=["mha", "mha-wide", "ffn", "ffn-gated"],
)
def test_layers_have_the_bits_of_int8_weights(make: Any, isa: str, num_threads: int, rng: Any) -> None:
    layer = make()
    int8 = layer.quantize("int8")
    for name, array in layer.state_dict().items():
        assert_same_bits(int8.state_dict()[name], array, label=name)
    for rows in (1, 5, 70):
        x = rng.standard_normal((rows, layer.embed_dim)).astype(F32)
        assert_same_bits(layer(x, num_threads=num_threads), int8(x, num_threads=num_threads), label=f"{rows} rows")


def _groups(integers: Array) -> Array:
    """Integers [out, in] as [out, groups, 16], filled up with zeros."""
    rest = -integers.shape[-1] % GROUP
    return np.pad(integers, ((0, 0), (0, rest))).reshape(len(integers), -1, GROUP)


def _is_four_bits(integers: Array) -> Array:
    """Whether each group [..., 16] has a multiplier."""
    fits = np.zeros(integers.shape[:-1], bool)
    for m in range(1, MOST_MULTIPLIER + 1):
        codes = integers // m
        fits |= ((codes * m == integers) & (codes >= LEAST_CODE) & (codes <= MOST_CODE)).all(-1)
    return fits


def _errors(weight: Array, scale: Array) -> Array:
    """The least squared error of each row [out, in] over multipliers and codes, with scales [out]."""
    groups = _groups(weight.astype(np.float64))
    errors = []
    for m in range(1, MOST_MULTIPLIER + 1):
        step = scale.astype(np.float64)[:, None, None] * m
        errors.append(((np.clip(np.rint(groups / step), LEAST_CODE, MOST_CODE) * step - groups) ** 2).sum(-1))
    least: Array = np.min(errors, 0).sum(-1)
    return least


def _absmax(weight: Array) -> Array:
    """The squared error of each row [out, in] where scales and multipliers reach the largest number."""
    groups = _groups(weight.astype(np.float64))
    limits = np.maximum(groups.max(-1) / MOST_CODE, groups.min(-1) / LEAST_CODE)
    scale = limits.max(-1, keepdims=True) / MOST_MULTIPLIER
    step = (np.maximum(np.ceil(limits / scale - 1e-9), 1) * scale)[..., None]
    squared: Array = ((np.clip(np.rint(groups / step), LEAST_CODE, MOST_CODE) * step - groups) ** 2).sum((1, 2))
    return squared


@pytest.mark.parametrize("features", [5, 48, 200, 576])
@pytest.mark.parametrize("kind", ["normal", "heavy", "positive"])
def test_the_search_is_better_than_the_largest_number(features: int, kind: str, rng: Any) -> None:
    weight = rng.standard_normal((40, features))
    weight = {"normal": weight, "heavy": weight**3, "positive": np.abs(weight)}[kind].astype(F32)
    state = Linear.from_weights(weight, weight_dtype="int4").state_dict()
    integers, scale = state["weight"], state["weight_scale"]
    assert _is_four_bits(_groups(integers)).all()
    found = ((integers * scale.astype(np.float64)[:, None] - weight) ** 2).sum(-1)
    # For its scale no other choice is much better.
    assert (found <= 1.08 * _errors(weight, scale) + 1e-12).all()
    # Nor is any scale of a fine grid, but that a single group has more choices than are tried.
    most = np.maximum(weight.max(-1) / MOST_CODE, weight.min(-1) / LEAST_CODE) / MOST_MULTIPLIER
    best = np.min([_errors(weight, most * fraction) for fraction in np.linspace(0.4, 1.5, 300)], 0)
    assert (found <= 1.001 * _absmax(weight) + 1e-12).all()
    assert found.sum() <= (1.03 if features > 100 else 1.12) * best.sum()
    if features > GROUP:
        assert found.sum() < 0.9 * _absmax(weight).sum()


def test_states_come_back_to_the_bit(rng: Any) -> None:
    layer = Linear(100, 30, seed=0, weight_dtype="int4")
    state = layer.state_dict()
    other = Linear(100, 30, weight_dtype="int4")
    other.load_state_dict(state)
    for name, array in other.state_dict().items():
        assert_same_bits(array, state[name], label=name)
    # Of int8 matrices the rows that four bits hold stay, the others are quantized like numbers.
    integers = rng.integers(-127, 128, (30, 100)).astype(np.int8)
    integers[::2] = state["weight"][::2]
    other.load_state_dict(state | {"weight": integers})
    found = other.state_dict()
    assert_same_bits(found["weight"][::2], integers[::2])
    assert_same_bits(found["weight_scale"][::2], state["weight_scale"][::2])
    numbers = integers * state["weight_scale"][:, None]
    quantized = Linear.from_weights(numbers, state["bias"], weight_dtype="int4").state_dict()
    assert_same_bits(found["weight"][1::2], quantized["weight"][1::2])
    assert_same_bits(found["weight_scale"][1::2], quantized["weight_scale"][1::2])


@pytest.mark.parametrize("size", [0, 1e-45, 1e-38, 1e-31, 1e-20, 1e30, 3e38], ids=str)
def test_weights_of_any_size(size: float, rng: Any) -> None:
    weight = (rng.uniform(-1, 1, (3, 40)) * size).astype(F32)
    state = Linear.from_weights(weight, weight_dtype="int4").state_dict()
    assert np.isfinite(state["weight_scale"]).all()
    assert (state["weight_scale"] > 0).all()
    found = state["weight"] * state["weight_scale"].astype(np.float64)[:, None]
    if size < 1e-31:  # as int8, numbers below 2^-100 lose their digits
        assert np.abs(found).max() <= 1e-31
    else:
        assert ((found - weight) ** 2).sum() < 0.02 * (weight.astype(np.float64) ** 2).sum()


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf], ids=str)
def test_a_weight_that_is_not_finite_spoils_its_feature(number: float, isa: str, rng: Any) -> None:
    weight = rng.standard_normal((6, 40)).astype(F32)
    x = rng.standard_normal((7, 40), dtype=F32)
    expected = Linear.from_weights(weight, weight_dtype="int4")
    weight[2, 33] = number
    layer = Linear.from_weights(weight, weight_dtype="int4")
    out = layer(x)
    assert np.isnan(out[:, 2]).all()
    assert_same_bits(np.delete(out, 2, 1), np.delete(expected(x), 2, 1))
    layer.load_state_dict(layer.state_dict())
    assert_same_bits(layer(x), out)


def test_the_error_of_normal_weights(rng: Any) -> None:
    """22 dB, where int8 has 42: docs/numerics.md."""
    weight = rng.standard_normal((200, 512)).astype(F32)
    decibels = {}
    for name in ("int4", "int8"):
        state = Linear.from_weights(weight, weight_dtype=name).state_dict()
        error = state["weight"] * state["weight_scale"][:, None] - weight
        decibels[name] = 10 * np.log10((weight**2).sum() / (error**2).sum())
    assert decibels["int4"] > 21.9
    assert decibels["int8"] > decibels["int4"] + 15
    assert_same_bits(weights(weight)[0], Linear.from_weights(weight, weight_dtype="int8").state_dict()["weight"])

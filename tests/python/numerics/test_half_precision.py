"""float16 and bfloat16: every number read and written, rounding, what is out of range. Accuracy is with all types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import Case, make_call
from element_types import BFLOAT16, HALF, accumulator_of, limits
from tolerance import assert_same_bits

from mha_native import attention_weights, reference, scaled_dot_product_attention, sinusoidal_positions

Array = np.ndarray[Any, np.dtype[Any]]
each_half = pytest.mark.parametrize("half", HALF, ids=["f16", "bf16"])


def _all_numbers(half: Any) -> Array:
    return np.arange(2**16).astype(np.uint16).view(half)


def _finite(half: Any) -> Array:
    """All that are, in rising order."""
    numbers = _all_numbers(half)
    return np.sort(numbers[np.isfinite(_wide(numbers))].astype(np.float64)).astype(half)


def _wide(numbers: Array) -> Array:
    with np.errstate(invalid="ignore"):  # of signalling NaN
        return numbers.astype(np.float64)


def _rounded(exact: Array, half: Any) -> Array:
    """By NumPy, which converts to bfloat16 from float32 only."""
    return exact.astype(np.float32 if half == BFLOAT16 else np.float64).astype(half)


def _takes_subnormals_as_zero(half: Any) -> bool:
    """Those of bfloat16 are subnormal in float32, too, and those of float16 are not."""
    return half == BFLOAT16


def _mean_of(values: Array, rows: int) -> Array:
    """The mean over the first axis [Tk, N] of every column, by `rows` queries that see all keys alike."""
    value = values.reshape(len(values), -1, 256).swapaxes(0, 1)  # [B, Tk, Dv]
    query, key = np.zeros((len(value), rows, 2), values.dtype), np.zeros((*value.shape[:2], 2), values.dtype)
    out = scaled_dot_product_attention(*(x[:, None] for x in (query, key, value)))
    assert_same_bits(out, np.broadcast_to(out[:, :, :1], out.shape).copy())
    return out[:, 0, 0].ravel()


@pytest.mark.parametrize("rows", [1, 20])
@each_half
def test_the_mean_of_one_number_is_the_number(half: Any, rows: int, isa: str) -> None:
    numbers = _all_numbers(half)
    out = _mean_of(numbers[None], rows)
    expected = _wide(numbers)
    if _takes_subnormals_as_zero(half):
        expected[np.abs(expected) < float(limits(half).tiny)] = 0
    assert np.array_equal(_wide(out), expected, equal_nan=True)


@pytest.mark.parametrize("rows", [1, 20])
@each_half
def test_means_are_rounded_to_the_nearest_and_of_two_to_the_even_one(half: Any, rows: int, isa: str) -> None:
    numbers, tiny = _finite(half), float(limits(half).tiny)
    numbers = numbers[np.abs(_wide(numbers)) < float(limits(half).max) / 8]  # sums stay finite
    if _takes_subnormals_as_zero(half):
        numbers = numbers[np.abs(_wide(numbers)) >= tiny]
    numbers = numbers[: len(numbers) // 256 * 256]
    neighbours, far = np.roll(numbers, 1), np.roll(numbers, 999)
    for others in (neighbours, far, -far):  # the mean of neighbours is a tie
        exact = (_wide(numbers) + _wide(others)) / 2
        is_float32 = exact == exact.astype(np.float32)
        if _takes_subnormals_as_zero(half):
            is_float32 &= (exact == 0) | (np.abs(exact) >= tiny)
        assert is_float32.mean() > 0.4, "the case must show something"
        out = _mean_of(np.stack([numbers, others]), rows)
        assert np.array_equal(out[is_float32], _rounded(exact, half)[is_float32])


@each_half
def test_scores_are_float32(half: Any, isa: str) -> None:
    # Products of 1.6e9, and differences that no number of 16 bits of this size can show.
    query, key = np.full((1, 1, 5, 16), 1e4, half), np.full((1, 1, 3, 16), 1e4, half)
    key[0, 0, 2, 0] = float(key[0, 0, 0, 0]) * (1 + float(limits(half).eps))
    one = float(query[0, 0, 0, 0])
    scale = 1 / (one * one * float(limits(half).eps))
    value = np.array([[1, 0], [1, 0], [0, 1]], half)[None, None]
    out, lse = scaled_dot_product_attention(query, key, value, scale=scale, return_lse=True)
    exact, exact_lse = reference.scaled_dot_product_attention(query, key, value, scale=scale, return_lse=True)
    assert exact[0, 0, 0, 1] > 0.5, "the case must show something"
    np.testing.assert_allclose(out.astype(np.float64), exact, rtol=float(limits(half).eps), atol=0)
    np.testing.assert_allclose(lse, exact_lse, rtol=1e-6)
    scores = attention_weights(query, key, stage="scaled", scale=1.0)
    if half == np.float16:
        assert np.isposinf(scores).all(), "too large for float16"
    else:
        assert np.isfinite(scores).all()
    assert np.isfinite(attention_weights(query, key, scale=1.0)).all()


@each_half
def test_what_comes_with_float32(half: Any) -> None:
    call = make_call(Case("half", "", H=2, Tq=5, Tk=9, alibi=True, sinks=True, mask="additive QK"), half)
    out, lse = scaled_dot_product_attention(*call.arrays, return_lse=True, **call.options)
    assert out.dtype == attention_weights(call.query, call.key, **call.options).dtype == half
    assert lse.dtype == accumulator_of(half) == np.float32
    with pytest.raises(
        TypeError, match=f"attn_mask must be bool or of the dtype of query, {np.dtype(half)}; got .* float32"
    ):
        scaled_dot_product_attention(*call.arrays, attn_mask=np.zeros((5, 9), np.float32))


@each_half
def test_the_reference_takes_them(half: Any) -> None:
    call = make_call(Case("half-reference", "", H=2, Tq=5, Tk=9, sinks=True, mask="additive QK"), half)
    wide = {name: x.astype(np.float64) for name, x in call.options.items()}
    exact = reference.scaled_dot_product_attention(*call.arrays, **call.options)
    assert exact.dtype == np.float64
    assert_same_bits(exact, reference.scaled_dot_product_attention(*(x.astype(float) for x in call.arrays), **wide))
    for x, y in zip(
        reference.attention_statistics(call.query, call.key, **call.options),
        reference.attention_statistics(call.query.astype(float), call.key.astype(float), **wide),
        strict=True,
    ):
        assert_same_bits(x, y)


@each_half
def test_positions_are_rounded_once(half: Any) -> None:
    exact = sinusoidal_positions(500, 63, dtype="float64")
    assert_same_bits(sinusoidal_positions(500, 63, dtype=half), _rounded(exact, half))

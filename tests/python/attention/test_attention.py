"""Attention against the float64 oracle: every case, on every instruction set, in every element type."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import textbook
import tolerance
from cases import CASES, PLANTED_KEYS, PLANTED_POSITIONS, Call, Case, make_call, planted
from element_types import accumulator_of, limits
from tolerance import Expected, assert_close

import mha_native


@functools.cache
def _solved(case: Case, dtype: Any) -> tuple[Call, Expected]:
    call = make_call(case, dtype)
    return call, tolerance.attention(*call.arrays, call.options)


def _call_into_nan(call: Call, **more: Any) -> tuple[np.ndarray, np.ndarray]:
    """The call, into an array of NaN: whatever is not written shows."""
    shape = call.query.shape[:-1] + call.value.shape[-1:]
    buffer = np.full(shape, np.nan, call.query.dtype)
    out, lse = mha_native.scaled_dot_product_attention(
        *call.arrays, out=buffer, return_lse=True, **call.options, **more
    )
    assert out is buffer
    return out, lse


@pytest.mark.parametrize("case", CASES, ids=str)
def test_out_and_lse(case: Case, isa: str, dtype: Any, num_threads: int) -> None:
    call, expected = _solved(case, dtype)
    out, lse = _call_into_nan(call, num_threads=num_threads)
    assert_close(out, expected.out, expected.out_bound, label=f"{case} out")
    assert lse.dtype == accumulator_of(dtype)
    assert_close(lse, expected.lse, expected.lse_bound, label=f"{case} lse")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_weights(case: Case, isa: str, dtype: Any) -> None:
    call, expected = _solved(case, dtype)
    weights = mha_native.attention_weights(call.query, call.key, **call.options)
    assert weights.dtype == dtype
    assert_close(weights, expected.weights, expected.weights_bound, label=f"{case} weights")
    seen = textbook.visible(weights.shape, call.options)
    assert not weights[~seen].any(), "a masked key weighs exactly 0"
    total = weights.sum(-1, dtype=np.float64)
    rounding = np.full(total.shape, tolerance.gamma(2 * case.keys, float(limits(dtype).eps)))
    if case.sinks:  # and whatever the weight of the sink is off by
        assert_close(total, expected.weights.sum(-1), rounding + expected.lse_bound, label=f"{case} sum")
    else:
        assert_close(total, seen.any(-1).astype(np.float64), rounding, label=f"{case} sum")


@pytest.mark.parametrize("position", PLANTED_POSITIONS)
@pytest.mark.parametrize("limits", ["none", "last key", "first key", "hidden", "window", "diagonal"])
def test_planted_key(position: int, limits: str, isa: str, dtype: Any) -> None:
    # A random long row averages to almost nothing and hides a lost key. This one is nearly the value of one key, or,
    # where a bound hides that key, owes nothing to it. "hidden" and "diagonal" put the bound right beside it.
    sizes = {"Tq": PLANTED_KEYS} if limits == "diagonal" else {}
    call = planted(position, dtype, **sizes)
    call.options.update(
        {
            "none": {},
            "last key": {"key_lengths": np.array([position + 1])},
            "first key": {"window": (0, -1), "query_offset": position},
            "hidden": {"key_lengths": np.array([position])},
            "window": {"window": (2, 1), "query_offset": position - 1},
            "diagonal": {"is_causal": True},
        }[limits]
    )
    out, lse = _call_into_nan(call)
    expected = tolerance.attention(*call.arrays, call.options)
    label = f"planted at {position}, {limits}"
    assert_close(out, expected.out, expected.out_bound, label=f"{label} out")
    assert_close(lse, expected.lse, expected.lse_bound, label=f"{label} lse")
    weights = mha_native.attention_weights(call.query, call.key, **call.options)
    assert_close(weights, expected.weights, expected.weights_bound, label=f"{label} weights")
    taken = weights[0, 0, :, position]
    assert np.array_equal(taken > 0.99, textbook.visible(weights.shape, call.options)[0, 0, :, position])

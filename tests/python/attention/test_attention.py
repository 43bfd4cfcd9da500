"""Every result of a call against the float64 oracle: every case, on every instruction set, in every element type."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import statistics_tolerance
import textbook
import tolerance
from cases import CASES, PLANTED_KEYS, PLANTED_POSITIONS, QUICK_CASES, Call, Case, make_call, planted
from element_types import accumulator_of, limits
from matrix import ALL, matrix, nightly
from statistics_tolerance import ExpectedStatistics, assert_statistics
from tolerance import SCORE_STAGES, Expected, assert_close

from mha_native import attention_weights, scaled_dot_product_attention

pytestmark = matrix(dtype=ALL)


@functools.cache
def _solved(case: Case, dtype: Any) -> tuple[Call, Expected, ExpectedStatistics]:
    call = make_call(case, dtype)
    of_weights = statistics_tolerance.statistics(call.query, call.key, call.options)
    return call, tolerance.attention(*call.arrays, call.options), of_weights


def _call_into_nan(call: Call, **more: Any) -> tuple[np.ndarray, np.ndarray]:
    """The call, into an array of NaN: whatever is not written shows."""
    shape = call.query.shape[:-1] + call.value.shape[-1:]
    buffer = np.full(shape, np.nan, call.query.dtype)
    out, lse = scaled_dot_product_attention(*call.arrays, out=buffer, return_lse=True, **call.options, **more)
    assert out is buffer
    return out, lse


@matrix(case=nightly(CASES, quick=QUICK_CASES))
def test_every_result(case: Case, isa: str, dtype: Any, num_threads: int) -> None:
    call, expected, of_weights = _solved(case, dtype)
    seen = textbook.visible((case.B, case.H, case.Tq, case.keys), call.options)

    for stage in SCORE_STAGES:
        scores = np.full(seen.shape, np.nan, dtype)
        assert attention_weights(call.query, call.key, stage=stage, out=scores, **call.options) is scores
        assert_close(scores, *tolerance.scores(call.query, call.key, call.options, stage), label=f"{case} {stage}")
    assert np.array_equal(np.isneginf(scores), ~seen), "minus infinity exactly where a key is masked"

    weights = attention_weights(call.query, call.key, **call.options)
    assert weights.dtype == dtype
    assert_close(weights, expected.weights, expected.weights_bound, label=f"{case} weights")
    assert not weights[~seen].any(), "a masked key weighs exactly 0"
    total = weights.sum(-1, dtype=np.float64)
    rounding = np.full(total.shape, tolerance.gamma(2 * case.keys, float(limits(dtype).eps)))
    if case.sinks:  # and whatever the weight of the sink is off by
        assert_close(total, expected.weights.sum(-1), rounding + expected.lse_bound, label=f"{case} sum")
    else:
        assert_close(total, seen.any(-1).astype(np.float64), rounding, label=f"{case} sum")

    out, lse = _call_into_nan(call, num_threads=num_threads)
    assert_close(out, expected.out, expected.out_bound, label=f"{case} out")
    assert lse.dtype == accumulator_of(dtype)
    assert_close(lse, expected.lse, expected.lse_bound, label=f"{case} lse")

    assert_statistics(call.query, call.key, call.options, str(case), of_weights)


@matrix(position=nightly(PLANTED_POSITIONS, quick=(0, 31, 63, 64, 193, 398)))
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
    weights = attention_weights(call.query, call.key, **call.options)
    assert_close(weights, expected.weights, expected.weights_bound, label=f"{label} weights")
    taken = weights[0, 0, :, position]
    assert np.array_equal(taken > 0.99, textbook.visible(weights.shape, call.options)[0, 0, :, position])

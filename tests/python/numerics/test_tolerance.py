"""The bound itself: wide enough for an honest computation, too narrow for a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import textbook
import tolerance
from cases import CASES, QUICK_CASES, Call, Case, make_call
from matrix import ALL, WIDE, matrix, nightly
from tolerance import assert_close, assert_same_bits

pytestmark = matrix(dtype=ALL)

ORDINARY = Case("ordinary", "long enough that one key is a small part of a row", H=2, Tq=50, Tk=300, D=64)


@matrix(case=nightly(CASES, quick=QUICK_CASES))
def test_the_textbook_computation_is_within_bounds(case: Case, dtype: Any) -> None:
    call = make_call(case, dtype)
    expected = tolerance.attention(*call.arrays, call.options)
    out, lse, weights = textbook.attention(*call.arrays, call.options)
    assert_close(out, expected.out, expected.out_bound, label=f"{case} out")
    assert_close(lse, expected.lse, expected.lse_bound, label=f"{case} lse")
    assert_close(weights, expected.weights, expected.weights_bound, label=f"{case} weights")


def _without_the_last_key(call: Call) -> np.ndarray:
    return textbook.attention(call.query, call.key[..., :-1, :], call.value[..., :-1, :], {})[0]


def _with_two_values_swapped(call: Call) -> np.ndarray:
    value = call.value.copy()
    value[..., [95, 96], :] = value[..., [96, 95], :]
    return textbook.attention(call.query, call.key, value, {})[0]


def _with_the_scale_off_by_a_thousandth(call: Call) -> np.ndarray:
    return textbook.attention(*call.arrays, {"scale": 1.001 / 8})[0]


def _with_one_nan(call: Call) -> np.ndarray:
    out = textbook.attention(*call.arrays, {})[0]
    out[0, 1, 2, 3] = np.nan
    return out


def _with_the_weights_in_half_precision(call: Call) -> np.ndarray:
    weights = textbook.attention(*call.arrays, {})[2]
    return weights.astype(np.float16).astype(weights.dtype) @ call.value


def _with_an_eighth_of_a_block_too_many_in_the_sum(call: Call) -> np.ndarray:
    return textbook.attention(*call.arrays, {})[0] * call.value.dtype.type(300 / 312)


def _shows_in(dtype: Any, wrong: Callable[..., Any], **_: Any) -> bool:
    """Whether a fault is larger than the rounding to 16 bits."""
    return dtype in WIDE or wrong not in (
        _with_the_scale_off_by_a_thousandth, _with_the_weights_in_half_precision, _capped_a_thousandth_higher
    )  # fmt: skip


@matrix(
    wrong=[
        _without_the_last_key,
        _with_two_values_swapped,
        _with_the_scale_off_by_a_thousandth,
        _with_one_nan,
        _with_the_weights_in_half_precision,
        _with_an_eighth_of_a_block_too_many_in_the_sum,
    ],
    where=_shows_in,
)
def test_a_wrong_result_is_outside(wrong: Callable[[Call], np.ndarray], dtype: Any) -> None:
    call = make_call(ORDINARY, dtype)
    expected = tolerance.attention(*call.arrays, call.options)
    with pytest.raises(AssertionError, match="worst at"):
        assert_close(wrong(call), expected.out, expected.out_bound, label="wrong")


MODIFIED = Case(
    "modified", "all changes of a score at work", H=4, Tq=50, Tk=300, D=64, softcap=2.5, alibi=True, sinks=True
)


def _capped_before_scaling(call: Call) -> dict[str, Any]:
    return call.options | {"softcap": call.options["softcap"] * 8}


def _capped_a_thousandth_higher(call: Call) -> dict[str, Any]:
    return call.options | {"softcap": call.options["softcap"] * 1.001}


def _distance_off_by_one(call: Call) -> dict[str, Any]:
    return call.options | {"query_offset": 1}


def _signed_distance(call: Call) -> dict[str, Any]:
    bias = call.options["alibi_slopes"][:, None, None] * (np.arange(300) - np.arange(50)[:, None])
    return call.options | {"alibi_slopes": None, "attn_mask": bias.astype(call.query.dtype)}


def _slopes_of_neighbours(call: Call) -> dict[str, Any]:
    return call.options | {"alibi_slopes": np.roll(call.options["alibi_slopes"], 1)}


def _sinks_scaled(call: Call) -> dict[str, Any]:
    return call.options | {"sinks": call.options["sinks"] / 8}


def _no_sinks(call: Call) -> dict[str, Any]:
    return call.options | {"sinks": None}


@matrix(
    wrong=[
        _capped_before_scaling,
        _capped_a_thousandth_higher,
        _distance_off_by_one,
        _signed_distance,
        _slopes_of_neighbours,
        _sinks_scaled,
        _no_sinks,
    ],
    where=_shows_in,
)
def test_a_wrong_option_is_outside(wrong: Callable[[Call], dict[str, Any]], dtype: Any) -> None:
    call = make_call(MODIFIED, dtype)
    expected = tolerance.attention(*call.arrays, call.options)
    results = zip(
        textbook.attention(*call.arrays, wrong(call)),
        (expected.out, expected.lse, expected.weights),
        (expected.out_bound, expected.lse_bound, expected.weights_bound),
        strict=True,
    )
    for actual, exact, bound in results:
        with pytest.raises(AssertionError, match="worst at"):
            assert_close(actual, exact, bound, label="wrong")


def test_a_float32_result_is_not_a_float64_result() -> None:
    call = make_call(ORDINARY, np.float64)
    expected = tolerance.attention(*call.arrays, call.options)
    rounded = expected.out.astype(np.float32).astype(np.float64)
    with pytest.raises(AssertionError, match="worst at"):
        assert_close(rounded, expected.out, expected.out_bound, label="rounded")


def test_nan_and_infinity_have_to_be_where_they_belong() -> None:
    bound = np.full(3, np.inf)
    expected = np.array([np.nan, np.inf, 1.0])
    assert_close(expected, expected, bound, label="same")
    for wrong in ([0, np.inf, 1], [np.nan, -np.inf, 1], [np.nan, 1e308, 1], [np.nan, np.inf, np.nan]):
        with pytest.raises(AssertionError):
            assert_close(np.array(wrong), expected, bound, label="wrong")


def test_bits_differ_where_values_do_not() -> None:
    assert_same_bits(np.array([np.nan, 0.0]), np.array([np.nan, 0.0]))
    with pytest.raises(AssertionError, match="first difference"):
        assert_same_bits(np.array([0.0]), np.array([-0.0]))

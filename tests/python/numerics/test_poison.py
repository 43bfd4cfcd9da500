"""NaN and infinities: behind a mask they reach nothing; in the open they reach what depends on them and no more."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

import numpy as np
import pytest
import textbook
import tolerance
from cases import CASES, QUICK_CASES, RESTRICTED, Call, Case, make_call
from matrix import ALL, matrix, nightly
from tolerance import Expected, assert_close, assert_same_bits

import mha_native
from mha_native import reference

pytestmark = matrix(dtype=ALL)

GROUPED = [case for case in CASES if case.name in ("long", "group-6-2-5", "group-8-1-70", "size-3", "head-dim-80")]
POISON = [np.nan, np.inf, -np.inf]


def _seen_by_any_row(call: Call) -> np.ndarray:
    """[B, Hk, Tk], True where some row of some head of the group sees the key."""
    batch, heads, queries, _ = call.query.shape
    kv_heads, keys = call.key.shape[1:3]
    seen = textbook.visible((batch, heads, queries, keys), call.options)
    return seen.reshape(batch, kv_heads, -1, keys).any(2)


def _results(call: Call) -> dict[str, np.ndarray]:
    """Everything that is computed of a call, by name."""
    out, lse = mha_native.scaled_dot_product_attention(*call.arrays, return_lse=True, **call.options)
    weights = mha_native.attention_weights(call.query, call.key, **call.options)
    of_weights = mha_native.attention_statistics(call.query, call.key, **call.options)
    return {"out": out, "lse": lse, "weights": weights, **of_weights._asdict()}


@matrix(poison=nightly(POISON, quick=[np.nan]))
@matrix(case=nightly(RESTRICTED, quick=QUICK_CASES))
def test_keys_that_no_row_sees_change_no_bit(case: Case, poison: float, isa: str, dtype: Any) -> None:
    call = make_call(case, dtype)
    clean = _results(call)
    hidden = ~_seen_by_any_row(call)
    call.key[hidden] = call.value[hidden] = poison
    for name, dirty in _results(call).items():
        assert_same_bits(dirty, clean[name], label=f"{case} {name}")


@functools.cache
def _solved_with_a_nan(case: Case, dtype: Any, where: str, position: int) -> tuple[Call, Expected]:
    call = make_call(case, dtype)
    getattr(call, where)[0, -1, position, -1] = np.nan
    expected = tolerance.attention(*call.arrays, call.options)
    return call, dataclasses.replace(expected, weights=np.empty(0), weights_bound=np.empty(0))  # large, and not used


@matrix(case=nightly(RESTRICTED + GROUPED, quick=QUICK_CASES))
def test_a_nan_key_reaches_the_rows_that_see_it(case: Case, isa: str, dtype: Any) -> None:
    clean = make_call(case, dtype)
    expected_bits = mha_native.scaled_dot_product_attention(*clean.arrays, **clean.options)
    visible = textbook.visible((*expected_bits.shape[:3], case.keys), clean.options)
    for where, position in itertools.product(("key", "value"), sorted({0, case.keys // 2, case.keys - 1})):
        call, expected = _solved_with_a_nan(case, dtype, where, position)
        out, lse = mha_native.scaled_dot_product_attention(*call.arrays, return_lse=True, **call.options)
        label = f"{case} NaN {where} at {position}"
        assert_close(out, expected.out, expected.out_bound, label=label)
        assert_close(lse, expected.lse, expected.lse_bound, label=f"{label} lse")
        clear = ~np.isnan(expected.out)
        assert_same_bits(out[clear], expected_bits[clear], label=label)
        seen = visible[0, -1, :, position]
        assert np.array_equal(np.isnan(out[0, -1]).any(-1), seen), f"{label}: not the rows that see it"


@matrix(case=nightly(GROUPED, quick=QUICK_CASES))
def test_a_nan_query_reaches_its_own_row(case: Case, isa: str, dtype: Any) -> None:
    call = make_call(case, dtype)
    clean = mha_native.scaled_dot_product_attention(*call.arrays)
    row = (0, case.H - 1, case.Tq // 2)
    call.query[(*row, 0)] = np.nan
    out, lse = mha_native.scaled_dot_product_attention(*call.arrays, return_lse=True)
    assert np.isnan(out[row]).all()
    assert np.isnan(lse[row])
    others = np.ones(out.shape[:3], bool)
    others[row] = False
    assert_same_bits(out[others], clean[others], label=str(case))
    assert not np.isnan(lse[others]).any()


@pytest.mark.parametrize("hidden", ["causal", "window", "boolean", "additive", "lengths"])
def test_a_row_of_nan_weighs_only_what_it_sees(hidden: str, isa: str, dtype: Any, rng: np.random.Generator) -> None:
    call = make_call(Case("nan-row", "", B=2, H=2, Tq=40, Tk=150, D=16), dtype)
    call.query[1, 0, 20, 3] = np.nan
    mask = rng.random((2, 2, 40, 150)) < 0.6
    options: dict[str, Any] = {
        "causal": {"is_causal": True, "query_offset": 70},
        "window": {"window": (50, 9), "query_offset": 70},
        "boolean": {"attn_mask": mask},
        "additive": {"attn_mask": np.where(mask, 0, -np.inf).astype(dtype)},
        "lengths": {"key_lengths": np.array([150, 101])},
    }[hidden]
    weights = mha_native.attention_weights(call.query, call.key, **options)
    expected = reference.attention_weights(call.query, call.key, **options)
    assert 0 < np.isnan(expected[1, 0, 20]).sum() < 150, "the case must show something"
    assert np.array_equal(np.isnan(weights), np.isnan(expected))
    assert (weights[expected == 0] == 0).all()


@pytest.mark.parametrize("queries", [4, 40], ids=["few", "many"])
@pytest.mark.parametrize("hidden", ["nothing", "causal", "boolean", "additive", "lengths"])
def test_a_visible_score_of_minus_infinity_is_no_mask(hidden: str, queries: int, isa: str, dtype: Any) -> None:
    """In a row of NaN its weight is NaN, where that of a masked key is 0; in any row it lets a NaN value through."""
    call = make_call(Case("visible", "", H=2, Tq=queries, Tk=150, D=16, Dv=16), dtype)
    call.query[..., 0] = 1
    call.key[..., 5, 0] = -np.inf
    call.query[0, 0, queries // 2, 3] = np.nan
    call.value[0, 1, 5] = np.nan
    mask = np.arange(150) % 7 != 3
    options: dict[str, Any] = {
        "nothing": {},
        "causal": {"is_causal": True, "query_offset": 140 - queries},
        "boolean": {"attn_mask": np.broadcast_to(mask, (queries, 150))},
        "additive": {"attn_mask": np.broadcast_to(np.where(mask, 0, -np.inf).astype(dtype), (queries, 150))},
        "lengths": {"key_lengths": np.array([101])},
    }[hidden]
    expected = tolerance.attention(*call.arrays, options)
    assert np.isnan(expected.weights[0, 0, queries // 2, 5])
    assert np.isnan(expected.out[0, 1]).all()
    weights = mha_native.attention_weights(call.query, call.key, **options)
    assert np.array_equal(np.isnan(weights), np.isnan(expected.weights))
    out, lse = mha_native.scaled_dot_product_attention(*call.arrays, return_lse=True, **options)
    assert_close(out, expected.out, expected.out_bound, label="out")
    assert_close(lse, expected.lse, expected.lse_bound, label="lse")
    received = mha_native.attention_statistics(call.query, call.key, **options).received_weight
    assert np.array_equal(np.isnan(received), np.isnan(expected.weights).any(-2))


@pytest.mark.parametrize("sign", [1, -1])
@matrix(case=nightly(GROUPED, quick=QUICK_CASES))
def test_a_visible_infinite_value(case: Case, sign: int, isa: str, dtype: Any) -> None:
    call = make_call(case, dtype)
    call.value[0, 0, case.keys // 2, 0] = sign * np.inf
    out = mha_native.scaled_dot_product_attention(*call.arrays)
    expected = tolerance.attention(*call.arrays, {})
    assert np.isinf(expected.out).any(), "the case must show something"
    assert_close(out, expected.out, expected.out_bound, label=str(case))


@matrix(case=nightly(GROUPED, quick=QUICK_CASES))
def test_a_visible_infinite_key(case: Case, isa: str, dtype: Any) -> None:
    # A score of plus infinity has no softmax and gives NaN; one of minus infinity weighs nothing.
    call = make_call(case, dtype)
    call.key[0, 0, case.keys // 2, 0] = np.inf
    out = mha_native.scaled_dot_product_attention(*call.arrays)
    expected = tolerance.attention(*call.arrays, {})
    assert np.isnan(expected.out).any(), "the case must show something"
    assert_close(out, expected.out, expected.out_bound, label=str(case))


def test_a_nan_in_an_additive_mask(isa: str, dtype: Any) -> None:
    case = Case("nan-mask", "", Tq=40, Tk=110, mask="finite HQK", is_causal=True)
    call = make_call(case, dtype)
    mask = call.options["attn_mask"]
    mask[0, 5, 3] = np.nan  # in the open
    mask[1, 5, 70] = np.nan  # behind the diagonal
    out = mha_native.scaled_dot_product_attention(*call.arrays, **call.options)
    assert np.isnan(out[0, 0, 5]).all()
    assert np.isnan(out).any(-1).sum() == 1


@pytest.mark.parametrize("kind", ["boolean", "additive"])
def test_a_mask_hides_nan_within_a_row(kind: str, isa: str, dtype: Any, rng: np.random.Generator) -> None:
    # Some rows see the poisoned key and some do not, inside one tile.
    call = make_call(Case("hide", "", H=1, Tq=70, Tk=150, mask=f"{kind} QK"), dtype)
    clean = mha_native.scaled_dot_product_attention(*call.arrays, **call.options)
    call.value[0, 0, 100] = np.nan
    call.key[0, 0, 20] = np.inf
    seen = textbook.visible((1, 1, 70, 150), call.options)[0, 0]
    out = mha_native.scaled_dot_product_attention(*call.arrays, **call.options)[0, 0]
    untouched = ~seen[:, 100] & ~seen[:, 20]
    assert untouched.any()
    assert_same_bits(out[untouched], clean[0, 0][untouched])
    assert np.isnan(out[seen[:, 100]]).all()

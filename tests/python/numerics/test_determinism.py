"""Named cases of one row, one answer: threads, batch elements and rows by themselves. For any case: test_one_row.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import BY_NAME, Case, make_call
from matrix import ALL, WIDE, matrix
from row_cases import LARGE, ROW_CASES, SLICES, of_batch_element
from tolerance import assert_same_bits

from mha_native import attention_weights, scaled_dot_product_attention

pytestmark = matrix(dtype=ALL)


@matrix(dtype=WIDE, case=LARGE)
def test_threads(case: Case, isa: str, dtype: Any) -> None:
    call = make_call(case, dtype)
    one, one_lse = scaled_dot_product_attention(*call.arrays, return_lse=True, num_threads=1, **call.options)
    one_weights = attention_weights(call.query, call.key, num_threads=1, **call.options)
    for threads in (2, 3, 7):
        out, lse = scaled_dot_product_attention(*call.arrays, return_lse=True, num_threads=threads, **call.options)
        assert_same_bits(out, one, label=f"{threads} threads")
        assert_same_bits(lse, one_lse, label=f"{threads} threads, lse")
        weights = attention_weights(call.query, call.key, num_threads=threads, **call.options)
        assert_same_bits(weights, one_weights, label=f"{threads} threads, weights")


def test_again_and_again(isa: str, dtype: Any) -> None:
    call = make_call(LARGE[1], dtype)
    first = scaled_dot_product_attention(*call.arrays, **call.options)
    for _ in range(5):
        assert_same_bits(scaled_dot_product_attention(*call.arrays, **call.options), first)


def test_lse_changes_no_bit(isa: str, dtype: Any) -> None:
    call = make_call(LARGE[1], dtype)
    with_lse, _ = scaled_dot_product_attention(*call.arrays, return_lse=True, **call.options)
    assert_same_bits(scaled_dot_product_attention(*call.arrays, **call.options), with_lse)


@matrix(
    dtype=WIDE,
    case=[
        "batch",
        "lengths",
        "group-8-2-5",
        "boolean-everything",
        "finite-everything",
        *(
            f"{option}-{kind}"
            for option in ("softcap", "alibi", "sinks", "modified")
            for kind in ("group", "offsets", "everything-boolean", "everything-additive")
        ),
    ],
)
def test_batch_element_by_itself(case: str, isa: str, dtype: Any) -> None:
    call = make_call(BY_NAME[case], dtype)
    together = scaled_dot_product_attention(*call.arrays, **call.options)
    together_weights = attention_weights(call.query, call.key, **call.options)
    for b in range(len(call.query)):
        one = of_batch_element(call.options, b)
        query, key, value = (x[b : b + 1] for x in call.arrays)
        assert_same_bits(scaled_dot_product_attention(query, key, value, **one), together[b : b + 1], label=f"b={b}")
        assert_same_bits(attention_weights(query, key, **one), together_weights[b : b + 1], label=f"b={b}")


@matrix(dtype=WIDE, case=ROW_CASES)
def test_some_rows_by_themselves(case: Case, isa: str, dtype: Any) -> None:
    call = make_call(case, dtype)
    together, together_lse = scaled_dot_product_attention(*call.arrays, return_lse=True, **call.options)
    together_weights = attention_weights(call.query, call.key, **call.options)
    for first, last in SLICES:
        options = dict(call.options)
        options["query_offset"] = options.get("query_offset", 0) + first
        if "attn_mask" in options:
            options["attn_mask"] = options["attn_mask"][:, first:last]
        query = call.query[:, :, first:last]
        out, lse = scaled_dot_product_attention(query, call.key, call.value, return_lse=True, **options)
        label = f"{case} rows {first} to {last}"
        assert_same_bits(out, together[:, :, first:last], label=label)
        assert_same_bits(lse, together_lse[:, :, first:last], label=f"{label}, lse")
        weights = attention_weights(query, call.key, **options)
        assert_same_bits(weights, together_weights[:, :, first:last], label=f"{label}, weights")


@pytest.mark.parametrize("queries", [1, 2])
@pytest.mark.parametrize("heads", [5, 20, 32])
def test_threads_that_share_the_keys_of_one_head(
    heads: int, queries: int, isa: str, dtype: Any, rng: np.random.Generator
) -> None:
    query = rng.standard_normal((1, heads, queries, 64)).astype(dtype)
    key, value = rng.standard_normal((2, 1, 1, 9000, 64)).astype(dtype)
    value[..., 100:700, :] = np.nan  # behind the mask: one span and parts of two
    mask = np.ones((1, 9000), bool)
    mask[:, 100:700] = False
    options = {"attn_mask": mask, "window": (8500, 0), "query_offset": 8997}
    expected = scaled_dot_product_attention(query, key, value, return_lse=True, num_threads=1, **options)
    assert np.isfinite(expected[0]).all()
    for threads in (2, 3, 7):
        results = scaled_dot_product_attention(query, key, value, return_lse=True, num_threads=threads, **options)
        for result, same in zip(results, expected, strict=True):
            assert_same_bits(result, same, label=f"{threads} threads")

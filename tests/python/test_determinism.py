"""Named cases of one row, one answer: threads, batch elements and rows by themselves. For any case: test_one_row.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import CASES, Case, make_call
from tolerance import assert_same_bits

from mha_native import attention_weights, scaled_dot_product_attention

BY_NAME = {case.name: case for case in CASES}
# Enough work that seven threads are really used, and fewer tiles than threads in one of them.
LARGE = [
    Case("large", "", B=2, H=4, Tq=260, Tk=500, D=64),
    Case("large-group", "", H=8, Hk=2, Tq=130, Tk=700, D=64, is_causal=True),
    Case("large-mask", "", B=3, H=2, Tq=200, Tk=300, D=64, mask="additive BHQK", window=(90, 40)),
    Case("large-decode", "", B=2, H=8, Hk=2, Tq=1, Tk=4000, D=64),
    Case("one-tile", "", H=1, Tq=20, Tk=3000, D=128),
    Case("large-softcap", "", B=2, H=4, Tq=260, Tk=500, D=64, softcap=2.0),
    Case("large-alibi", "", H=8, Hk=2, Tq=130, Tk=700, D=64, is_causal=True, alibi=True),
    Case("large-sinks", "", B=2, H=4, Tq=260, Tk=500, D=64, sinks=True),
    Case("large-modified", "", B=2, H=8, Hk=2, Tq=1, Tk=4000, D=64, softcap=2.0, alibi=True, sinks=True),
]
OF_EACH_HEAD = ("alibi_slopes", "sinks")


@pytest.mark.parametrize("case", LARGE, ids=str)
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


@pytest.mark.parametrize(
    "case",
    [
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
        one = {
            name: option[b : b + 1]
            if isinstance(option, np.ndarray) and name not in OF_EACH_HEAD and len(option) > 1
            else option
            for name, option in call.options.items()
        }
        query, key, value = (x[b : b + 1] for x in call.arrays)
        assert_same_bits(scaled_dot_product_attention(query, key, value, **one), together[b : b + 1], label=f"b={b}")
        assert_same_bits(attention_weights(query, key, **one), together_weights[b : b + 1], label=f"b={b}")


SLICES = [(0, 1), (7, 8), (149, 150), (0, 5), (60, 69), (3, 19), (31, 95), (64, 128), (100, 150)]
ROW_CASES = [
    Case("rows", "", H=2, Tq=150, Tk=333, D=40),
    Case("rows-causal", "", H=2, Tq=150, Tk=333, D=40, is_causal=True, query_offset=100),
    Case("rows-window", "", H=2, Tq=150, Tk=333, D=40, window=(70, 9), query_offset=50),
    Case("rows-group", "", H=6, Hk=2, Tq=150, Tk=333, D=24, is_causal=True),
    Case("rows-bias", "", H=2, Tq=150, Tk=333, D=24, mask="additive HQK"),
    Case("rows-mask", "", H=2, Tq=150, Tk=333, D=24, mask="boolean HQK", is_causal=True, query_offset=150),
    Case("rows-softcap", "", H=2, Tq=150, Tk=333, D=40, softcap=2.0),
    Case("rows-softcap-group", "", H=6, Hk=2, Tq=150, Tk=333, D=24, is_causal=True, softcap=2.0),
    Case("rows-alibi", "", H=2, Tq=150, Tk=333, D=40, alibi=True, query_offset=100),
    Case("rows-alibi-group", "", H=6, Hk=2, Tq=150, Tk=333, D=24, window=(70, 9), alibi=True, query_offset=50),
    Case("rows-sinks", "", H=2, Tq=150, Tk=333, D=40, sinks=True),
    Case("rows-sinks-group", "", H=6, Hk=2, Tq=150, Tk=333, D=24, is_causal=True, sinks=True),
    Case(
        "rows-modified",
        "",
        H=6,
        Hk=2,
        Tq=150,
        Tk=333,
        D=24,
        mask="additive HQK",
        is_causal=True,
        query_offset=150,
        softcap=2.0,
        alibi=True,
        sinks=True,
    ),
]


@pytest.mark.parametrize("case", ROW_CASES, ids=str)
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

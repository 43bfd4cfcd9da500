"""Values near the largest number of their type: sums of them overflow, their means do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tolerance
from cases import Call, Case, make_call
from element_types import BFLOAT16, accumulator_of, limits
from matrix import WIDE, matrix
from tolerance import assert_close, assert_same_bits

from mha_native import (
    MultiHeadAttention,
    merge_attention,
    scaled_dot_product_attention,
    scaled_dot_product_attention_varlen,
)

pytestmark = matrix(dtype=(*WIDE, BFLOAT16))
LARGE = 0.97
"""Of the largest number."""

CASES = [
    Case("large-few", "few rows", Tq=3, Tk=90, D=64),
    Case("large-many", "whole tiles, and one that is not", Tq=70, Tk=90, D=32),
    Case("large-tails", "sizes that are no whole vectors", Tq=37, Tk=101, D=5, Dv=19),
    Case("large-causal", "rows of few keys, which do not overflow", Tq=70, D=16, Dv=33, is_causal=True),
    Case("large-grouped", "few rows of several heads, several spans", H=6, Hk=2, Tq=2, Tk=700, D=64),
    Case("large-decode", "keys shared out among threads", H=1, Tq=1, Tk=2100, D=64, Dv=128),
    Case("large-spans", "the same of rows that are no whole vectors", H=1, Tq=8, Tk=2100, D=20, Dv=33),
    Case("large-boolean", "blocks that a mask cuts", Tq=30, Tk=200, mask="boolean QK"),
    Case("large-key-mask", "a mask over keys", B=2, Tq=3, Tk=200, D=64, mask="boolean B11K"),
    Case("large-additive", "scores that are scaled first", Tq=30, Tk=200, D=64, mask="additive QK"),
    Case("large-window", "bounds on both sides", Tq=90, D=64, window=(40, 3)),
    Case("large-lengths", "padding", B=3, Tq=5, Tk=130, D=64, key_lengths=(130, 0, 77)),
    Case("large-sinks", "a share of the weight that is no key's", Tq=30, Tk=200, D=64, sinks=True),
    Case("large-few-sinks", "the same of few rows", Tq=2, Tk=600, D=64, sinks=True),
    Case("large-options", "all that changes scores", Tq=20, Tk=150, D=64, softcap=8.0, alibi=True, scale=-0.1),
    Case("large-small-scale", "as many halvings of a weight as there are in a score", Tq=20, Tk=150, D=64, scale=1e-36),
    Case("large-peaked", "few keys have the weight", Tq=20, Tk=600, D=64, data="peaked"),
    Case("large-rising", "every key outdoes those before it", Tq=20, Tk=600, D=64, data="rising"),
    Case("large-huge-scores", "scores that differ by no less than many doublings", Tq=20, Tk=150, data="huge_scores"),
]


def large_call(case: Case, dtype: Any) -> Call:
    """Large values: of both signs in a third of the columns, and some of size 1 in the second column."""
    call = make_call(case, dtype)
    signs = np.where(np.arange(call.value.shape[-1]) % 3 == 0, np.sign(call.value.astype(np.float64)), 1)
    ordinary = call.value[..., 1].copy()
    call.value[...] = (LARGE * float(limits(dtype).max) * signs).astype(dtype)
    call.value[..., 1] = ordinary
    return call


def scaled_oracle(call: Call) -> tolerance.Expected:
    """Of values 2^-10 as large, since the bounds of float64 would not be finite. Results are proportional to values."""
    dtype = call.value.dtype.type
    return tolerance.attention(call.query, call.key, (call.value * dtype(2.0**-10)).astype(dtype), call.options)


def assert_is_mean(out: Any, call: Call) -> None:
    expected = scaled_oracle(call)
    assert_close(
        out.astype(np.float64).astype(accumulator_of(out.dtype)) * 2.0**-10,
        expected.out,
        expected.out_bound,
        label="out",
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_mean_does_not_overflow(case: Case, dtype: Any, isa: str, num_threads: int) -> None:
    call = large_call(case, dtype)
    out = np.full((*call.query.shape[:3], case.value_dim), np.nan, dtype)
    options: dict[str, Any] = {"return_lse": True, "num_threads": num_threads, **call.options}
    _, lse = scaled_dot_product_attention(*call.arrays, out=out, **options)
    assert_is_mean(out, call)
    ordinary = make_call(case, dtype)
    plain, plain_lse = scaled_dot_product_attention(*ordinary.arrays, **options)
    assert_same_bits(lse, plain_lse, label="lse")
    assert_same_bits(out[..., 1], plain[..., 1], label="a column of ordinary values")


@pytest.mark.parametrize("case", [case for case in CASES if case.Tq > 1], ids=str)
def test_a_row_alone_has_the_same_bits(case: Case, dtype: Any, isa: str) -> None:
    call = large_call(case, dtype)
    out = scaled_dot_product_attention(*call.arrays, **call.options)
    for i in (0, case.Tq // 2, case.Tq - 1):
        options = {**call.options, "query_offset": i}
        if case.mask is not None and call.options["attn_mask"].shape[-2] > 1:
            options["attn_mask"] = call.options["attn_mask"][..., i : i + 1, :]
        alone = scaled_dot_product_attention(call.query[:, :, i : i + 1], call.key, call.value, **options)
        assert_same_bits(out[:, :, i : i + 1], alone, label=f"row {i}")


def test_a_ragged_batch_has_the_same_bits(dtype: Any, isa: str, num_threads: int) -> None:
    call = large_call(CASES[1], dtype)
    dense = scaled_dot_product_attention(*call.arrays)
    rows = [np.concatenate([x[0].swapaxes(0, 1)] * 2) for x in call.arrays]
    out = scaled_dot_product_attention_varlen(
        *rows, np.array([0, 70, 140]), np.array([0, 90, 180]), num_threads=num_threads
    )
    assert_same_bits(out[:70].swapaxes(0, 1), dense[0])
    assert_same_bits(out[70:].swapaxes(0, 1), dense[0])


def test_equal_scores_of_any_size(dtype: Any, isa: str) -> None:
    """A difference of a few halvings is lost in scores of 1e14."""
    for rows in (2, 40):
        query, key = np.full((1, 1, rows, 8), 1e7).astype(dtype), np.full((1, 1, 600, 8), 1e7).astype(dtype)
        value = np.full((1, 1, 600, 16), LARGE * float(limits(dtype).max)).astype(dtype)
        assert_is_mean(scaled_dot_product_attention(query, key, value), Call(query, key, value, {}))


@pytest.mark.parametrize("peak", [3, 70, 555])
def test_keys_that_hardly_weigh(peak: int, dtype: Any, isa: str) -> None:
    """Many large values that one small one outweighs by so much that their weights are almost 0."""
    for rows in (2, 40):
        query, key = np.ones((1, 1, rows, 16), dtype), np.zeros((1, 1, 600, 16), dtype)
        key[:, :, peak] = 20  # a score of 80
        value = np.full((1, 1, 600, 16), LARGE * float(limits(dtype).max)).astype(dtype)
        value[:, :, peak] = 1
        assert_is_mean(scaled_dot_product_attention(query, key, value), Call(query, key, value, {}))


@pytest.mark.parametrize("rows", [2, 40])
def test_infinity_and_nan_stay(rows: int, dtype: Any, isa: str) -> None:
    call = large_call(Case("large-poison", "", H=1, Tq=rows, Tk=600, D=64, Dv=32, data="peaked"), dtype)
    clean = scaled_dot_product_attention(*call.arrays)
    call.value[0, 0, 5, 3], call.value[0, 0, 550, 4], call.value[0, 0, 6, 5] = np.inf, -np.inf, np.nan
    out = scaled_dot_product_attention(*call.arrays)
    weights = scaled_dot_product_attention(call.query, call.key, np.eye(600, dtype=dtype)[None, None])
    assert (out[0, 0, weights[0, 0, :, 5] > 0, 3] == np.inf).all()
    assert (out[0, 0, weights[0, 0, :, 550] > 0, 4] == -np.inf).all()
    assert np.isnan(out[0, 0, :, 5].astype(float)).all()
    assert_same_bits(np.delete(out, (3, 4, 5), axis=-1), np.delete(clean, (3, 4, 5), axis=-1))


def test_through_a_layer_and_its_cache(dtype: Any, isa: str) -> None:
    """Projections are identities or 0, so that every row is the mean of the values."""
    width, length = 16, 40
    layer = MultiHeadAttention(width, 2, dtype=np.dtype(dtype).name, add_bias_kv=True)
    state = {name: np.zeros(array.shape, dtype) for name, array in layer.state_dict().items()}
    state["in_proj_weight"][2 * width :] = state["out_proj.weight"][...] = np.eye(width)
    large = np.asarray(LARGE * float(limits(dtype).max)).astype(dtype)
    state["bias_v"][...] = large
    layer.load_state_dict(state)
    x = np.full((2, length, width), large)
    expected = np.full(x.shape, float(large))
    error = 8 * float(limits(dtype).eps) * expected
    assert_close(layer(x), expected, error, label="added keys")
    cached = MultiHeadAttention(width, 2, dtype=np.dtype(dtype).name)
    cached.load_state_dict({name: array for name, array in state.items() if not name.startswith("bias")})
    cache = cached.new_cache(2, length)
    out = [cached(x[:, i:j], is_causal=True, cache=cache) for i, j in ((0, 30), (30, 39), (39, 40))]
    assert_same_bits(np.concatenate(out, axis=1), cached(x, is_causal=True))
    assert_close(np.concatenate(out, axis=1), expected, error, label="cache")


@pytest.mark.parametrize("shards", [2, 3, 7])
def test_merged_parts(shards: int, dtype: Any, rng: np.random.Generator) -> None:
    outs = np.full((shards, 4, 9), LARGE * float(limits(dtype).max)).astype(dtype)
    lses = rng.standard_normal((shards, 4)).astype(accumulator_of(dtype))
    out, _ = merge_attention(list(outs), list(lses))
    assert_close(
        out, outs[0].astype(np.float64), 8 * float(limits(dtype).eps) * outs[0].astype(np.float64), label="out"
    )

"""Dropout of attention: the weights that it takes, results and gradients against the oracle, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradient_tolerance
import numpy as np
import pytest
import tolerance
from cases import Case, make_call
from element_types import accumulator_of
from matrix import ALL, WIDE, matrix
from tolerance import assert_close, assert_same_bits

import mha_native
from mha_native import AttentionGradients, attention_gradient, attention_gradient_varlen, reference
from mha_native.reference.dropout import philox

pytestmark = matrix(dtype=ALL)
Array = np.ndarray[Any, np.dtype[Any]]
# Blocks and vectors of queries that are cut, two spans, grouped heads.
CASE = Case("dropout", "", B=2, H=4, Hk=2, Tq=70, Tk=580, D=24, Dv=17, is_causal=True, query_offset=(450, 540))
DROPOUT: dict[str, Any] = {"dropout_p": 0.3, "dropout_seed": 2**40 + 17}


def _as_weights(dtype: Any, queries: int, keys: int, **options: Any) -> Array:
    """The weights that a call uses, times `keys`: all scores are equal, and values are unit vectors."""
    zeros = np.zeros((2, 3, queries, 4), dtype)
    key, value = np.zeros((2, 3, keys, 4), dtype), np.broadcast_to(np.eye(keys, dtype=dtype), (2, 3, keys, keys))
    return mha_native.scaled_dot_product_attention(zeros, key, value, **options) * keys


def test_the_oracle_has_the_known_answers_of_philox() -> None:
    # Of the authors' library, Random123.
    every = 2**32 - 1
    assert [hex(int(x)) for x in philox((0, 0, 0, 0), (0, 0))] == [
        "0x6627e8d5",
        "0xe169c58d",
        "0xbc57ac4c",
        "0x9b00dbd8",
    ]
    assert [hex(int(x)) for x in philox((every,) * 4, (every,) * 2)] == [
        "0x408f276d",
        "0x41c83b0e",
        "0xa20bc7c6",
        "0x6d5451fd",
    ]
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
    assert [hex(int(x)) for x in philox(*pi)] == ["0xd16cfe09", "0x94fdcceb", "0x5001e420", "0x24126ea1"]


@pytest.mark.parametrize("queries", [1, 7, 150])
def test_the_weights_that_are_taken(queries: int, isa: str, dtype: Any) -> None:
    for p, seed, offset in ((0.5, 0, 0), (0.1, -3, 5), (0.97, 2**63 - 1, -2)):
        found = _as_weights(dtype, queries, 83, dropout_p=p, dropout_seed=seed, query_offset=offset)
        factors = reference.dropout_factors(found.shape, p, seed, offset)
        assert np.array_equal(found != 0, factors != 0)
        eps = float(tolerance.limits(dtype).eps)
        np.testing.assert_allclose(found.astype(np.float64), factors, rtol=3 * eps)
    assert abs((factors == 0).mean() - p) < 5 * np.sqrt(p * (1 - p) / factors.size)
    plain = _as_weights(dtype, queries, 83)
    assert_same_bits(_as_weights(dtype, queries, 83, dropout_p=0.0, dropout_seed=1), plain)


def _upstream(query: Array, value: Array) -> Array:
    return np.random.default_rng(1).standard_normal((*query.shape[:-1], value.shape[-1])).astype(query.dtype)


def _differentiate(arrays: tuple[Array, ...], dout: Array, num_threads: int = 1, **options: Any) -> AttentionGradients:
    given = {**options, "num_threads": num_threads}
    out, lse = mha_native.scaled_dot_product_attention(*arrays, return_lse=True, **given)
    wrt = gradient_tolerance.differentiable(options)
    return attention_gradient(*arrays, out, lse, dout, wrt=wrt, **given)


def _options(dtype: Any, *, capped: bool) -> dict[str, Any]:
    rng, wide = np.random.default_rng(0), accumulator_of(dtype)
    more: dict[str, Any] = {"sinks": rng.standard_normal(4).astype(wide)}
    more["alibi_slopes"] = (rng.random(4) / 500).astype(wide)
    more["attn_mask"] = np.where(rng.random((70, 580)) < 0.1, -np.inf, rng.standard_normal((70, 580))).astype(dtype)
    return {**more, "softcap": 3.0} if capped else more


@pytest.mark.parametrize("capped", [False, True])
def test_results_and_gradients(capped: bool, isa: str, dtype: Any) -> None:
    call = make_call(CASE, dtype)
    options = {**call.options, **_options(dtype, capped=capped)}
    exact, lse = reference.scaled_dot_product_attention(*call.arrays, **options, **DROPOUT, return_lse=True)
    found, found_lse = mha_native.scaled_dot_product_attention(*call.arrays, **options, **DROPOUT, return_lse=True)
    forward = tolerance.attention(*call.arrays, options)
    # A part of the terms, each times one number, which rounds once.
    eps = float(tolerance.limits(accumulator_of(dtype)).eps)
    assert_close(found, exact, (forward.out_bound + 2 * eps * np.abs(exact)) / (1 - DROPOUT["dropout_p"]), label="out")
    assert_close(found_lse, lse, forward.lse_bound, label="lse")

    dout = _upstream(call.query, call.value)
    gradients = _differentiate(call.arrays, dout, **options, **DROPOUT)
    expected = reference.attention_gradient(*call.arrays, dout, **options, **DROPOUT)
    scale = 20 * float(tolerance.limits(dtype).eps)
    for name in gradient_tolerance.differentiable(options):
        error = np.linalg.norm(getattr(gradients, name).astype(np.float64) - expected[name])
        assert error <= scale * np.linalg.norm(expected[name]), name
    for threads in (2, 3):
        for name, one, other in zip(
            AttentionGradients._fields,
            gradients,
            _differentiate(call.arrays, dout, threads, **options, **DROPOUT),
            strict=True,
        ):
            if one is not None and name in ("query", "key", "value"):
                assert_same_bits(other, one, label=f"{name} of {threads} threads")


def test_the_oracle_against_differences() -> None:
    rng = np.random.default_rng(0)
    arrays = tuple(rng.standard_normal((2, 3, 6, 5)) for _ in range(3))
    dout = rng.standard_normal((2, 3, 6, 5))
    options: dict[str, Any] = {**DROPOUT, "is_causal": True, "sinks": rng.standard_normal(3)}
    found = reference.attention_gradient(*arrays, dout, **options)
    given = dict(zip(("query", "key", "value"), arrays, strict=True)) | options
    for name in ("query", "key", "value", "sinks"):
        direction = rng.standard_normal(given[name].shape)
        ends = (
            reference.scaled_dot_product_attention(**given | {name: given[name] + s * direction}) for s in (1e-6, -1e-6)
        )
        slope = sum(sign * (out * dout).sum() for sign, out in zip((1, -1), ends, strict=True)) / 2e-6
        assert abs(slope - (found[name] * direction).sum()) < 1e-8, name


def test_parts_of_a_call_have_its_weights(isa: str, dtype: Any) -> None:
    """A row has the same bits in chunks of queries; a sequence of a ragged batch is a batch element."""
    call = make_call(Case("dropout-parts", "", B=2, H=4, Hk=2, Tq=70, Tk=90, D=16, Dv=16), dtype)
    whole = mha_native.scaled_dot_product_attention(*call.arrays, is_causal=True, query_offset=20, **DROPOUT)
    for first, last in ((0, 3), (3, 64), (64, 70)):
        part = mha_native.scaled_dot_product_attention(
            call.query[:, :, first:last], *call.arrays[1:], is_causal=True, query_offset=20 + first, **DROPOUT
        )
        assert_same_bits(part, whole[:, :, first:last])

    rows = [np.ascontiguousarray(x.swapaxes(1, 2)).reshape(-1, x.shape[1], x.shape[3]) for x in call.arrays]
    ends = [np.arange(3) * length for length in (70, 90)]
    out, lse = mha_native.scaled_dot_product_attention_varlen(
        *rows, *ends, return_lse=True, is_causal=True, query_offset=np.array([20, 20]), **DROPOUT
    )
    assert_same_bits(out.reshape(2, 70, 4, 16).swapaxes(1, 2), whole)
    expected = reference.scaled_dot_product_attention_varlen(
        *rows, *ends, is_causal=True, query_offset=np.array([20, 20]), **DROPOUT
    )
    assert np.abs(out - expected).max() <= 20 * float(tolerance.limits(dtype).eps) * np.abs(expected).max()
    dout = _upstream(rows[0], rows[2])
    found = attention_gradient_varlen(
        *rows, *ends, out, lse, dout, is_causal=True, query_offset=np.array([20, 20]), **DROPOUT
    )
    dense = _differentiate(
        call.arrays,
        np.ascontiguousarray(dout.reshape(2, 70, 4, 16).swapaxes(1, 2)),
        is_causal=True,
        query_offset=20,
        **DROPOUT,
    )
    for name, length in (("query", 70), ("key", 90), ("value", 90)):
        in_heads = getattr(found, name).reshape(2, length, -1, 16).swapaxes(1, 2)
        assert_same_bits(np.ascontiguousarray(in_heads), getattr(dense, name), label=name)


@matrix(dtype=WIDE)
@pytest.mark.parametrize("filling", [np.nan, np.inf], ids=str)
def test_masked_memory_goes_nowhere(filling: float, isa: str, dtype: Any) -> None:
    call = make_call(Case("dropout-hidden", "", H=4, Hk=2, Tq=90, Tk=200, D=20, Dv=17), dtype)
    hidden = np.arange(200) % 7 == 3
    options: dict[str, Any] = {
        "attn_mask": np.broadcast_to(~hidden, (90, 200)) & (np.arange(90)[:, None] != 5),
        **DROPOUT,
    }
    clean = tuple(x.copy() for x in call.arrays)
    for x in clean[1:]:
        x[:, :, hidden] = 0
    filled = tuple(x.copy() for x in clean)
    for x in filled[1:]:
        x[:, :, hidden] = filling
    dout = _upstream(call.query, call.value)
    for name, one, other in zip(
        ("query", "key", "value"),
        _differentiate(filled, dout, **options),
        _differentiate(clean, dout, **options),
        strict=False,
    ):
        eps = float(tolerance.limits(dtype).eps)
        assert np.isfinite(one).all(), name
        assert np.abs(one - other).max() <= 50 * eps * np.abs(other).max(), name


@matrix(dtype=[np.float32])
def test_where_dropout_is_refused(isa: str, dtype: Any) -> None:
    x = np.ones((1, 2, 3, 4), dtype)
    attend = mha_native.scaled_dot_product_attention
    for p in (-0.1, 1.0):
        with pytest.raises(ValueError, match=r"scaled_dot_product_attention: dropout_p must lie in \[0, 1\); got"):
            attend(x, x, x, dropout_p=p)
    with pytest.raises(TypeError, match="dropout_seed must be an integer"):
        attend(x, x, x, dropout_p=0.1, dropout_seed=0.5)  # type: ignore[arg-type]
    cache = mha_native.KVCache(1, 2, 8, 4)
    cache.append(x, x)
    with pytest.raises(ValueError, match=r"dropout_p is for keys and values in tensors; got 0\.1"):
        attend(x, cache, dropout_p=0.1)
    calls: list[Callable[..., Any]] = [mha_native.attention_weights, mha_native.attention_statistics]
    for call in calls:
        with pytest.raises(TypeError, match="unexpected keyword argument 'dropout_p'"):
            call(x, x, dropout_p=0.1)
    with pytest.raises(TypeError, match="dropout_p"):
        mha_native.MultiHeadAttention(8, 2, seed=0)(np.ones((1, 3, 8), dtype), dropout_p=0.1)  # type: ignore[call-arg]

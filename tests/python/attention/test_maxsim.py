"""maxsim: against the reference; bits alone, in pairs and on any threads; strides; NaN; and refused calls."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from matrix import ALL, matrix
from tolerance import assert_same_bits

import mha_native as mha
from mha_native import reference

Array = np.ndarray[Any, np.dtype[Any]]

# Features: none, one, around the operands of four bytes, the lanes and parts of sums of all sets, and whole lines.
WIDTHS = (0, 1, 3, 4, 5, 16, 33, 64, 127, 128, 130)
QUERIES, DOCUMENTS = np.cumsum([0, 0, 1, 32, 7, 65]), np.cumsum([0, 1, 0, 64, 65, 180, 2, 300])
INT8 = "int8"


def _arrays(width: int, dtype: Any) -> tuple[Array, Array, dict[str, Array], Array]:
    """Queries and documents, the factors of int8, and the expected scores."""
    rng = np.random.default_rng(width)
    rows = [rng.standard_normal((offsets[-1], width)) for offsets in (QUERIES, DOCUMENTS)]
    scales: dict[str, Array] = {}
    if isinstance(dtype, str):
        (q, q_scale), (d, d_scale) = (mha.quantize_tokens(x.astype(np.float32)) for x in rows)
        scales = {"query_scale": q_scale, "document_scale": d_scale}
    else:
        q, d = (x.astype(dtype) for x in rows)
    exact = [np.asarray(x, np.float64) for x in (q, d)]
    expected = reference.maxsim(*exact, cu_seqlens_q=QUERIES, cu_seqlens_k=DOCUMENTS, **scales)
    return q, d, scales, expected


@matrix(dtype=(*ALL, INT8), width=WIDTHS)
def test_the_scores_are_those_of_the_reference(width: int, dtype: Any, isa: str) -> None:
    q, d, scales, expected = _arrays(width, dtype)
    offsets = {"cu_seqlens_q": QUERIES, "cu_seqlens_k": DOCUMENTS}
    found = [mha.maxsim(q, d, num_threads=n, **offsets, **scales) for n in (1, 2, 3)]
    scores = found[0]
    assert scores.dtype == (np.float64 if dtype is np.float64 else np.float32)
    for other in found[1:]:
        assert_same_bits(other, scores, label="threads")
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(scores[~finite], expected[~finite])
    eps = np.finfo(scores.dtype).eps
    lengths = np.diff(QUERIES)[:, None] + np.zeros(len(DOCUMENTS) - 1)
    bound = eps * (8 + width) * max(width, 1) ** 0.5 * 4 * np.maximum(lengths, 1)
    assert (np.abs(scores[finite] - expected[finite]) <= bound[finite]).all()

    pairs = np.random.default_rng(1).integers(0, expected.shape, (23, 2))
    assert_same_bits(mha.maxsim(q, d, pairs=pairs, **offsets, **scales), scores[tuple(pairs.T)], label="pairs")
    if isinstance(dtype, str):
        return
    for i, j in ((2, 3), (4, 6)):
        alone = mha.maxsim([q[QUERIES[i] : QUERIES[i + 1]]], d[DOCUMENTS[j] : DOCUMENTS[j + 1]])
        assert_same_bits(alone, scores[i : i + 1, j : j + 1], label="alone")
    spread = np.zeros((len(q), 2 * width + 1), q.dtype)
    spread[:, 1::2] = q
    out = np.full(expected.shape[::-1], np.nan, scores.dtype).T
    spread.flags.writeable = False
    assert mha.maxsim(spread[:, 1::2], np.asfortranarray(d), out=out, **offsets) is out
    assert_same_bits(out, scores, label="strides")


def test_queries_of_more_tokens_than_are_packed_at_once(isa: str) -> None:
    rng = np.random.default_rng(0)
    q, d = (rng.standard_normal((n, 8), dtype=np.float32) for n in (3000, 500))
    expected = reference.maxsim(q, d, cu_seqlens_q=[0, 3, 3000], cu_seqlens_k=[0, 500])
    found = mha.maxsim(q, d, cu_seqlens_q=[0, 3, 3000], num_threads=3)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert_same_bits(mha.maxsim(q[3:], d), found[1:], label="alone")


@matrix(dtype=(*ALL, INT8))
def test_a_maximum_has_the_bits_of_its_product(dtype: Any, isa: str) -> None:
    """Score documents of all lengths up to several strips of tokens."""
    rng = np.random.default_rng(0)
    scales: tuple[Array, Array] | None = None
    rows = [rng.standard_normal((n, 130), dtype=np.float32) for n in (64, 76)]
    if isinstance(dtype, str):
        (q, q_scale), (d, d_scale) = (mha.quantize_tokens(x) for x in rows)
        scales = q_scale, d_scale
    else:
        q, d = (x.astype(dtype) for x in rows)

    def scores(tokens: int, ends: Array, cu_seqlens_q: Array) -> Array:
        factors = {} if scales is None else {"query_scale": scales[0][:tokens], "document_scale": scales[1][: ends[-1]]}
        found: Array = mha.maxsim(q[:tokens], d[: ends[-1]], cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=ends, **factors)
        return found

    products = scores(64, np.arange(77), np.arange(65)).astype(np.float64)
    for tokens in (1, 5, 17, 33, 64):
        for length in (*range(1, 21), 63, 65, 76):
            expected = products[:tokens, :length].max(1).cumsum()[-1]
            found = scores(tokens, np.array([0, length]), np.array([0, tokens]))
            assert found == found.dtype.type(expected), (tokens, length)


@matrix(dtype=ALL)
def test_nan_stays_with_its_query_and_document(dtype: Any, isa: str) -> None:
    q, d = np.ones((40, 33)).astype(dtype), np.ones((50, 33)).astype(dtype)
    q[35, 3] = np.nan
    d[7, 32] = np.nan
    found = mha.maxsim(q, d, cu_seqlens_q=[0, 34, 36, 40], cu_seqlens_k=[0, 7, 8, 50])
    np.testing.assert_array_equal(np.isnan(found), [[False, True, False], [True] * 3, [False, True, False]])


@pytest.mark.parametrize("width", WIDTHS[1:])
def test_int8_is_rounded_to_a_step_of_its_row(width: int, isa: str) -> None:
    x = np.random.default_rng(0).standard_normal((70, width), dtype=np.float32)
    x[3] = 0
    x[5, -1], x[6, 0] = np.nan, -np.inf
    with mha.use_isa("baseline"):
        expected = mha.quantize_tokens(x[:, ::-1].copy())
    integers, scale = mha.quantize_tokens(x[:, ::-1], num_threads=3)
    for found, same in zip((integers, scale), expected, strict=True):
        assert_same_bits(found, same, label=isa)
    assert scale[3] == 0
    assert np.isnan(scale[5])
    assert np.isinf(scale[6])
    assert not integers[[3, 5, 6]].any()
    usual = np.setdiff1d(np.arange(70), [3, 5, 6])
    np.testing.assert_allclose(scale[usual], np.abs(x[usual]).max(1) / 127, rtol=1e-6)
    assert (np.abs(integers[usual] * scale[usual, None] - x[usual, ::-1]) <= 0.5001 * scale[usual, None]).all()
    assert (np.abs(integers[usual].astype(int)).max(1) == 127).all()


def _refusals() -> dict[str, tuple[type[Exception], dict[str, Any]]]:
    x, codes, scale = np.ones((4, 3), np.float32), np.ones((4, 3), np.int8), np.ones(4, np.float32)
    int8 = {"queries": codes, "documents": codes}
    return {
        "queries and documents must have as many features": (ValueError, {"documents": x[:, :2]}),
        "documents must be of the dtype of queries": (TypeError, {"documents": x.astype(np.float64)}),
        "cu_seqlens_q must end with": (ValueError, {"cu_seqlens_q": [0, 5]}),
        "document_scale must be given for int8": (ValueError, int8 | {"query_scale": scale}),
        "query_scale must be given for int8": (ValueError, int8),
        "queries must be int8": (TypeError, {"query_scale": scale}),
        "pairs must have numbers of documents": (ValueError, {"pairs": [[0, 1]]}),
        "pairs must have numbers of queries": (ValueError, {"pairs": [[-1, 0]]}),
        "pairs must be an integer array": (ValueError, {"pairs": [0, 1]}),
        "scores must be": (ValueError, {"out": np.zeros((2, 2), np.float32)}),
        "queries must have an array": (ValueError, {"queries": []}),
        "queries[1] must be [T, D]": (ValueError, {"queries": [x, x[0]]}),
        "cu_seqlens_k must be None for a list": (ValueError, {"documents": [x], "cu_seqlens_k": [0, 4]}),
    }


@pytest.mark.parametrize("rule", _refusals())
def test_a_wrong_argument_is_refused(rule: str) -> None:
    kind, changed = _refusals()[rule]
    x = np.ones((4, 3), np.float32)
    with pytest.raises(kind, match=re.escape(rule)):
        mha.maxsim(**({"queries": x, "documents": x} | changed))

"""The two ends of an encoder over texts, as the core gives them to `models`: kinds of arrays, and what is refused."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tolerance import assert_same_bits

from mha_native import _core

Array = np.ndarray[Any, Any]

V, P, E = 9, 5, 21
TOKENS, CU_SEQLENS = np.array([0, 8, 3, 3, 1, 2, 7]), np.array([0, 3, 3, 4, 7])


@pytest.fixture
def tables(rng: np.random.Generator, dtype: Any) -> dict[str, Array]:
    shapes = {"words": (V, E), "positions": (P, E), "norm_weight": (E,), "norm_bias": (E,)}
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def _embed(tables: dict[str, Any], **changes: Any) -> Array:
    given = (
        {"tokens": TOKENS, "places": None, "cu_seqlens": CU_SEQLENS, "eps": 1e-5, "out": None, "num_threads": None}
        | tables
        | changes
    )
    names = (
        "tokens",
        "places",
        "cu_seqlens",
        "words",
        "positions",
        "norm_weight",
        "norm_bias",
        "eps",
        "out",
        "num_threads",
    )
    return _core.embed_tokens(*(given[name] for name in names))


def test_rows_and_means(tables: dict[str, Array], isa: str, num_threads: int) -> None:
    rows = _embed(tables, num_threads=num_threads)
    place = np.concatenate([np.arange(n) for n in np.diff(CU_SEQLENS)])
    norm = _core.LayerNorm(tables["norm_weight"], tables["norm_bias"], 1e-5)
    assert_same_bits(rows, norm.forward(tables["words"][TOKENS] + tables["positions"][place], None, None))
    # In float64, row after row, and rounded once.
    sums = np.stack([sum(rows[a:b].astype(np.float64), np.zeros(E)) for a, b in pairwise(CU_SEQLENS)])
    count = np.maximum(np.diff(CU_SEQLENS), 1)[:, None]
    assert_same_bits(
        _core.mean_pool(rows, CU_SEQLENS, False, None, num_threads), (sums * (1 / count)).astype(rows.dtype)
    )


@pytest.mark.parametrize("integer", [np.int8, np.uint16, np.int32, np.uint64])
def test_integers_of_any_width(integer: Any, tables: dict[str, Array]) -> None:
    expected = _embed(tables)
    assert_same_bits(_embed(tables, tokens=TOKENS.astype(integer), cu_seqlens=CU_SEQLENS.astype(integer)), expected)
    means = _core.mean_pool(expected, CU_SEQLENS, True, None, None)
    assert_same_bits(_core.mean_pool(expected, CU_SEQLENS.astype(integer), True, None, None), means)


def test_places(tables: dict[str, Array], isa: str, num_threads: int) -> None:
    in_text = np.concatenate([np.arange(n) for n in np.diff(CU_SEQLENS)])
    expected = _embed(tables, num_threads=num_threads)
    assert_same_bits(_embed(tables, places=in_text, num_threads=num_threads), expected)
    shuffled = np.array([2, 4, 0, 1, 3])
    positions = np.empty_like(tables["positions"])
    positions[shuffled] = tables["positions"]
    places = shuffled[in_text].astype(np.uint8)
    assert_same_bits(_embed(tables, positions=positions, places=places, num_threads=num_threads), expected)
    alone = _embed(tables, places=np.zeros(7, np.int64), positions=tables["positions"][:1])
    assert_same_bits(alone[[0, 4]], _embed(tables, cu_seqlens=np.array([0, 1, 4, 7]))[[0, 4]])


def test_read_only_strided_and_poisoned_memory(tables: dict[str, Array], dtype: Any) -> None:
    expected = _embed(tables)
    wide = np.full((2 * V, E + 3), np.nan, dtype)
    words = wide[::-2, 1 : E + 1]
    words[:] = tables["words"]
    for array in (wide, words, *tables.values()):
        array.flags.writeable = False
    out = np.full((2 * len(TOKENS), E + 1), np.nan, dtype)
    result = _embed(tables, words=words, tokens=np.repeat(TOKENS, 2)[::2], out=out[1::2, 1:])
    assert np.shares_memory(result, out)
    assert_same_bits(out[1::2, 1:], expected)
    assert np.isnan(out[::2]).all()
    assert np.isnan(out[:, 0]).all()
    transposed = np.full((E, 4), np.nan, dtype)
    pooled = _core.mean_pool(np.asfortranarray(expected), CU_SEQLENS, True, transposed.T, None)
    assert_same_bits(pooled, _core.mean_pool(expected, CU_SEQLENS, True, None, None))


def test_no_texts(tables: dict[str, Array]) -> None:
    nothing = np.array([], np.int64)
    rows = _embed(tables, tokens=nothing, cu_seqlens=np.array([0]))
    assert rows.shape == (0, E)
    assert _core.mean_pool(rows, np.array([0]), True, None, None).shape == (0, E)
    assert _embed(tables, tokens=nothing, cu_seqlens=np.array([0, 0, 0])).shape == (0, E)


REFUSED = [
    ({"tokens": TOKENS.astype(float)}, TypeError, "tokens must be an integer array"),
    ({"tokens": [1, 2]}, TypeError, "tokens must be an integer array"),
    ({"tokens": TOKENS[None]}, ValueError, "tokens must have 1 axis"),
    ({"tokens": TOKENS[:-1]}, ValueError, "cu_seqlens must end with the rows of out, 6; got 7"),
    ({"tokens": TOKENS + 1}, ValueError, r"token 1 is 9; got words \[9, 21\]"),
    ({"cu_seqlens": CU_SEQLENS[:0]}, ValueError, "cu_seqlens must have at least one entry"),
    ({"cu_seqlens": np.array([0, 7])}, ValueError, r"text 0 has 7; got .*positions \[5, 21\]"),
    ({"places": CU_SEQLENS}, ValueError, "places must have one for each token, 7"),
    ({"places": np.ones(7)}, TypeError, "places must be an integer array"),
    (
        {"places": np.arange(7)},
        ValueError,
        r"places must be rows of positions, and that of token 5 is 5; got .*\[5, 21\]",
    ),
    ({"places": -np.arange(7)}, ValueError, "places must be rows of positions, and that of token 1 is -1"),
    ({"words": np.ones((V, E), np.int32)}, TypeError, "words must be float32, float64, float16 or bfloat16"),
    ({"words": np.ones(E, np.float32)}, ValueError, "words must have 2 axes"),
    ({"positions": np.ones((P, E), np.float16)}, TypeError, "positions must be of the dtype of words"),
    ({"norm_weight": np.ones(E + 1)}, ValueError, r"norm_weight must be as wide as words.*norm_weight \[22\]"),
    ({"eps": -1.0}, ValueError, "norm_eps must be at least 0"),
    ({"eps": "small"}, TypeError, "norm_eps"),
    ({"out": np.ones((6, E))}, ValueError, "out must have a row for each token, 7; got 6"),
    ({"out": np.ones((7, E + 1))}, ValueError, "out must be as wide as words"),
    ({"num_threads": 0}, ValueError, "num_threads must be"),
]


@pytest.mark.parametrize(("change", "error", "words"), REFUSED, ids=[f"{next(iter(r[0]))}: {r[2]}" for r in REFUSED])
def test_what_is_refused(change: dict[str, Any], error: type[Exception], words: str, rng: np.random.Generator) -> None:
    shapes = {"words": (V, E), "positions": (P, E), "norm_weight": (E,), "norm_bias": (E,)}
    tables: dict[str, Any] = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    with pytest.raises(error, match=words):
        _embed(tables, **change)


def test_what_pooling_refuses() -> None:
    x = np.ones((7, E))
    for arguments, error, words in [
        ((x, CU_SEQLENS, 1, None, None), TypeError, "normalize"),
        ((x[:-1], CU_SEQLENS, True, None, None), ValueError, "cu_seqlens must end with the rows of x, 6; got 7"),
        ((x, CU_SEQLENS, True, np.ones((3, E)), None), ValueError, r"out must be \[4, 21\]"),
        ((x, CU_SEQLENS, True, x[:4], None), ValueError, "out must not overlap x"),
        (
            (x.astype(np.int64), CU_SEQLENS, True, None, None),
            TypeError,
            "x must be float32, float64, float16 or bfloat16",
        ),
    ]:
        with pytest.raises(error, match=words):
            _core.mean_pool(*arguments)
    assert (x == 1).all()

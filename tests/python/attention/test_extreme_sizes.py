"""Sizes, positions and numbers at the ends of what they may be: an answer at once, the right one, or an error."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mha_native as mha

F32 = np.float32
HUGE = 2**40

# Each line of it is one call. All results are empty, so all calls return at once.
EMPTY_CALLS = """
import numpy as np
import mha_native as mha
huge, f32 = 2**40, np.float32
x, rows = np.zeros((huge, 1, 0, 8), f32), np.zeros((huge, 0, 8), f32)
lse = np.zeros((huge, 1, 0), f32)
q, k, v = np.zeros((1, 1, 2**50, 0), f32), np.zeros((1, 1, 4, 0), f32), np.zeros((1, 1, 4, 0), f32)
none, offsets = np.zeros((0, huge, 8), f32), np.array([0, 0])
layer, memory = mha.MultiHeadAttention(8, 2, seed=0), np.zeros((huge, 0, 8), f32)
assert mha.scaled_dot_product_attention(x, x, x, return_lse=True)[0].shape == x.shape
assert mha.scaled_dot_product_attention(x, x[:1], x[:1]).shape == x.shape
assert mha.scaled_dot_product_attention(q, k, v).shape == q.shape
assert mha.scaled_dot_product_attention_varlen(none, none, none, offsets, offsets).shape == none.shape
assert mha.attention_weights(x, x).shape == (huge, 1, 0, 0)
assert mha.attention_statistics(x, x).entropy.shape == (huge, 1, 0)
assert mha.merge_attention([x, x], [lse, lse])[0].shape == x.shape
assert layer(rows).shape == rows.shape
assert layer(rows, need_weights=True)[1].shape == (huge, 2, 0, 0)
assert mha.LayerNorm(8)(rows).shape == rows.shape
assert mha.LayerNorm(8)(rows.swapaxes(0, 1)).shape == (0, huge, 8)
assert mha.FeedForward(8, 16, seed=0)(rows).shape == rows.shape
assert mha.Encoder(2, 8, 2, 16, seed=0)(rows).shape == rows.shape
assert mha.EncoderLayer(8, 2, 16, seed=0)(rows).shape == rows.shape
assert mha.Decoder(2, 8, 2, 16, seed=0)(rows, memory).shape == rows.shape
assert mha.CausalDecoder(2, 8, 2, 16, seed=0)(rows).shape == rows.shape
assert mha.sinusoidal_positions(0, huge).shape == (0, huge)
assert mha.sinusoidal_positions(huge, 0).shape == (huge, 0)
"""


def test_empty_results_of_huge_shapes_take_no_time() -> None:
    subprocess.run([sys.executable, "-c", EMPTY_CALLS], check=True, timeout=120)


def _rows(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(F32)


FAR = 2**62
WINDOWS = [
    (FAR, (FAR - 1, 0)),
    (FAR, (FAR - 6, 0)),
    (FAR, (2**63 - 1, 2**63 - 1)),
    (-FAR, (2**63 - 1, FAR)),
    (-FAR, (-1, FAR + 5)),
    (0, (2**63 - 1, 1)),
    (3, (1, 2**63 - 1)),
]


@pytest.mark.parametrize(("offset", "window"), WINDOWS, ids=str)
def test_far_windows_are_where_the_reference_has_them(offset: int, window: tuple[int, int]) -> None:
    query, key = _rows(2, 5, 8), _rows(2, 7, 8)
    options: dict[str, Any] = {"query_offset": offset, "window": window}
    weights = mha.attention_weights(query, key, **options)
    expected = mha.reference.attention_weights(query, key, **options)
    assert ((weights > 0) == (expected > 0)).all()
    assert np.allclose(weights, expected, atol=1e-5)
    of_each = mha.attention_weights(query, key, **(options | {"query_offset": np.array([offset])}))
    assert np.array_equal(of_each, weights)


@pytest.mark.parametrize("offset", [2**63 - 1, FAR + 1, -FAR - 1, -(2**63)])
def test_offsets_beyond_every_key(offset: int) -> None:
    query = _rows(2, 5, 8)
    for of in (offset, np.array([offset])):
        for function in (mha.attention_weights, mha.reference.attention_weights):
            with pytest.raises(ValueError, match=r"query_offset must lie in \[-2\^62, 2\^62\]; got -?\d+"):
                function(query, query, query_offset=of)


@pytest.mark.parametrize("scale", [10**400, -(10**400)], ids=["10^400", "-10^400"])
def test_numbers_larger_than_every_double(scale: int) -> None:
    query = _rows(2, 5, 8)
    for name in ("scale", "softcap"):
        with pytest.raises(ValueError, match=rf"^attention_weights: {name} must be finite; got int$"):
            mha.attention_weights(query, query, **{name: scale})


def _long() -> np.ndarray:
    """An integer array of 8 TiB, if it were copied."""
    return np.broadcast_to(np.int64(1), HUGE)


LENGTHS: list[tuple[str, Callable[[np.ndarray], Any]]] = [
    ("key_lengths", lambda n: mha.attention_weights(_rows(2, 2, 5, 8), _rows(2, 2, 5, 8), key_lengths=n)),
    ("query_offset", lambda n: mha.attention_weights(_rows(2, 2, 5, 8), _rows(2, 2, 5, 8), query_offset=n)),
    (
        "cu_seqlens_k",
        lambda n: mha.scaled_dot_product_attention_varlen(*[_rows(5, 2, 8)] * 3, np.array([0, 5]), n),
    ),
    ("new_lengths", lambda n: mha.KVCache(2, 2, 9, 4).append(_rows(2, 2, 5, 4), _rows(2, 2, 5, 4), new_lengths=n)),
    ("count", lambda n: mha.KVCache(2, 2, 9, 4).rollback(n)),
    ("index", lambda n: mha.KVCache(2, 2, 9, 4).reorder(n)),
    (
        "memory_lengths",
        lambda n: mha.Decoder(1, 8, 2, 16, seed=0)(_rows(2, 5, 8), _rows(2, 5, 8), memory_lengths=n),
    ),
]


@pytest.mark.parametrize(("argument", "call"), LENGTHS, ids=[name for name, _ in LENGTHS])
def test_integers_are_counted_before_they_are_copied(argument: str, call: Callable[[np.ndarray], Any]) -> None:
    with pytest.raises(ValueError, match=rf": {argument} must have .*1099511627776"):
        call(_long())
    with pytest.raises(TypeError, match=rf": {argument} must be an integer array"):
        call(_long().view(np.float64))


DTYPES: list[Callable[[], Any]] = [
    lambda: mha.KVCache(1, 1, 4, 4, dtype=None),
    lambda: mha.MultiHeadAttention(8, 2, dtype=None),
    lambda: mha.LayerNorm(8, dtype=None),
    lambda: mha.FeedForward(8, 16, dtype=None),
    lambda: mha.Encoder(1, 8, 2, 16, dtype=None),
    lambda: mha.LayerNorm(8).astype(None),
    lambda: mha.sinusoidal_positions(2, 4, dtype=None),
]


@pytest.mark.parametrize("make", DTYPES, ids=range(len(DTYPES)))
def test_none_is_no_dtype(make: Callable[[], Any]) -> None:
    """NumPy takes None for float64, other libraries for their default."""
    with pytest.raises(TypeError, match=r"dtype must be float32.*; got None"):
        make()


def test_positions_that_do_not_fit() -> None:
    assert mha.sinusoidal_positions(2, 4, first_position=2**63 - 3).shape == (2, 4)
    with pytest.raises(ValueError, match=r"^sinusoidal_positions: first_position \+ T must fit 64 bits"):
        mha.sinusoidal_positions(2, 4, first_position=2**63 - 1)

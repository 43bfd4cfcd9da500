"""KVCache.over: a cache in arrays of the caller is a cache like any other, and what cannot be one is refused."""

from __future__ import annotations

import gc
import pickle
from typing import Any

import numpy as np
import pytest
from tolerance import assert_same_bits

from mha_native import KVCache, PagedKVCache, scaled_dot_product_attention

B, HK, CAPACITY, D, DV = 3, 2, 10, 5, 7
F32 = np.float32


@pytest.mark.parametrize("layout", ["dense", "heads of many", "torch"])
def test_in_arrays_of_the_caller(layout: str, rng: np.random.Generator) -> None:
    keys = np.zeros((B, HK, CAPACITY, D), F32)
    values = (
        np.zeros((B, 2 * HK, CAPACITY, DV), F32)[:, :HK]
        if layout == "heads of many"
        else np.zeros((B, HK, CAPACITY, DV), F32)
    )
    given: Any = (keys, values)
    if layout == "torch":
        torch = pytest.importorskip("torch")
        given = tuple(map(torch.from_numpy, given))
    tokens = rng.standard_normal((B, HK, 6, D)).astype(F32), rng.standard_normal((B, HK, 6, DV)).astype(F32)
    query = rng.standard_normal((B, 2 * HK, 2, D)).astype(F32)
    keys[:, :, :2], values[:, :, :2] = tokens[0][:, :, :2], tokens[1][:, :, :2]
    cache, own = KVCache.over(*given, lengths=np.array([2, 1, 0])), KVCache(B, HK, CAPACITY, D, DV)
    own.append(*(x[:, :, :2] for x in tokens), new_lengths=np.array([2, 1, 0]))
    assert cache.lengths.tolist() == [2, 1, 0]
    assert repr(cache) == repr(own)
    for each in (cache, own):
        each.append(*(x[:, :, 2:] for x in tokens), new_lengths=np.array([4, 4, 2]))
    assert_same_bits(keys[1, :, 1:5], tokens[0][1, :, 2:])
    for causal in (False, True):
        results = [scaled_dot_product_attention(query, each, is_causal=causal) for each in (cache, own)]
        assert_same_bits(*results)
    values[0, :, 3] *= 2
    assert_same_bits(cache.values, values)
    assert not cache.values.flags.writeable
    copied = pickle.loads(pickle.dumps(cache))
    before = copied.keys[0, :, :6].copy()
    keys[...] = 7
    assert_same_bits(copied.keys[0, :, :6], before)
    del keys, values, given
    gc.collect()
    assert (cache.keys == 7).all()


RIGHT = np.zeros((1, 2, 8, 4), F32)
STEPS, HEADS_INSIDE = np.zeros((1, 2, 8, 8), F32)[..., ::2], np.zeros((1, 8, 2, 4), F32).swapaxes(1, 2)


@pytest.mark.parametrize(
    ("keys", "values", "lengths", "error", "words"),
    [
        (RIGHT[..., 0], RIGHT, None, ValueError, ["keys", "[1, 2, 8]"]),
        (RIGHT, np.zeros((1, 2, 9, 4), F32), None, ValueError, ["values", "capacity", "[1, 2, 9, 4]"]),
        (RIGHT, np.zeros((1, 2, 8, 0), F32), None, ValueError, ["values", "[1, 2, 8, 0]"]),
        (RIGHT, np.zeros((1, 2, 8, 4)), None, TypeError, ["values", "float64"]),
        (RIGHT.astype(np.int8), RIGHT.astype(np.int8), None, TypeError, ["keys", "int8"]),
        (HEADS_INSIDE, RIGHT, None, ValueError, ["keys", "one behind the other", "8"]),
        (STEPS, RIGHT, None, ValueError, ["keys", "one behind the other"]),
        (np.broadcast_to(F32(0), (1, 2, 8, 4)), RIGHT, None, ValueError, ["keys"]),
        (RIGHT, RIGHT.copy(), np.array([9]), ValueError, ["lengths", "9", "8"]),
        (RIGHT, RIGHT.copy(), np.array([-1]), ValueError, ["lengths", "-1"]),
        (RIGHT, RIGHT.copy(), np.array([1, 1]), ValueError, ["lengths"]),
        (RIGHT, RIGHT.copy(), 3, TypeError, ["lengths", "int"]),
        ([[1.0]], RIGHT, None, TypeError, ["keys", "list"]),
    ],
)
def test_arrays_that_are_no_cache(keys: Any, values: Any, lengths: Any, error: Any, words: list[str]) -> None:
    with pytest.raises(error) as caught:
        KVCache.over(keys, values, lengths)
    assert all(word in str(caught.value) for word in words), caught.value
    assert str(caught.value).startswith("KVCache")


def test_arrays_in_the_same_memory() -> None:
    both = np.zeros((1, 2, 8, 4), F32)
    with pytest.raises(ValueError, match="values"):
        KVCache.over(both, both)
    both.flags.writeable = False
    with pytest.raises(ValueError, match="keys"):
        KVCache.over(both, np.zeros_like(both))
    assert not hasattr(PagedKVCache, "over")  # pages have no place in arrays of a caller
    cache = KVCache.over(np.zeros((1, 2, 8, 4), F32), np.zeros((1, 2, 8, 4), F32))
    with pytest.raises(ValueError, match="must not overlap"):
        cache.append(cache.keys[:, :, :1], cache.values[:, :, :1])

"""What a layer refuses to do with a cache: one sentence, and the cache and the result as they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tolerance import assert_same_bits

from mha_native import KVCache, MultiHeadAttention

F32 = np.float32
X = np.ones((2, 4, 24), F32)
FAULTS: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"query": np.ones((2, 8, 24), F32), "out": None}, ValueError, ["capacity of 10", "sequence 0", "3 + 8"]),
    ({"new_lengths": np.array([1, 5])}, ValueError, ["new_lengths", "[0, 4]", "5"]),
    ({"new_lengths": np.array([1, -1])}, ValueError, ["new_lengths", "-1"]),
    ({"new_lengths": np.array([1])}, ValueError, ["new_lengths", "2"]),
    ({"new_lengths": np.array([1.0, 1.0])}, TypeError, ["new_lengths", "float64"]),
    ({"new_lengths": np.array([1, 1]), "key": X[:, :3]}, ValueError, ["one length", "[2, 4, 24]", "[2, 3, 24]"]),
    ({"query": X[:1]}, ValueError, ["cache", "batch size", "1", "2"]),
    ({"query": X[..., :23]}, ValueError, ["query", "24", "[2, 4, 23]"]),
    ({"key": X[..., :23]}, ValueError, ["key", "24", "[2, 4, 23]"]),
    ({"query": X.astype(float)}, TypeError, ["query float64"]),
    ({"attn_mask": np.ones((4, 4), bool)}, ValueError, ["attn_mask", "[4, 4]", "[2, 4, 4, 7]"]),
    ({"attn_mask": np.ones((4, 10), bool)}, ValueError, ["attn_mask", "[4, 10]", "[2, 4, 4, 7]"]),
    ({"key_mask": np.ones((2, 4), bool)}, ValueError, ["key_mask", "[2, 4]", "[2, 7]"]),
    ({"out": np.ones((2, 4, 23), F32)}, ValueError, ["out", "[2, 4, 23]"]),
    ({"num_threads": 0}, ValueError, ["num_threads"]),
    ({"cache": "cache"}, TypeError, ["cache", "KVCache", "str"]),
    ({"cache": KVCache(3, 4, 10, 6)}, ValueError, ["cache", "batch size", "2", "3"]),
    ({"cache": KVCache(2, 2, 10, 6)}, ValueError, ["cache", "num_kv_heads 4", "num_kv_heads 2"]),
    ({"cache": KVCache(2, 4, 10, 5)}, ValueError, ["cache", "head_dim 6", "head_dim 5"]),
    ({"cache": KVCache(2, 4, 10, 6, 7)}, ValueError, ["cache", "value_head_dim 6", "value_head_dim 7"]),
    ({"cache": KVCache(2, 4, 10, 6, dtype=float)}, TypeError, ["cache", "float32", "float64"]),
    ({"cache": None, "append": False}, ValueError, ["append", "cache"]),
    ({"cache": None, "new_lengths": np.array([1, 1])}, ValueError, ["new_lengths", "cache"]),
    ({"append": False, "key": X}, ValueError, ["append=False", "key"]),
    ({"append": False, "new_lengths": np.array([1, 1])}, ValueError, ["append=False", "new_lengths"]),
]


@pytest.mark.parametrize(("fault", "kind", "words"), FAULTS, ids=lambda x: "-".join(x) if isinstance(x, dict) else "")
def test_what_fails_changes_nothing(fault: dict[str, Any], kind: type[Exception], words: list[str]) -> None:
    layer = MultiHeadAttention(24, 4, seed=0)
    cache = layer.new_cache(2, 10)
    layer(np.ones((2, 5, 24), F32), cache=cache)
    cache.rollback(np.array([2, 5]))
    keys, values, out = cache.keys.copy(), cache.values.copy(), np.full((2, 4, 24), 3, F32)
    with pytest.raises(kind) as error:
        layer(**({"query": X, "cache": cache, "out": out} | fault))
    message = str(error.value)
    assert message.startswith("MultiHeadAttention: "), message
    assert "\n" not in message
    for word in words:
        assert word in message, message
    assert (out == 3).all(), "work was done before the error"
    assert cache.lengths.tolist() == [3, 0]
    assert_same_bits(cache.keys, keys)
    assert_same_bits(cache.values, values)


APPENDS: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"key": np.ones((2, 11, 24), F32), "value": None}, ValueError, ["capacity of 10", "0 + 11"]),
    ({"key": X[..., :23]}, ValueError, ["key", "24", "[2, 4, 23]"]),
    ({"value": X[:, :3]}, ValueError, ["value", "length", "[2, 3, 24]"]),
    ({"key": X[0]}, ValueError, ["batch size"]),
    ({"key": X[:1], "value": X[:1]}, ValueError, ["cache", "batch size"]),
    ({"key": X.astype(float)}, TypeError, ["key float64", "layer, float32"]),
    ({"new_lengths": np.array([5, 0])}, ValueError, ["new_lengths", "[0, 4]"]),
    ({"num_threads": 0}, ValueError, ["num_threads"]),
    ({"cache": None}, TypeError, ["cache", "NoneType"]),
    ({"cache": KVCache(2, 4, 10, 5)}, ValueError, ["cache", "head_dim 5"]),
]


@pytest.mark.parametrize(("fault", "kind", "words"), APPENDS, ids=lambda x: "-".join(x) if isinstance(x, dict) else "")
def test_appends_that_fail_change_nothing(fault: dict[str, Any], kind: type[Exception], words: list[str]) -> None:
    layer = MultiHeadAttention(24, 4, seed=0)
    cache = layer.new_cache(2, 10)
    with pytest.raises(kind) as error:
        layer.append_to(**({"cache": cache, "key": X, "value": X} | fault))
    message = str(error.value)
    assert message.startswith("MultiHeadAttention.append_to: "), message
    for word in words:
        assert word in message, message
    assert not cache.lengths.any()
    assert not cache.keys.any()


@pytest.mark.parametrize("append", [True, False])
def test_input_from_the_memory_of_the_cache(append: bool) -> None:
    layer = MultiHeadAttention(4, 1, seed=0)
    cache = layer.new_cache(1, 10)
    layer(np.ones((1, 3, 4), F32), cache=cache)
    with pytest.raises(ValueError, match="query must not overlap the cache"):
        layer(cache.keys[:, 0, :2], cache=cache, append=append)
    assert cache.lengths.tolist() == [3]

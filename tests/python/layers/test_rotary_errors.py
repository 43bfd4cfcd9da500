"""Tables of rotary positions, layers with one, and calls of these that are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tolerance import assert_same_bits
from turned_layers import E, H, P, random_table, turned_layer

from mha_native import CausalDecoder, EncoderLayer, RotaryEmbedding

Wrong = tuple[Callable[[], Any], type[Exception], list[str]]
ONES = np.ones((4, 2), np.float32)
TABLES: list[Wrong] = [
    (lambda: RotaryEmbedding(ONES, ONES[:3]), ValueError, ["RotaryEmbedding", "sin", "[4, 2]", "[3, 2]"]),
    (lambda: RotaryEmbedding(ONES[0], ONES), ValueError, ["RotaryEmbedding", "cos", "[2]"]),
    (lambda: RotaryEmbedding(ONES[:0], ONES[:0]), ValueError, ["RotaryEmbedding", "cos", "[0, 2]"]),
    (lambda: RotaryEmbedding(ONES[:, :0], ONES[:, :0]), ValueError, ["RotaryEmbedding", "cos", "[4, 0]"]),
    (lambda: RotaryEmbedding(ONES, ONES.astype(np.float64)), TypeError, ["RotaryEmbedding", "sin float64"]),
    (lambda: RotaryEmbedding(*[ONES.astype(np.float16)] * 2), TypeError, ["RotaryEmbedding", "float32", "float16"]),
    (lambda: RotaryEmbedding([[1.0]], ONES), TypeError, ["RotaryEmbedding", "cos", "list"]),
    (lambda: RotaryEmbedding(ONES, ONES, interleaved=1), TypeError, ["RotaryEmbedding", "interleaved"]),
    (lambda: RotaryEmbedding.from_base(7, 4), ValueError, ["from_base", "rotary_dim", "even", "7"]),
    (lambda: RotaryEmbedding.from_base(0, 4), ValueError, ["from_base", "rotary_dim", "0"]),
    (lambda: RotaryEmbedding.from_base(8, 0), ValueError, ["from_base", "max_positions", "0"]),
    (lambda: RotaryEmbedding.from_base(8, 4, 0), ValueError, ["from_base", "base", "0"]),
    (lambda: RotaryEmbedding.from_base(8, 4, np.nan), ValueError, ["from_base", "base", "nan"]),
    (lambda: RotaryEmbedding.from_base(8, 4, dtype="float16"), TypeError, ["from_base", "dtype", "float16"]),
    (lambda: RotaryEmbedding.from_base(8, 2**61), MemoryError, ["from_base"]),
    (
        lambda: turned_layer(rotary=RotaryEmbedding.from_base(18, 4)),
        ValueError,
        ["MultiHeadAttention", "rotary", "16", "18"],
    ),
    (lambda: turned_layer(dtype="float64", rotary=random_table(8, False)), TypeError, ["rotary", "float64", "float32"]),
    (lambda: turned_layer(rotary=(ONES, ONES)), TypeError, ["MultiHeadAttention", "rotary", "tuple"]),
    (lambda: EncoderLayer(E, H, 5, rotary=3), TypeError, ["EncoderLayer", "rotary", "int"]),
]


@pytest.mark.parametrize(("call", "kind", "words"), TABLES, ids=lambda x: "-".join(x) if type(x) is list else "")
def test_wrong_tables(call: Callable[[], Any], kind: type[Exception], words: list[str]) -> None:
    with pytest.raises(kind) as error:
        call()
    for word in words:
        assert word in str(error.value), str(error.value)


X = np.ones((2, 20, E), np.float32)
CALLS: list[tuple[dict[str, Any], list[str]]] = [
    ({"query": np.ones((1, P + 1, E), np.float32)}, ["query", "0 to 69", "71 rows"]),
    ({"query": X, "key": np.ones((2, P + 1, E), np.float32)}, ["key", "0 to 69", "71 rows"]),
    ({"query": X, "query_offset": P - 19}, ["query_offset", "51", "batch element 0"]),
    ({"query": X, "query_offset": np.array([50, 51])}, ["query_offset", "51", "batch element 1"]),
    ({"query": X, "query_offset": -1}, ["query_offset", "-1"]),
    ({"query": X, "query_offset": 2**62}, ["query_offset", str(2**62)]),
    ({"query": np.ones((80, E), np.float32), "cu_seqlens_q": np.array([0, 9, 80])}, ["query", "71", "batch element 1"]),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), CALLS, ids=lambda x: "-".join(x))
def test_positions_that_the_table_lacks(arguments: dict[str, Any], words: list[str]) -> None:
    layer = turned_layer()
    out = np.full((*arguments["query"].shape[:-1], E), 3, np.float32)
    with pytest.raises(ValueError, match="must stand at positions of rotary") as error:
        layer(**arguments, out=out)
    message = str(error.value)
    assert message.startswith("MultiHeadAttention: ")
    for word in words:
        assert word in message, message
    assert (out == 3).all()


def test_a_cache_that_outgrows_the_table() -> None:
    layer, decoder = turned_layer(), CausalDecoder(1, E, H, 50, rotary=random_table(10, False), seed=1)
    cache, caches = layer.new_cache(2, 100), decoder.new_caches(2, 100)
    full = np.ones((2, P - 1, E), np.float32)
    layer(full, cache=cache)
    decoder(full, caches=caches)
    keys = cache.keys.copy()
    with pytest.raises(ValueError, match=r"MultiHeadAttention: query must stand at .* 2 rows from position 69"):
        layer(X[:, :2], cache=cache)
    with pytest.raises(ValueError, match=r"MultiHeadAttention\.append_to: key must stand at"):
        layer.append_to(cache, X[:, :2])
    with pytest.raises(ValueError, match=r"CausalDecoder: x must stand at .* 0 to 69"):
        decoder(X[:, :2], caches=caches)
    assert cache.lengths.tolist() == caches[0].lengths.tolist() == [P - 1, P - 1]
    assert_same_bits(cache.keys, keys)
    layer(X[:, :2], cache=cache, new_lengths=np.array([1, 0]))  # padding has no position
    decoder(X[:, :1], caches=caches)

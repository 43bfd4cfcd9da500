"""What encoders and decoders refuse: before any work, and with every cache as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from random_layers import rows

from mha_native import Decoder, DecoderLayer, Encoder, EncoderLayer, KVCache

F32 = np.float32


def _caches(count: int, batch: int = 2, capacity: int = 9) -> list[KVCache]:
    return [KVCache(batch, 2, capacity, 8) for _ in range(count)]


ENCODER_CALLS: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"x": np.ones((2, 4, 15), F32)}, ValueError, ["x", "16", "[2, 4, 15]"]),
    ({"x": np.ones(16, F32)}, ValueError, ["x", "[16]"]),
    ({"x": np.ones((1, 2, 4, 16), F32)}, ValueError, ["x", "[1, 2, 4, 16]"]),
    ({"x": np.ones((2, 4, 16))}, TypeError, ["x", "float64"]),
    ({"x": [1.0]}, TypeError, ["x", "list"]),
    ({"attn_mask": np.ones((4, 7), bool)}, ValueError, ["attn_mask", "[4, 7]"]),
    ({"attn_mask": np.ones((4, 4))}, TypeError, ["attn_mask float64"]),
    ({"key_mask": np.ones((2, 7), bool)}, ValueError, ["key_mask", "[2, 7]"]),
    ({"key_lengths": np.array([1, 5])}, ValueError, ["key_lengths", "5"]),
    ({"is_causal": 1}, TypeError, ["is_causal"]),
    ({"window": (1,)}, TypeError, ["window"]),
    ({"need_weights": 1}, TypeError, ["need_weights"]),
    ({"num_threads": 0}, ValueError, ["num_threads"]),
    ({"out": np.ones((2, 4, 15), F32)}, ValueError, ["out", "[2, 4, 15]"]),
    ({"out": np.ones((2, 4, 16))}, TypeError, ["out float64"]),
    ({"caches": _caches(1)}, ValueError, ["caches", "2", "1"]),
    ({"caches": [None, None]}, TypeError, ["caches", "KVCache", "NoneType"]),
    ({"caches": _caches(2, batch=3)}, ValueError, ["cache", "3"]),
    ({"caches": _caches(2, capacity=3)}, ValueError, ["cache", "3", "4"]),
    ({"new_lengths": np.array([1, 2])}, ValueError, ["new_lengths", "cache"]),
    ({"caches": _caches(2), "new_lengths": np.array([1, 5])}, ValueError, ["new_lengths", "5"]),
    ({"cu_seqlens": np.array([0, 4])}, ValueError, ["x", "2 axes"]),
    ({"x": np.ones((5, 16), F32), "out": None, "cu_seqlens": np.array([0, 4])}, ValueError, ["cu_seqlens", "5", "4"]),
    (
        {"x": np.ones((5, 16), F32), "out": None, "cu_seqlens": np.array([0, 5]), "need_weights": True},
        ValueError,
        ["need_weights", "cu_seqlens"],
    ),
    (
        {"x": np.ones((5, 16), F32), "out": None, "cu_seqlens": np.array([0, 5]), "caches": _caches(2)},
        ValueError,
        ["sequences", "in the cache, 2", "got 1"],
    ),
]


@pytest.mark.parametrize(
    ("fault", "kind", "words"), ENCODER_CALLS, ids=lambda x: "-".join(x) if isinstance(x, dict) else ""
)
def test_wrong_calls_of_an_encoder(fault: dict[str, Any], kind: type[Exception], words: list[str]) -> None:
    model, out = Encoder(2, 16, 2, 24, seed=0), np.full((2, 4, 16), 3, F32)
    caches = fault.get("caches") or []
    with pytest.raises(kind) as error:
        model(**({"x": np.ones((2, 4, 16), F32), "out": out} | fault))
    message = str(error.value)
    assert message.startswith("Encoder"), message
    for word in words:
        assert word in message, message
    assert (out == 3).all(), "work was done before the error"
    assert not any(cache.longest for cache in caches if cache is not None), "a cache was appended to"


def test_the_second_cache_is_too_small() -> None:
    # Whatever fails, fails before the first layer has appended anything.
    model, caches = Encoder(2, 16, 2, 24, seed=0), [KVCache(2, 2, 9, 8), KVCache(2, 2, 3, 8)]
    with pytest.raises(ValueError, match="3"):
        model(np.ones((2, 4, 16), F32), caches=caches, is_causal=True)
    assert [cache.longest for cache in caches] == [0, 0]


def test_one_cache_for_two_layers() -> None:
    model, cache = Encoder(2, 16, 2, 24, seed=0), KVCache(2, 2, 9, 8)
    with pytest.raises(ValueError, match="layers 0 and 1 share one"):
        model(np.ones((2, 4, 16), F32), caches=[cache, cache], is_causal=True)
    assert cache.longest == 0


def test_out_over_an_input_of_an_encoder() -> None:
    model, memory = Encoder(1, 16, 2, 24, seed=0), np.ones((3, 4, 16), F32)
    with pytest.raises(ValueError, match="out must not overlap x"):
        model(memory[:2], out=memory[1:])
    mask = memory.reshape(-1).view(bool)[: 4 * 4].reshape(4, 4)
    with pytest.raises(ValueError, match="out must not overlap attn_mask"):
        model(rows((3, 4, 16), F32), attn_mask=mask, out=memory)
    assert (memory == 1).all()


def test_a_wrong_call_of_a_layer() -> None:
    layer = EncoderLayer(16, 2, 24)
    with pytest.raises(TypeError, match=r"^EncoderLayer: .*KVCache"):
        layer(np.ones((2, 16), F32), cache="cache")
    with pytest.raises(ValueError, match=r"^EncoderLayer: "):
        layer(np.ones((2, 15), F32))


@pytest.mark.parametrize("kind", [EncoderLayer, DecoderLayer, Encoder, Decoder])
def test_unknown_options(kind: Any) -> None:
    layer = kind(16, 2, 24) if kind in (EncoderLayer, DecoderLayer) else kind(1, 16, 2, 24)
    with pytest.raises(TypeError, match=f"^{kind.__name__}: got an unexpected keyword argument 'softmax'$"):
        layer(np.ones((2, 16), F32), softmax=True)


def _ragged(**others: Any) -> dict[str, Any]:
    """Three sequences over two memories."""
    caches = None if "memory" in others else _caches(2, batch=2)
    given = {"x": np.ones((5, 16), F32), "out": None, "memory": None, "memory_caches": caches}
    return given | {"cu_seqlens": np.array([0, 2, 3, 5])} | others


DECODER_CALLS: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"x": np.ones((2, 4, 15), F32)}, ValueError, ["x", "16", "[2, 4, 15]"]),
    ({"x": np.ones((2, 4, 16))}, TypeError, ["x", "float64"]),
    ({"memory": np.ones((2, 6, 19), F32)}, ValueError, ["memory", "20", "[2, 6, 19]"]),
    ({"memory": np.ones((3, 6, 20), F32)}, ValueError, ["memory", "[3, 6, 20]"]),
    ({"memory": np.ones((6, 20), F32)}, ValueError, ["memory", "[6, 20]"]),
    ({"memory": np.ones((2, 6, 20))}, TypeError, ["memory", "float64"]),
    ({"memory": None}, TypeError, ["either memory or memory_caches must be given"]),
    ({"memory_caches": _caches(2)}, ValueError, ["memory", "memory_caches"]),
    ({"memory": None, "memory_caches": _caches(1)}, ValueError, ["memory_caches", "2", "1"]),
    ({"memory": None, "memory_caches": _caches(2, batch=3)}, ValueError, ["attention to memory", "cache", "3"]),
    ({"memory": None, "memory_caches": [1, 2]}, TypeError, ["memory_caches", "KVCache", "int"]),
    ({"attn_mask": np.ones((4, 7), bool)}, ValueError, ["attn_mask", "[4, 7]"]),
    ({"memory_attn_mask": np.ones((4, 7), bool)}, ValueError, ["attention to memory", "memory_attn_mask", "[4, 7]"]),
    ({"memory_key_mask": np.ones((2, 7), bool)}, ValueError, ["attention to memory", "memory_key_mask", "[2, 7]"]),
    ({"memory_scale": "1"}, TypeError, ["memory_scale", "real number"]),
    ({"memory_scale": np.inf}, ValueError, ["memory_scale", "finite", "inf"]),
    ({"memory_scale": 3e38}, ValueError, ["attention to memory", "memory_scale", "3e+38"]),
    ({"memory_lengths": np.array([1, 7])}, ValueError, ["attention to memory", "memory_lengths", "7"]),
    (
        {"memory": None, "memory_caches": _caches(2), "memory_lengths": np.array([1, 2])},
        ValueError,
        ["attention to memory", "memory_lengths", "cache"],
    ),
    ({"memory_sequences": np.array([0, 1])}, ValueError, ["memory_sequences needs cu_seqlens and memory_caches"]),
    (_ragged(memory=np.ones((6, 20), F32)), ValueError, ["cross_attention take a ragged batch only with memory_caches"]),
    (_ragged(memory_sequences=np.array([0])), ValueError, ["memory_sequences", "one entry for each sequence"]),
    (_ragged(memory_sequences=np.array([0, 1, 2])), ValueError, ["memory_sequences", "0 to 1", "got 2"]),
    (_ragged(memory_sequences=np.array([0, -1, 1])), ValueError, ["memory_sequences", "got -1"]),
    (_ragged(memory_sequences=np.array([0, 1, 0])), ValueError, ["memory_sequences", "neighbours", "0 again"]),
    (_ragged(), ValueError, ["memory_sequences must be given", "2", "got 3"]),
    ({"out": np.ones((2, 4, 15), F32)}, ValueError, ["out", "[2, 4, 15]"]),
    ({"caches": _caches(1)}, ValueError, ["caches", "2", "1"]),
    ({"caches": _caches(2, capacity=3)}, ValueError, ["cache", "3", "4"]),
    ({"new_lengths": np.array([1, 2])}, ValueError, ["new_lengths", "cache"]),
    ({"num_threads": 0}, ValueError, ["num_threads"]),
]


@pytest.mark.parametrize(
    ("fault", "kind", "words"), DECODER_CALLS, ids=lambda x: "-".join(x) if isinstance(x, dict) else ""
)
def test_wrong_calls_of_a_decoder(fault: dict[str, Any], kind: type[Exception], words: list[str]) -> None:
    model, out = Decoder(2, 16, 2, 24, memory_dim=20, seed=0), np.full((2, 4, 16), 3, F32)
    good = {"x": np.ones((2, 4, 16), F32), "memory": np.ones((2, 6, 20), F32), "out": out}
    with pytest.raises(kind) as error:
        model(**(good | fault))
    message = str(error.value)
    assert message.startswith("Decoder"), message
    for word in words:
        assert word in message, message
    assert (out == 3).all(), "work was done before the error"
    assert not any(cache.longest for cache in fault.get("caches", [])), "a cache was appended to"


def test_a_wrong_memory() -> None:
    layer = DecoderLayer(16, 2, 24)
    with pytest.raises(ValueError, match=r"^DecoderLayer.project_memory: memory must be .*got \[16\]"):
        layer.project_memory(np.ones(16, F32))
    with pytest.raises(ValueError, match=r"^DecoderLayer.project_memory: memory must have 16 .* memory \[3, 15\]$"):
        layer.project_memory(np.ones((3, 15), F32))


def test_out_over_the_memory() -> None:
    model, memory = Decoder(1, 16, 2, 24, seed=0), np.ones((2, 4, 16), F32)
    with pytest.raises(ValueError, match="out must not overlap memory"):
        model(rows((2, 4, 16), F32), memory, out=memory)
    assert (memory == 1).all()

"""Calls for `selftest` that reach each kernel, with the results of the float64 reference."""

import os
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _core, reference
from ..functions.attention import attention_weights, scaled_dot_product_attention
from ..functions.kv_cache import KVCache
from ..functions.merging import merge_attention
from ..functions.paged_kv_cache import PagedKVCache
from ..functions.statistics import attention_statistics
from ..functions.varlen import scaled_dot_product_attention_varlen
from ..layers.causal_decoder import CausalDecoder
from ..layers.decoder import Decoder
from ..layers.encoder import Encoder
from ..layers.feed_forward import FeedForward
from ..layers.layer_norm import LayerNorm
from ..layers.multi_head_attention import MultiHeadAttention
from ..layers.rms_norm import RMSNorm

Array = NDArray[Any]
DType = np.dtype[Any]


class Result(NamedTuple):
    """One result of the library, and the function that computes it by the reference, in float64."""

    name: str
    actual: Array
    expected: Callable[[], Array]


Check = Callable[[DType, int], Iterator[Result]]

# Lengths and widths on both sides of vectors, of blocks of 64 keys and of tiles; and enough work for several threads.
_QUERIES, _KEYS, _WIDTH, _VALUE_WIDTH = 67, 197, 64, 40


def _normal(rng: np.random.Generator, dtype: DType, *shape: int) -> Array:
    return _core.convert(rng.standard_normal(shape).astype(np.float32), dtype)


def _exact(array: Array) -> Array:
    return _core.convert(array, "float64")


def _at(index: Any, compute: Callable[[], Any]) -> Callable[[], Array]:
    """Return a function for the entry `index` of the result of `compute`, a tuple or an array."""
    return lambda: compute()[index]


def _options(rng: np.random.Generator) -> dict[str, dict[str, Any]]:
    masks: dict[str, Any] = {"key_lengths": np.array([_KEYS, 150]), "window": (100, -1)}
    masks["attn_mask"] = rng.random((2, 1, _QUERIES, _KEYS)) < 0.8
    causal = {"is_causal": True, "query_offset": np.array([90, _KEYS - _QUERIES])}
    return {"no masks": {}, "causal": causal, "all masks": causal | masks}


def _attention(dtype: DType, threads: int) -> Iterator[Result]:
    rng = np.random.default_rng(1)
    query = _normal(rng, dtype, 2, 4, _QUERIES, _WIDTH)
    key, value = _normal(rng, dtype, 2, 2, _KEYS, _WIDTH), _normal(rng, dtype, 2, 2, _KEYS, _VALUE_WIDTH)
    q, k, v = _exact(query), _exact(key), _exact(value)
    for name, options in _options(rng).items():
        out, lse = scaled_dot_product_attention(query, key, value, return_lse=True, num_threads=threads, **options)
        attend = partial(reference.scaled_dot_product_attention, q, k, v, return_lse=True, **options)
        yield Result(f"attention, {name}", out, _at(0, attend))
        yield Result(f"log-sum-exp, {name}", lse, _at(1, attend))
        weights = attention_weights(query, key, num_threads=threads, **options)
        yield Result(f"weights, {name}", weights, partial(reference.attention_weights, q, k, **options))
        entropy = attention_statistics(query, key, num_threads=threads, **options).entropy
        observe = partial(reference.attention_statistics, q, k, **options)
        yield Result(f"entropy, {name}", entropy, _at(0, observe))
    out = scaled_dot_product_attention(query[:, :, :1], key, value, num_threads=threads)
    yield Result("one query", out, partial(reference.scaled_dot_product_attention, q[:, :, :1], k, v))


def _shards_and_sequences(dtype: DType, threads: int) -> Iterator[Result]:
    rng = np.random.default_rng(2)
    query, key, value = (_normal(rng, dtype, 1, 4, 70, _WIDTH) for _ in range(3))
    q, k, v = _exact(query), _exact(key), _exact(value)
    parts = slice(0, 33), slice(33, 70)
    shards = [
        scaled_dot_product_attention(query, key[:, :, part], value[:, :, part], return_lse=True, num_threads=threads)
        for part in parts
    ]
    merged, _ = merge_attention(*map(list, zip(*shards, strict=True)), num_threads=threads)
    yield Result("merged shards", merged, partial(reference.scaled_dot_product_attention, q, k, v))

    cache = KVCache(1, 4, 70, _WIDTH, dtype=dtype)
    for part in parts:
        cache.append(key[:, :, part], value[:, :, part])
    last, keys, values = query[:, :, -1:], cache.keys, cache.values
    out = scaled_dot_product_attention(last, keys, values, key_lengths=cache.lengths, num_threads=threads)
    yield Result("cache", out, partial(reference.scaled_dot_product_attention, q[:, :, -1:], k, v))

    cu_seqlens, (query, key, value) = np.array([0, 3, 3, 40, 70]), (x[0].swapaxes(0, 1) for x in (query, key, value))
    options: dict[str, Any] = {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens, "is_causal": True}
    out = scaled_dot_product_attention_varlen(query, key, value, **options, num_threads=threads)
    rows = [_exact(x) for x in (query, key, value)]
    yield Result("ragged batch", out, partial(reference.scaled_dot_product_attention_varlen, *rows, **options))


def _stored_caches(dtype: DType, threads: int) -> Iterator[Result]:
    """Check shared pages and int8 caches."""
    rng = np.random.default_rng(10)
    query = _normal(rng, dtype, 2, 4, 3, _WIDTH)
    key, value = (_normal(rng, dtype, 2, 2, _KEYS, _WIDTH) for _ in range(2))
    key[1, :, :150], value[1, :, :150] = key[0, :, :150], value[0, :, :150]  # the common prefix of both sequences
    attend = partial(
        reference.scaled_dot_product_attention,
        *(_exact(x) for x in (query, key, value)),
        is_causal=True,
        query_offset=_KEYS - 3,
    )
    paged = PagedKVCache(num_pages=8, batch_size=2, num_kv_heads=2, head_dim=_WIDTH, dtype=dtype)
    paged.append(key, value, new_lengths=np.array([_KEYS, 0]))
    paged.fork(0, 1, length=150)
    rest = np.array([0, _KEYS - 150])
    paged.append(key[:, :, 150:], value[:, :, 150:], new_lengths=rest)
    out = scaled_dot_product_attention(query, paged, is_causal=True, num_threads=threads)
    yield Result("pages of two sequences", out, attend)
    if dtype != np.float32:
        return
    # Rows of integers up to 127, which int8 stores exactly.
    key, value = (rng.integers(-127, 128, (2, 2, _KEYS, _WIDTH)).astype(dtype) for _ in range(2))
    key[..., 0] = value[..., 0] = 127
    query /= 1024
    attend = partial(reference.scaled_dot_product_attention, *(_exact(x) for x in (query, key, value)))
    for name, cache in (
        ("a cache of int8", KVCache(2, 2, _KEYS, _WIDTH, dtype="int8")),
        ("pages of int8", PagedKVCache(num_pages=8, batch_size=2, num_kv_heads=2, head_dim=_WIDTH, dtype="int8")),
    ):
        cache.append(key, value)
        yield Result(name, scaled_dot_product_attention(query, cache, query_offset=_KEYS, num_threads=threads), attend)


def _forked_process(dtype: DType, threads: int) -> Iterator[Result]:
    """Check a call in a process that was forked after threads had been started."""
    if not hasattr(os, "fork"):
        return
    x = _normal(np.random.default_rng(11), dtype, 2, 4, _QUERIES, _WIDTH)
    attend = partial(scaled_dot_product_attention, x, x, x, is_causal=True, num_threads=threads)
    attend()
    rows = _exact(x)
    expected = partial(reference.scaled_dot_product_attention, rows, rows, rows, is_causal=True)
    yield Result("attention in a forked process", _in_a_fork(attend, x), expected)


def _in_a_fork(compute: Callable[[], Array], like: Array) -> Array:
    """Run `compute` in a child process; the result is empty if the child fails, else has the shape of `like`."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python and the core warn of forks with threads
        child = os.fork()
        if child == 0:
            try:
                with open(writing, "wb") as pipe:
                    pipe.write(compute().tobytes())
            finally:
                os._exit(0)  # skip the exit handlers of the parent
    os.close(writing)
    with open(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return np.frombuffer(data, like.dtype).reshape(like.shape if len(data) == like.nbytes else -1)


def _rows(dtype: DType, threads: int) -> Iterator[Result]:
    x = _normal(np.random.default_rng(3), dtype, 130, 96)
    norm = LayerNorm(96, dtype=dtype)
    yield Result("LayerNorm", norm(x, num_threads=threads), partial(reference.layer_norm, _exact(x)))
    rms = RMSNorm(96, dtype=dtype)
    yield Result("RMSNorm", rms(x, num_threads=threads), partial(reference.rms_norm, _exact(x)))
    for name in ("relu", "gelu", "gelu_tanh"):
        layer = FeedForward(96, 200, activation=name, dtype=dtype, seed=4)
        expected = partial(reference.feed_forward, _exact(x), _state(layer), activation=name)
        yield Result(f"FeedForward, {name}", layer(x, num_threads=threads), expected)


def _int8_weights(dtype: DType, threads: int) -> Iterator[Result]:
    if dtype != np.float32:
        return
    # Integers that int8 rows and weights store exactly, up to the largest products: the reference needs no rounding.
    rng, width = np.random.default_rng(9), 130
    rows, weight = rng.integers(0, 255, (70, width)), rng.integers(-127, 128, (width, width))
    rows[:, :2], weight[:, :2] = (0, 254), (-127, 127)
    layer = FeedForward(width, width, bias=False)
    layer.load_state_dict({"linear1.weight": np.eye(width, dtype=dtype), "linear2.weight": weight.astype(dtype)})
    out = layer.quantize("int8")(rows.astype(dtype), num_threads=threads)
    yield Result("int8 weights", out, partial(np.matmul, rows.astype(np.float64), weight.T.astype(np.float64)))


def _layers(dtype: DType, threads: int) -> Iterator[Result]:
    rng = np.random.default_rng(5)
    x, memory = _normal(rng, dtype, 2, 33, 96), _normal(rng, dtype, 2, 20, 96)
    rows = _exact(x)
    layer = MultiHeadAttention(96, 6, num_kv_heads=2, dtype=dtype, seed=6)
    slopes, sinks, *table = (rng.random((23, 6)) / 50).astype(np.float64 if dtype == np.float64 else np.float32)
    by_distance = np.transpose(table)
    modified = {"softcap": 5.0, "alibi_slopes": slopes, "position_bias": by_distance, "sinks": sinks}
    for name, scores in ("plain", {}), ("scores", modified):
        options: dict[str, Any] = {"num_kv_heads": 2, **scores}
        expected = partial(reference.multi_head_attention, rows, rows, rows, _state(layer), 6, **options)
        yield Result(f"MultiHeadAttention, {name}", layer(x, num_threads=threads, **scores), expected)

    kind: dict[str, Any] = {"activation": "gelu", "norm_first": True}
    arguments: dict[str, Any] = kind | {"final_norm": True, "dtype": dtype}
    encoder = Encoder(2, 96, 6, 200, **arguments, seed=7)
    yield Result(
        "Encoder", encoder(x, num_threads=threads), partial(reference.encoder, rows, _state(encoder), 6, **kind)
    )

    causal = CausalDecoder(2, 96, 6, 200, **arguments, seed=7)
    caches = causal.new_caches(2, 33)
    steps = [causal(x[:, part], caches=caches, num_threads=threads) for part in (slice(0, 32), slice(32, 33))]
    decode = partial(reference.encoder, rows, _state(causal), 6, **kind, is_causal=True)
    yield Result("CausalDecoder over caches", steps[1], _at(np.s_[:, 32:], decode))

    decoder = Decoder(2, 96, 6, 200, **arguments, seed=8)
    memories = decoder.project_memory(memory, num_threads=threads)
    expected = partial(reference.decoder, rows, _exact(memory), _state(decoder), 6, **kind)
    yield Result("Decoder", decoder(x, memory_caches=memories, num_threads=threads), expected)


def _state(layer: Any) -> dict[str, Array]:
    return {name: _exact(array) for name, array in layer.state_dict().items()}


CHECKS: tuple[Check, ...] = (
    _attention,
    _shards_and_sequences,
    _rows,
    _int8_weights,
    _layers,
    _stored_caches,
    _forked_process,
)

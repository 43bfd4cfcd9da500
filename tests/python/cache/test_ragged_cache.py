"""Ragged calls over a cache: every row has the bits of a call of its sequence alone, over a cache of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from element_types import BFLOAT16, accumulator_of
from matrix import ALL, matrix
from random_layers import randomized
from tolerance import assert_same_bits

from mha_native import CausalDecoder, EncoderLayer, KVCache, MultiHeadAttention, PagedKVCache, RotaryEmbedding

pytestmark = matrix(dtype=ALL)

Array = np.ndarray[Any, np.dtype[Any]]
CAPACITY = 200
LENGTHS = (0, 1, 1, 1, 2, 5, 33, 64, 70)  # of runs: mostly steps of a decoder, among them chunks of prompts
ANGLES = np.random.default_rng(3).uniform(0, 2 * np.pi, (CAPACITY, 4))
GROUPED = {"embed_dim": 64, "num_heads": 8, "num_kv_heads": 2}
LAYERS: dict[str, dict[str, Any]] = {
    "usual": {"embed_dim": 64, "num_heads": 4},
    "grouped": GROUPED,
    "wide": {"embed_dim": 29, "num_heads": 6, "num_kv_heads": 3, "head_dim": 11, "value_head_dim": 13, "out_dim": 40},
    "whole vectors": {"embed_dim": 128, "num_heads": 2},
    "rotary": {"rotary": 8} | GROUPED,
    "rotary and norms": {"rotary": 8, "qk_norm": "rms"} | GROUPED,
    "norms": {"qk_norm": "layer"} | GROUPED,
    "added keys": {"embed_dim": 48, "num_heads": 4, "add_bias_kv": True, "add_zero_attn": True},
}


def _attention(name: str, dtype: Any, **more: Any) -> MultiHeadAttention:
    sizes = LAYERS[name] | {"dtype": dtype, "seed": 3} | more
    if "rotary" in sizes:
        sizes["rotary"] = RotaryEmbedding(*(f(ANGLES).astype(accumulator_of(dtype)) for f in (np.cos, np.sin)))
    layer = MultiHeadAttention(**sizes)
    rng, state = np.random.default_rng(4), layer.state_dict()
    for key in state:
        if key.endswith(("bias", "norm.weight")):
            state[key] = rng.standard_normal(state[key].shape).astype(dtype)
    layer.load_state_dict(state)
    return layer


def _rows(count: int, model: Any, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal((count, model.embed_dim)).astype(model.dtype)


def _offsets(lengths: Any) -> Array:
    return np.concatenate([[0], np.cumsum(lengths)])


def _poisoned(cache: KVCache) -> KVCache:
    """Filled to the brim with NaN, and emptied."""
    dtype = np.dtype(np.float32) if cache.dtype == np.int8 else cache.dtype
    shapes = ((cache.batch_size, cache.num_kv_heads, cache.capacity, n) for n in (cache.head_dim, cache.value_head_dim))
    counts = np.full(cache.batch_size, cache.capacity)
    if isinstance(cache, PagedKVCache):  # whose capacity is that of all sequences together
        counts[1:] = 0
    cache.append(*(np.full(shape, np.nan, dtype) for shape in shapes), counts)
    cache.clear()
    return cache


def _assert_same_tokens(cache: KVCache, alone: list[KVCache], label: str) -> None:
    """A cache holds what the caches of its sequences hold, and nobody has written behind that."""
    is_paged, used = isinstance(cache, PagedKVCache), 0
    is_copied = is_paged or cache.dtype == np.int8
    for b, of_sequence in enumerate(alone):
        length = int(of_sequence.lengths[0])
        assert cache.lengths[b] == length, f"{label}, sequence {b}"
        for ours, theirs in ((cache.keys, of_sequence.keys), (cache.values, of_sequence.values)):
            assert_same_bits(ours[b, :, :length], theirs[0, :, :length], label=f"{label}, sequence {b}")
            assert is_copied or np.isnan(ours[b, :, length:]).all(), f"{label}, sequence {b}: written behind its end"
        used += -(-length // 64)
    assert not is_paged or cache.num_pages - cache.free_pages == used


def _runs(rng: np.random.Generator, cache: KVCache) -> Iterator[tuple[Array, Array]]:
    """Sequences in any order, and how many tokens each is to get, until the cache is about full."""
    for _ in range(5):
        size = int(rng.integers(1, cache.batch_size + 1))
        sequences = rng.permutation(cache.batch_size)[:size]
        yield sequences, np.minimum(rng.choice(LENGTHS, size), cache.capacity - cache.lengths[sequences])


OPTIONS = ["causal", "window", "masks", "scores", "all keys"]


def _options(which: str, layer: MultiHeadAttention, rows: int, runs: int, keys: int, rng: Any) -> dict[str, Any]:
    heads, scores = layer.num_heads, accumulator_of(layer.dtype)
    additive = rng.standard_normal((heads, rows, keys)).astype(layer.dtype)
    additive[rng.random(additive.shape) < 0.3] = -np.inf
    causal = {"is_causal": True}
    return {
        "all keys": {},
        "causal": causal,
        "window": {"window": (9, 0)},
        "masks": causal | {"attn_mask": additive, "key_mask": rng.random((runs, keys)) < 0.7},
        "scores": causal
        | {
            "softcap": 3.0,
            "alibi_slopes": rng.random((runs, heads)).astype(scores),
            "position_bias": rng.standard_normal((heads, 13)).astype(scores),
            "sinks": rng.standard_normal(heads).astype(scores),
        },
    }[which]


def _of_run(options: dict[str, Any], i: int, rows: slice, keys: int) -> dict[str, Any]:
    mine = dict(options)
    if "attn_mask" in mine:
        mine["attn_mask"] = mine["attn_mask"][:, rows, :keys]
    if "key_mask" in mine:
        mine["key_mask"] = mine["key_mask"][i, :keys]
    if "alibi_slopes" in mine:
        mine["alibi_slopes"] = mine["alibi_slopes"][i]
    return mine


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("seed", range(2))
def test_a_run_by_itself(seed: int, kind: str, isa: str, dtype: Any) -> None:
    rng = np.random.default_rng(seed)
    layer = _attention(kind, dtype)
    batch = int(rng.integers(1, 6))
    cache, paged = (_poisoned(layer.new_cache(batch, CAPACITY, page_size=size)) for size in (None, 64))
    alone = [layer.new_cache(1, CAPACITY) for _ in range(batch)]
    for step, (sequences, counts) in enumerate(_runs(rng, cache)):
        offsets = _offsets(counts)
        x = _rows(offsets[-1], layer, 10 * seed + step)
        keys = int((cache.lengths[sequences] + counts).max())
        options = _options(str(rng.choice(OPTIONS)), layer, len(x), len(counts), keys, rng)
        buffer, threads = np.full((len(x), layer.out_dim), np.nan, dtype), int(rng.integers(1, 4))
        out = layer(
            x, cache=cache, cu_seqlens_q=offsets, sequences=sequences, out=buffer, num_threads=threads, **options
        )
        assert out is buffer
        of_pages = layer(x, cache=paged, cu_seqlens_q=offsets, sequences=sequences, num_threads=threads, **options)
        assert_same_bits(of_pages, out, label=f"step {step}, pages")
        for i, (b, (first, last)) in enumerate(zip(sequences, pairwise(offsets), strict=True)):
            label, rows = f"step {step}, run {i} of sequences {sequences}, counts {counts}", slice(first, last)
            keys = int(alone[b].lengths[0]) + last - first
            expected = layer(x[None, rows], cache=alone[b], **_of_run(options, i, rows, keys))
            assert_same_bits(out[rows], expected[0], label=label)
        _assert_same_tokens(cache, alone, f"step {step}")
        _assert_same_tokens(paged, alone, f"step {step}, pages")


@pytest.mark.parametrize(
    "how",
    [
        {"cache_dtype": "float16"},
        {"cache_dtype": BFLOAT16},
        {"cache_dtype": "int8"},
        {"weight_dtype": "int8"},
        {"weight_dtype": "bfloat16"},
    ],
    ids=lambda how: "-".join(map(str, how.values())),
)
@pytest.mark.parametrize("name", ["grouped", "rotary and norms"])
def test_caches_and_weights_in_fewer_bits(name: str, how: dict[str, Any], isa: str) -> None:
    how = dict(how)
    kind = how.pop("cache_dtype", "float32")
    layer = _attention(name, "float32", **how)
    cache, paged = (_poisoned(layer.new_cache(3, CAPACITY, dtype=kind, page_size=size)) for size in (None, 64))
    alone = [layer.new_cache(1, CAPACITY, dtype=kind) for _ in range(3)]
    rng = np.random.default_rng(1)
    for step, (sequences, counts) in enumerate(_runs(rng, cache)):
        offsets = _offsets(counts)
        x = _rows(offsets[-1], layer, step)
        out = layer(x, cache=cache, cu_seqlens_q=offsets, sequences=sequences, is_causal=True)
        of_pages = layer(x, cache=paged, cu_seqlens_q=offsets, sequences=sequences, is_causal=True)
        assert_same_bits(of_pages, out, label=f"step {step}, pages")
        for b, (first, last) in zip(sequences, pairwise(offsets), strict=True):
            assert_same_bits(out[first:last], layer(x[None, first:last], cache=alone[b], is_causal=True)[0])
        _assert_same_tokens(cache, alone, f"step {step}")
        _assert_same_tokens(paged, alone, f"step {step}, pages")


def test_queries_and_keys_of_their_own(dtype: Any) -> None:
    """A run may have more keys than queries, or keys alone."""
    layer = _attention("rotary", dtype)
    cache, alone = _poisoned(layer.new_cache(3, 20)), [layer.new_cache(1, 20) for _ in range(3)]
    sequences, cu_q, cu_k = np.array([2, 0, 1]), _offsets([2, 1, 0]), _offsets([2, 5, 7])
    query, key, value = _rows(3, layer, 1), _rows(14, layer, 2), _rows(14, layer, 3)
    out = layer(query, key, value, cache=cache, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, sequences=sequences)
    for b, q, k in zip(sequences, pairwise(cu_q), pairwise(cu_k), strict=True):
        expected = layer(query[None, slice(*q)], key[None, slice(*k)], value[None, slice(*k)], cache=alone[b])
        assert_same_bits(out[slice(*q)], expected[0])
    _assert_same_tokens(cache, alone, "")


def test_all_sequences_in_their_order(dtype: Any) -> None:
    layer = _attention("grouped", dtype)
    some, same = layer.new_cache(3, 20), layer.new_cache(3, 20)
    x, offsets = _rows(9, layer, 1), np.array([0, 4, 4, 9])
    out = layer(x, cache=some, cu_seqlens_q=offsets, is_causal=True)
    assert_same_bits(layer(x, cache=same, cu_seqlens_q=offsets, sequences=np.array([0, 1, 2]), is_causal=True), out)
    assert some.lengths.tolist() == same.lengths.tolist() == [4, 0, 5]
    assert layer(x[:0], cache=some, cu_seqlens_q=np.array([0]), sequences=np.array([], int)).shape == (0, 64)
    assert layer(x[:0], cache=some, cu_seqlens_q=np.array([0, 0]), sequences=np.array([1])).shape == (0, 64)
    assert some.lengths.tolist() == [4, 0, 5]


def test_strided_and_read_only_rows(dtype: Any) -> None:
    layer = _attention("rotary", dtype)
    wide = np.repeat(_rows(20, layer, 1), 2, axis=1)[::2, ::2]
    wide.flags.writeable = False
    results = []
    for x in (wide, wide.copy()):
        cache = layer.new_cache(2, 20)
        results.append(
            (layer(x, cache=cache, cu_seqlens_q=np.array([0, 4, 10], np.int32), sequences=np.array((1, 0))), cache)
        )
    assert_same_bits(results[0][0], results[1][0])
    assert_same_bits(results[0][1].keys[1, :, :4], results[1][1].keys[1, :, :4])


def _stack(kind: str, dtype: Any) -> Any:
    sizes = {"num_layers": 3, "embed_dim": 64, "num_heads": 4, "num_kv_heads": 2, "feedforward_dim": 96}
    if kind == "rotary":
        rotary = RotaryEmbedding(*(f(ANGLES).astype(accumulator_of(dtype)) for f in (np.cos, np.sin)))
        sizes |= {"rotary": rotary, "qk_norm": "rms", "norm": "rms", "norm_first": True, "final_norm": True}
    if kind == "options":
        sizes["layer_options"] = [{"window": (20, 0)}, {}, {"softcap": 2.0, "scale": 0.2}]
    return randomized(CausalDecoder(**sizes, dtype=dtype, seed=1))


@pytest.mark.parametrize("kind", ["plain", "rotary", "options"])
@pytest.mark.parametrize("seed", range(2))
def test_a_stack(seed: int, kind: str, isa: str, dtype: Any) -> None:
    """Prompts in chunks beside steps of others, in random order, are the rows of whole texts."""
    rng, model = np.random.default_rng(seed), _stack(kind, dtype)
    texts = [_rows(int(rng.integers(1, 150)), model, 20 * seed + b) for b in range(5)]
    whole = [model(text) for text in texts]
    caches, read = model.new_caches(5, CAPACITY, page_size=64 if seed else None), np.zeros(5, int)
    while (left := np.array([len(text) for text in texts]) - read).any():
        sequences = rng.permutation(np.flatnonzero(left))[: int(rng.integers(1, 6))]
        counts = np.minimum(rng.choice(LENGTHS[1:], len(sequences)), left[sequences])
        x = np.concatenate([texts[b][read[b] : read[b] + n] for b, n in zip(sequences, counts, strict=True)])
        threads = int(rng.integers(1, 4))
        out = model(x, caches=caches, cu_seqlens=_offsets(counts), sequences=sequences, num_threads=threads)
        for b, n, (first, last) in zip(sequences, counts, pairwise(_offsets(counts)), strict=True):
            assert_same_bits(out[first:last], whole[b][read[b] : read[b] + n], label=f"sequence {b} from {read[b]}")
        read[sequences] += counts
        for cache in caches:
            assert cache.lengths.tolist() == read.tolist()


def test_in_place(dtype: Any) -> None:
    model = _stack("rotary", dtype)
    x, offsets = _rows(9, model, 1), np.array([0, 4, 9])
    expected = model(x, caches=model.new_caches(2, 20), cu_seqlens=offsets)
    assert model(x, caches=model.new_caches(2, 20), cu_seqlens=offsets, out=x) is x
    assert_same_bits(x, expected)


def test_one_layer_over_its_cache(dtype: Any) -> None:
    layer = randomized(EncoderLayer(32, 4, 64, dtype=dtype, seed=1))
    cache, x = layer.new_cache(4, 10), _rows(7, layer, 1)
    out = layer(x, cache=cache, cu_seqlens=np.array([0, 3, 7]), sequences=np.array([3, 1]), is_causal=True)
    assert cache.lengths.tolist() == [0, 4, 0, 3]
    assert_same_bits(out[:3], layer(x[:3], is_causal=True))
    assert_same_bits(out[3:], layer(x[3:], is_causal=True))


X = np.ones((6, 24), np.float32)
FAULTS: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"sequences": np.array([0, 3])}, ValueError, ["sequences", "0 to 2", "got 3"]),
    ({"sequences": np.array([-1, 1])}, ValueError, ["sequences", "0 to 2", "got -1"]),
    ({"sequences": np.array([1, 1])}, ValueError, ["sequences", "each", "1 twice"]),
    ({"sequences": np.array([1])}, ValueError, ["sequences", "2", "[1]"]),
    ({"sequences": np.array([0, 1, 2])}, ValueError, ["sequences", "2", "[3]"]),
    ({"sequences": np.array([0.0, 1.0])}, TypeError, ["sequences", "float64"]),
    ({"sequences": None}, ValueError, ["sequences", "2", "3"]),
    ({"cu_seqlens_q": np.array([0, 2, 5])}, ValueError, ["cu_seqlens_q", "6", "5"]),
    ({"cu_seqlens_q": np.array([0, 7, 6])}, ValueError, ["cu_seqlens_q", "never fall"]),
    ({"cu_seqlens_q": np.array([1, 2, 6])}, ValueError, ["cu_seqlens_q", "begin with 0"]),
    ({"cu_seqlens_k": np.array([0, 2, 5])}, ValueError, ["cu_seqlens_k", "6", "5"]),
    (
        {"cu_seqlens_q": np.array([0, 0, 6]), "sequences": np.array([0, 2])},
        ValueError,
        ["capacity of 10", "sequence 2", "5 + 6"],
    ),
    ({"new_lengths": np.array([1, 1])}, ValueError, ["new_lengths", "cu_seqlens_q"]),
    ({"append": False}, ValueError, ["append", "cu_seqlens_q"]),
    ({"need_weights": True}, ValueError, ["need_weights", "cu_seqlens_q"]),
    ({"query_offset": 1}, ValueError, ["query_offset", "cache"]),
    ({"key_lengths": np.array([1, 1])}, ValueError, ["key_lengths", "cache"]),
    ({"key_mask": np.ones(6, bool)}, ValueError, ["key_mask", "[2, 9]", "[6]"]),
    ({"attn_mask": np.ones((6, 6), bool)}, ValueError, ["attn_mask", "[4, 6, 9]", "[6, 6]"]),
    ({"query": X[None]}, ValueError, ["query", "[1, 6, 24]"]),
    ({"out": np.ones((6, 23), np.float32)}, ValueError, ["out", "[6, 23]"]),
    ({"cache": None}, ValueError, ["sequences", "cache"]),
    ({"cu_seqlens_q": None}, ValueError, ["sequences", "cu_seqlens_q"]),
    ({"cache": KVCache(3, 2, 10, 6)}, ValueError, ["cache", "num_kv_heads 4", "num_kv_heads 2"]),
]


def _filled(cache: KVCache) -> KVCache:
    tokens = np.random.default_rng(1).standard_normal((3, 4, 5, 6)).astype(np.float32)
    cache.append(tokens, tokens, new_lengths=np.array([3, 0, 5]))
    return cache


@pytest.mark.parametrize(("fault", "kind", "words"), FAULTS, ids=lambda x: "-".join(x) if isinstance(x, dict) else "")
def test_what_fails_changes_nothing(fault: dict[str, Any], kind: type[Exception], words: list[str]) -> None:
    layer = MultiHeadAttention(24, 4, seed=0)
    cache, out = _filled(layer.new_cache(3, 10)), np.full((6, 24), 3, np.float32)
    keys, values = cache.keys.copy(), cache.values.copy()
    call = {"query": X, "cache": cache, "cu_seqlens_q": np.array([0, 2, 6]), "sequences": np.array([0, 2]), "out": out}
    with pytest.raises(kind) as error:
        layer(**(call | fault))
    message = str(error.value)
    assert message.startswith("MultiHeadAttention: "), message
    assert "\n" not in message
    for word in words:
        assert word in message, message
    assert (out == 3).all(), "work was done before the error"
    assert cache.lengths.tolist() == [3, 0, 5]
    assert_same_bits(cache.keys, keys)
    assert_same_bits(cache.values, values)


STACK_FAULTS: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"sequences": np.array([0, 3])}, ValueError, ["sequences", "0 to 2", "got 3"]),
    ({"sequences": np.array([2, 2])}, ValueError, ["sequences", "2 twice"]),
    ({"sequences": np.array([2])}, ValueError, ["sequences", "[1]"]),
    ({"sequences": None}, ValueError, ["sequences", "2", "3"]),
    ({"cu_seqlens": np.array([0, 2, 5])}, ValueError, ["cu_seqlens", "rows of x", "6", "5"]),
    ({"cu_seqlens": np.array([0, 2, 4, 6])}, ValueError, ["sequences", "3", "[2]"]),
    ({"cu_seqlens": None}, ValueError, ["sequences", "cu_seqlens"]),
    ({"cu_seqlens": np.array([0, 0, 6])}, ValueError, ["capacity of 10", "sequence 2", "5 + 6"]),
    ({"new_lengths": np.array([1, 1])}, ValueError, ["new_lengths", "cu_seqlens"]),
    ({"need_weights": True}, ValueError, ["need_weights", "cu_seqlens"]),
    ({"caches": None}, ValueError, ["sequences", "cache"]),
    ({"x": X[None]}, ValueError, ["x", "[1, 6, 24]"]),
]


@pytest.mark.parametrize("fault", STACK_FAULTS, ids=lambda fault: "-".join(fault[0]))
def test_stacks_that_fail_change_no_cache(fault: tuple[dict[str, Any], type[Exception], list[str]]) -> None:
    model = CausalDecoder(2, 24, 4, 40, seed=0)
    caches = [_filled(cache) for cache in model.new_caches(3, 10)]
    kept = [(cache.keys.copy(), cache.values.copy()) for cache in caches]
    out = np.full((6, 24), 3, np.float32)
    call = {"x": X, "caches": caches, "cu_seqlens": np.array([0, 2, 6]), "sequences": np.array([0, 2]), "out": out}
    with pytest.raises(fault[1]) as error:
        model(**(call | fault[0]))
    message = str(error.value)
    assert message.startswith("CausalDecoder: "), message
    for word in fault[2]:
        assert word in message, message
    assert (out == 3).all(), "work was done before the error"
    for cache, (keys, values) in zip(caches, kept, strict=True):
        assert cache.lengths.tolist() == [3, 0, 5]
        assert_same_bits(cache.keys, keys)
        assert_same_bits(cache.values, values)


def test_a_text_longer_than_the_table_of_positions() -> None:
    layer = _attention("rotary", np.float32)
    cache = layer.new_cache(2, 2 * CAPACITY)
    layer(_rows(CAPACITY - 1, layer, 1), cache=cache, cu_seqlens_q=np.array([0, CAPACITY - 1]), sequences=np.array([1]))
    with pytest.raises(ValueError, match=f"query must stand at positions of rotary, 0 to {CAPACITY - 1}; got 2 rows"):
        layer(_rows(2, layer, 1), cache=cache, cu_seqlens_q=np.array([0, 2]), sequences=np.array([1]))
    layer(_rows(2, layer, 1), cache=cache, cu_seqlens_q=np.array([0, 2]), sequences=np.array([0]))
    assert cache.lengths.tolist() == [2, CAPACITY - 1]


def test_two_calls_that_change_one_cache() -> None:
    """The second one is refused; then the cache has the tokens of the others."""
    layer = MultiHeadAttention(256, 4, seed=0)
    cache, x = layer.new_cache(2, 4000), _rows(2000, layer, 1)
    refused = []

    def call(sequence: int) -> None:
        for _ in range(2):
            try:
                layer(x, cache=cache, cu_seqlens_q=np.array([0, 2000]), sequences=np.array([sequence]), num_threads=1)
            except RuntimeError:
                refused.append(sequence)

    threads = [threading.Thread(target=call, args=(b,)) for b in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.lengths.tolist() == [2000 * (2 - refused.count(b)) for b in range(2)]


def test_more_threads_than_rows() -> None:
    layer, results = _attention("grouped", np.float32), []
    for threads in (1, 2, 3, 16):
        cache, call = layer.new_cache(3, 1200), {"is_causal": True, "num_threads": threads}
        prompts = layer(
            _rows(1100, layer, 1),
            cache=cache,
            cu_seqlens_q=np.array([0, 600, 1100]),
            sequences=np.array([2, 0]),
            **call,
        )
        results.append((prompts, layer(_rows(3, layer, 2), cache=cache, cu_seqlens_q=np.array([0, 1, 2, 3]), **call)))
    for prompts, step in results[1:]:
        assert_same_bits(prompts, results[0][0])
        assert_same_bits(step, results[0][1])

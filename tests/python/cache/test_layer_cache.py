"""A layer over a cache gives the rows of one call without it, bit by bit, however they are cut into steps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tolerance
from matrix import ALL, matrix, nightly
from random_layers import with_random_biases
from scattered_pages import poisoned
from tolerance import assert_close, assert_same_bits

import mha_native
from mha_native import KVCache, MultiHeadAttention, PagedKVCache

pytestmark = matrix(dtype=ALL)

F32 = np.float32
WIDE = {"embed_dim": 29, "num_heads": 6, "num_kv_heads": 3, "head_dim": 11, "value_head_dim": 13, "out_dim": 40}
LAYERS: dict[str, dict[str, Any]] = {
    "usual": {"embed_dim": 64, "num_heads": 4},
    "whole vectors": {"embed_dim": 128, "num_heads": 2},
    "grouped": {"embed_dim": 64, "num_heads": 8, "num_kv_heads": 2},
    "wide": WIDE,
    "no bias": WIDE | {"bias": False},
    "deep": {"embed_dim": 800, "num_heads": 5, "head_dim": 3},  # features in two blocks
}
QUICK_MASKS = ("none", "causal", "additive", "key mask", "all")


def _layer(name: str, dtype: Any) -> MultiHeadAttention:
    return with_random_biases(MultiHeadAttention(**LAYERS[name], dtype=dtype, seed=3))


def _x(layer: MultiHeadAttention, batch: int, length: int, seed: int = 5) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((batch, length, layer.embed_dim)).astype(layer.dtype)


@pytest.fixture(params=[{}, {"page_size": 64}], ids=["dense", "paged"])
def pages(request: pytest.FixtureRequest) -> dict[str, int]:
    """What `new_cache` is told besides the sizes."""
    return request.param


def _poisoned(cache: KVCache) -> KVCache:
    """Filled to the brim with NaN, and emptied."""
    if isinstance(cache, PagedKVCache):
        return poisoned(cache)
    shapes = ((cache.batch_size, cache.num_kv_heads, cache.capacity, n) for n in (cache.head_dim, cache.value_head_dim))
    cache.append(*(np.full(shape, np.nan, cache.dtype) for shape in shapes))
    cache.clear()
    return cache


def _chunks(rng: np.random.Generator, length: int, sizes: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    start = 0
    while start < length:
        stop = min(length, start + int(rng.choice(sizes)))
        yield start, stop
        start = stop


@pytest.mark.parametrize("sizes", [(1,), (1, 2, 5), (1, 3, 64, 70)], ids=["steps", "few", "mixed"])
@matrix(name=nightly(LAYERS, quick=("usual", "grouped", "wide", "deep")), seed=nightly(range(4), quick=range(3)))
def test_chunks_of_one_call(
    seed: int, name: str, sizes: tuple[int, ...], isa: str, dtype: Any, pages: dict[str, int]
) -> None:
    rng = np.random.default_rng(seed)
    layer = _layer(name, dtype)
    batch, length = int(rng.integers(1, 5)), int(rng.integers(1, 40 if sizes == (1,) else 150))
    x, is_causal = _x(layer, batch, length, seed), bool(rng.random() < 0.9)
    whole, weights = layer(x, is_causal=True, need_weights=True, num_threads=1)
    cache = _poisoned(layer.new_cache(batch, length, **pages))
    for start, stop in _chunks(rng, length, sizes):
        threads = int(rng.integers(1, 4))
        step = {"is_causal": is_causal or stop - start > 1, "num_threads": threads}  # one row sees all that is there
        out = np.full((batch, stop - start, layer.out_dim), np.nan, dtype)
        result, some = layer(x[:, start:stop], cache=cache, out=out, need_weights=True, **step)
        assert result is out
        label = f"rows {start} to {stop} with {threads} threads"
        assert_same_bits(out, whole[:, start:stop], label=label)
        assert_same_bits(some, weights[:, :, start:stop, :stop], label=f"{label}, weights")
    assert cache.lengths.tolist() == [length] * batch
    # In the cache is what the layer would have projected.
    again = layer.new_cache(batch, length, **pages)
    layer.append_to(again, x)
    assert_same_bits(cache.keys, again.keys)
    assert_same_bits(cache.values, again.values)


@matrix(seed=nightly(range(30), quick=range(3)))
def test_any_history(seed: int, isa: str, dtype: Any, num_threads: int, pages: dict[str, int]) -> None:
    """Ragged appends, drafts that are rolled back and beams that fork: every row is that of its own sequence alone."""
    rng = np.random.default_rng(seed)
    layer = _layer(str(rng.choice(["usual", "grouped", "wide"])), dtype)
    batch, capacity = int(rng.integers(1, 6)), 90
    cache = _poisoned(layer.new_cache(batch, capacity, **pages))
    sequences = [_x(layer, 1, 0)[0]] * batch  # what each one has read
    for step in range(7):
        room = capacity - cache.lengths
        length = int(rng.integers(1, rng.choice([2, 6, 40])))
        counts = np.minimum(rng.integers(length + 1, size=batch), room)
        x = _x(layer, batch, length, 100 * seed + step)
        for b, count in enumerate(counts):
            x[b, count:] = np.nan
        out, weights = layer(
            x, cache=cache, is_causal=True, new_lengths=counts, need_weights=True, num_threads=num_threads
        )
        sequences = [
            np.concatenate([s, x[b, :count]]) for b, (s, count) in enumerate(zip(sequences, counts, strict=True))
        ]
        assert cache.lengths.tolist() == [len(s) for s in sequences]
        assert weights.shape == (batch, layer.num_heads, length, cache.longest)
        for b, (sequence, count) in enumerate(zip(sequences, counts, strict=True)):
            label, first = f"step {step}, sequence {b}", len(sequence) - count
            alone, alone_weights = layer(sequence, is_causal=True, need_weights=True)
            assert_same_bits(out[b, :count], alone[first:], label=label)
            assert_same_bits(weights[b, :, :count, : len(sequence)], alone_weights[:, first:], label=label)
            assert not weights[b, :, :, len(sequence) :].any()
            assert not weights[b, :, count:].any()
            unseen = layer.state_dict().get("out_proj.bias", np.zeros(layer.out_dim, dtype))
            assert_same_bits(out[b, count:], np.tile(unseen, (length - count, 1)), label=f"{label}, padding")
        match rng.integers(3):
            case 0:
                back = rng.integers(np.minimum(cache.lengths, 5) + 1)
                cache.rollback(back)
                sequences = [s[: len(s) - count] for s, count in zip(sequences, back, strict=True)]
            case 1:
                index = rng.integers(batch, size=batch)
                cache.reorder(index)
                sequences = [sequences[i] for i in index]


def test_speculative_decoding(isa: str, dtype: Any, pages: dict[str, int]) -> None:
    """A draft of four tokens is read in one call; what was accepted is as if it had been read one by one."""
    layer = _layer("grouped", dtype)
    x = _x(layer, 3, 30)
    whole = layer(x, is_causal=True)
    cache = layer.new_cache(3, 34, **pages)
    layer(x[:, :10], cache=cache, is_causal=True)
    rng = np.random.default_rng(1)
    while (left := 30 - cache.lengths).any():
        accepted = np.minimum(rng.integers(1, 5, size=3), left)
        draft = _x(layer, 3, 4, 9)
        at = cache.lengths
        for b in range(3):
            draft[b, : accepted[b]] = x[b, at[b] : at[b] + accepted[b]]
        out = layer(draft, cache=cache, is_causal=True)
        for b in range(3):
            assert_same_bits(out[b, : accepted[b]], whole[b, at[b] : at[b] + accepted[b]])
        cache.rollback(4 - accepted)


def test_beam_search(isa: str, dtype: Any, pages: dict[str, int]) -> None:
    """Beams fork from one prompt, and each reads on for itself."""
    layer = _layer("usual", dtype)
    prompt, beams = _x(layer, 1, 9), 4
    cache = layer.new_cache(beams, 30, **pages)
    layer(np.tile(prompt, (beams, 1, 1)), cache=cache, is_causal=True, new_lengths=np.array([9, 0, 0, 0]))
    cache.reorder(np.zeros(beams, np.int64))
    histories = [prompt[0]] * beams
    rng = np.random.default_rng(2)
    for step in range(12):
        x = _x(layer, beams, 1, step)
        out = layer(x, cache=cache, is_causal=True)
        histories = [np.concatenate([h, x[b]]) for b, h in enumerate(histories)]
        for b, history in enumerate(histories):
            assert_same_bits(out[b, 0], layer(history, is_causal=True)[-1], label=f"step {step}, beam {b}")
        index = rng.integers(beams, size=beams)
        cache.reorder(index)
        histories = [histories[i] for i in index]


def test_sliding_window(isa: str, dtype: Any) -> None:
    """What is left after eviction is attended to as if there had never been more."""
    layer, window = _layer("wide", dtype), 20
    x = _x(layer, 2, 100)
    cache = layer.new_cache(2, 2 * window)
    oldest = 0
    for t in range(100):
        if cache.longest == cache.capacity:
            cache.keep_last(window)
            oldest = t - window
        out = layer(x[:, t : t + 1], cache=cache, is_causal=True)
        assert_same_bits(out, layer(x[:, oldest : t + 1], is_causal=True)[:, -1:], label=f"token {t}")


@matrix(mask=nightly(["none", "causal", "boolean", "additive", "key mask"], quick=QUICK_MASKS))
def test_cross_attention(mask: str, isa: str, dtype: Any, num_threads: int, pages: dict[str, int]) -> None:
    """What append_to has projected once serves every later call as if it had been given."""
    layer = MultiHeadAttention(32, 4, num_kv_heads=2, kdim=23, vdim=31, dtype=dtype, seed=0)
    rng = np.random.default_rng(3)
    key, value = (rng.standard_normal((2, 70, n)).astype(dtype) for n in (23, 31))
    query = rng.standard_normal((2, 12, 32)).astype(dtype)
    options: dict[str, Any] = {
        "none": {},
        "causal": {"is_causal": True},
        "boolean": {"attn_mask": rng.random((2, 1, 12, 70)) < 0.5},
        "additive": {"attn_mask": rng.standard_normal((4, 12, 70)).astype(dtype)},
        "key mask": {"key_mask": rng.random((2, 70)) < 0.5},
    }[mask]
    cache = _poisoned(layer.new_cache(2, 90, **pages))
    layer.append_to(cache, key[:, :40], value[:, :40], num_threads=num_threads)
    layer.append_to(cache, key[:, 40:], value[:, 40:], num_threads=num_threads)
    expected, expected_weights = layer(query, key, value, need_weights=True, **options)
    for _ in range(2):
        out, weights = layer(query, cache=cache, append=False, need_weights=True, num_threads=num_threads, **options)
        assert_same_bits(out, expected)
        assert_same_bits(weights, expected_weights)
    assert cache.lengths.tolist() == [70, 70]


def test_cross_attention_to_ragged_keys(isa: str, dtype: Any, pages: dict[str, int]) -> None:
    layer = _layer("usual", dtype)
    query, encoded, lengths = _x(layer, 3, 5), _x(layer, 3, 20, 6), np.array([20, 0, 7])
    for b, length in enumerate(lengths):
        encoded[b, length:] = np.nan
    cache = layer.new_cache(3, 20, **pages)
    layer.append_to(cache, encoded, new_lengths=lengths)
    out = layer(query, cache=cache, append=False)
    for b, length in enumerate(lengths):
        assert_same_bits(out[b], layer(query[b], encoded[b, :length]), label=f"{length} keys")


def test_key_and_value_of_their_own(isa: str, dtype: Any, pages: dict[str, int]) -> None:
    """As where positions are added to query and key, and not to the value."""
    layer = _layer("grouped", dtype)
    query, key, value = (_x(layer, 2, 40, seed) for seed in (1, 2, 3))
    whole = layer(query, key, value, is_causal=True)
    cache = layer.new_cache(2, 40, **pages)
    for first, last in ((0, 17), (17, 18), (18, 40)):
        part = (x[:, first:last] for x in (query, key, value))
        assert_same_bits(layer(*part, cache=cache, is_causal=True), whole[:, first:last])


@matrix(mask=nightly(["boolean", "additive", "key mask", "all"], quick=QUICK_MASKS))
def test_masks_are_over_all_keys(mask: str, isa: str, dtype: Any, pages: dict[str, int]) -> None:
    layer = _layer("wide", dtype)
    x, rng = _x(layer, 2, 60), np.random.default_rng(8)
    additive = rng.standard_normal((layer.num_heads, 60, 60)).astype(dtype)
    additive[rng.random(additive.shape) < 0.2] = -np.inf
    key_mask = rng.random((2, 60)) < 0.7
    options: dict[str, Any] = {
        "boolean": {"attn_mask": rng.random((2, 1, 60, 60)) < 0.7},
        "additive": {"attn_mask": additive},
        "key mask": {"key_mask": key_mask},
        "all": {"attn_mask": additive, "key_mask": key_mask},
    }[mask]
    expected = tolerance.layer(layer, x, x, x, options | {"is_causal": True})
    whole, weights = layer(x, is_causal=True, need_weights=True, **options)
    cache = _poisoned(layer.new_cache(2, 64, **pages))
    for first, last in ((0, 33), (33, 34), (34, 60)):
        part = {
            name: option[..., :last] if name == "key_mask" else option[..., first:last, :last]
            for name, option in options.items()
        }
        out, some = layer(x[:, first:last], cache=cache, is_causal=True, need_weights=True, **part)
        assert_close(out, expected.out[:, first:last], expected.out_bound[:, first:last], label=mask)
        assert_same_bits(out, whole[:, first:last], label=mask)
        assert_same_bits(some, weights[:, :, first:last, :last], label=mask)


@pytest.mark.parametrize("name", ["usual", "wide"])
def test_without_a_batch_axis(name: str, isa: str, dtype: Any) -> None:
    layer = _layer(name, dtype)
    x = _x(layer, 1, 12)
    cache, other = layer.new_cache(1, 12), layer.new_cache(1, 12)
    for first, last in ((0, 7), (7, 12)):
        out, weights = layer(x[0, first:last], cache=cache, is_causal=True, need_weights=True)
        batched, batched_weights = layer(x[:, first:last], cache=other, is_causal=True, need_weights=True)
        assert_same_bits(out, batched[0])
        assert_same_bits(weights, batched_weights[0])
    layer.append_to(cache := layer.new_cache(1, 12), x[0], new_lengths=np.array([5]))
    assert_same_bits(cache.keys[:, :, :5], other.keys[:, :, :5])


def test_any_memory(isa: str, dtype: Any, pages: dict[str, int]) -> None:
    layer = _layer("grouped", dtype)
    x = _x(layer, 3, 8)
    whole = layer(x, is_causal=True)
    wide = np.repeat(x, 2, -1)
    wide.flags.writeable = False
    time_first = np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1)
    for view in (wide[..., ::2], time_first, x[::-1, ::-1].copy()[::-1, ::-1]):
        cache = layer.new_cache(3, 8, **pages)
        for t in range(8):
            memory = np.full((3, 1, 128), np.nan, dtype)
            out = layer(view[:, t : t + 1], cache=cache, is_causal=True, out=memory[..., ::2])
            assert_same_bits(out.copy(), whole[:, t : t + 1])


@pytest.mark.parametrize("sizes", [(0, 5), (2, 0), (0, 0)], ids=str)
def test_empty_sizes(sizes: tuple[int, int], isa: str, dtype: Any) -> None:
    layer = _layer("usual", dtype)
    cache = layer.new_cache(sizes[0], 5)
    out, weights = layer(_x(layer, *sizes), cache=cache, need_weights=True)
    assert out.shape == (*sizes, 64)
    assert weights.shape == (sizes[0], 4, sizes[1], cache.longest)
    query = _x(layer, sizes[0], 2)
    empty = layer(query, cache=layer.new_cache(sizes[0], 5), append=False)
    assert_same_bits(empty, np.broadcast_to(layer.state_dict()["out_proj.bias"], empty.shape).copy())
    mha_native.scaled_dot_product_attention(*np.ones((3, 2, 4), dtype))  # an empty result computes nothing


def test_two_threads_in_one_cache(pages: dict[str, int]) -> None:
    # The second call is refused: it would count on lengths that the first is about to change.
    layer = _layer("whole vectors", F32)
    x = _x(layer, 1, 3000)
    cache = layer.new_cache(1, 3000, **pages)
    results: list[np.ndarray] = []

    def read() -> None:
        results.append(layer(x, cache=cache, is_causal=True, num_threads=1))

    def meet() -> list[str]:
        cache.clear()
        worker, refused = threading.Thread(target=read), []
        worker.start()
        while worker.is_alive():
            try:
                cache.rollback(0)
            except RuntimeError as error:
                refused.append(str(error))
        worker.join()
        return refused

    for _ in range(50):
        if refused := meet():
            break
    assert refused, "the calls never met"
    assert "another thread" in refused[0]
    assert cache.lengths.tolist() == [3000]
    assert_same_bits(results[-1], layer(x, is_causal=True))


def test_threads_that_only_read(isa: str, pages: dict[str, int]) -> None:
    layer = _layer("whole vectors", F32)
    x = _x(layer, 2, 300)
    cache = layer.new_cache(2, 300, **pages)
    layer.append_to(cache, x)
    expected = layer(x, x)
    results: list[np.ndarray] = []
    workers = [
        threading.Thread(target=lambda: results.append(layer(x, cache=cache, append=False, num_threads=1)))
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == 4
    for result in results:
        assert_same_bits(result, expected)
    layer.append_to(cache, x[:, :0])  # nobody is left in it


def test_each_thread_with_a_cache_of_its_own() -> None:
    layer = _layer("usual", F32)
    x = _x(layer, 1, 60)
    whole, results = layer(x, is_causal=True), {}

    def decode(name: int) -> None:
        cache = layer.new_cache(1, 60)
        results[name] = np.concatenate([layer(x[:, t : t + 1], cache=cache, is_causal=True) for t in range(60)], 1)

    workers = [threading.Thread(target=decode, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(results) == [0, 1, 2, 3]
    for result in results.values():
        assert_same_bits(result, whole)


@pytest.mark.parametrize("name", ["usual", "grouped", "wide"])
@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_a_cache_in_16_bits_rounds_keys_and_values_only(
    name: str, narrow: str, isa: str, pages: dict[str, int]
) -> None:
    """Steps have the bits of one call over such a cache; and that is near the call without one, in float32."""
    layer = _layer(name, F32)
    x = _x(layer, 2, 70)
    exact = layer(x, is_causal=True)
    at_once = layer(x, is_causal=True, cache=layer.new_cache(2, 70, dtype=narrow, **pages))
    assert at_once.dtype == F32
    eps = 2**-10 if narrow == "float16" else 2**-7
    assert 0 < np.abs(at_once - exact).max() < 8 * eps * np.abs(exact).max()
    cache = layer.new_cache(2, 70, dtype=narrow, **pages)
    steps = [layer(x[:, t : t + 1], is_causal=True, cache=cache) for t in range(70)]
    assert_same_bits(np.concatenate(steps, axis=1), at_once)


def test_a_cache_is_not_wider_than_the_layer() -> None:
    layer = _layer("usual", F32)
    expected = "cache must have the dtype of the layer, float32, or float16, bfloat16 or int8; got"
    with pytest.raises(TypeError, match=expected):
        layer(_x(layer, 1, 2), cache=layer.new_cache(1, 2, dtype="float64"))

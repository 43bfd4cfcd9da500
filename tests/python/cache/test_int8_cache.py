"""Caches of int8: quantized as stated, attended to with the bits of a float32 cache of the same numbers."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mha_native as mha

B, HK, D, DV = 3, 2, 64, 48


def quantized(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Integers and scales [..., 1] of rows of float32: the rule, in NumPy."""
    most = np.abs(x).max(axis=-1, keepdims=True)
    with np.errstate(all="ignore"):
        scale = most / np.float32(127)
        scale = np.where(
            np.isfinite(most) & ~np.isfinite(scale * np.float32(127)), np.nextafter(scale, np.float32(0)), scale
        )
        integers = np.clip(np.rint(x / scale), -127, 127)
    return np.where(np.isfinite(most) & (scale > 0), integers, 0).astype(np.int8), scale


def numbers(x: np.ndarray) -> Any:
    integers, scale = quantized(x)
    with np.errstate(invalid="ignore"):
        return integers * scale


def tokens(rng: np.random.Generator, count: int, columns: int = D) -> np.ndarray:
    return rng.standard_normal((B, HK, count, columns), dtype=np.float32) * rng.uniform(
        0.01, 9, (B, HK, count, 1)
    ).astype(np.float32)


def dense(dtype: str = "int8", capacity: int = 700) -> mha.KVCache:
    return mha.KVCache(B, HK, capacity, D, DV, dtype)


def paged(dtype: str = "int8") -> mha.PagedKVCache:
    return mha.PagedKVCache(40, batch_size=B, num_kv_heads=HK, head_dim=D, value_head_dim=DV, dtype=dtype)


Make = Callable[..., mha.KVCache]
KINDS = pytest.mark.parametrize("make", [dense, paged])


def twin(cache: mha.KVCache) -> mha.KVCache:
    """A float32 cache of the numbers of another one."""
    other = dense("float32")
    longest = cache.longest
    other.append(cache.keys[:, :, :longest], cache.values[:, :, :longest], cache.lengths)
    return other


def same(cache: mha.KVCache, key: np.ndarray, value: np.ndarray, lengths: Any) -> None:
    for found, given in ((cache.keys, key), (cache.values, value)):
        assert found.dtype == np.float32
        assert not found.flags.writeable
        for b, length in enumerate(lengths):
            np.testing.assert_array_equal(found[b, :, :length], numbers(given)[b, :, :length])
            assert not found[b, :, length:].any()


@KINDS
def test_tokens_are_quantized_as_stated(make: Make) -> None:
    rng = np.random.default_rng(1)
    key, value = tokens(rng, 90), tokens(rng, 90, DV)
    key[0, 0, 3] = 0
    key[1, 1, 4, 5] = np.finfo(np.float32).max
    key[1, 0, 5] *= np.float32(1e-42)
    value[2, 1, 6, 7] = np.inf
    value[2, 0, 7, 8] = np.nan
    cache, lengths = make(), np.array([90, 31, 64])
    cache.append(key, value, lengths)
    assert cache.dtype == np.int8
    same(cache, key, value, lengths)
    state = cache.state_dict()
    for name, given in (("key", key), ("value", value)):
        integers, scale = quantized(given)
        for b, length in enumerate(lengths):
            np.testing.assert_array_equal(state[f"{name}s"][b, :, :length], integers[b, :, :length])
            np.testing.assert_array_equal(state[f"{name}_scales"][b, :, :length], scale[b, :, :length, 0])


@KINDS
def test_strides_do_not_matter(make: Make) -> None:
    rng = np.random.default_rng(2)
    key, value = tokens(rng, 9), tokens(rng, 9, DV)
    cache = make()
    cache.append(np.asfortranarray(key), value[..., ::-1][..., ::-1])
    cache.append(key[:, :, ::2], np.ascontiguousarray(value[..., ::-1])[:, :, ::2, ::-1])
    same(cache, np.concatenate([key, key[:, :, ::2]], 2), np.concatenate([value, value[:, :, ::2]], 2), [14] * B)


@KINDS
@pytest.mark.parametrize("queries", [1, 2, 3, 8, 40])
def test_attention_has_the_bits_of_float32(make: Make, isa: str, queries: int) -> None:
    rng = np.random.default_rng(3)
    cache = make()
    cache.append(tokens(rng, 600), tokens(rng, 600, DV), np.array([600, 77, 513]))
    query = rng.standard_normal((B, 4 * HK, queries, D), dtype=np.float32)
    other = twin(cache)
    mask = rng.random((queries, 600)) < 0.7
    blocks = rng.random((-(-queries // 64), 10)) < 0.6
    for threads in (1, 3):
        for options in ({}, {"is_causal": True, "window": (300, 0)}, {"attn_mask": mask}, {"block_mask": blocks}):
            found, expected = (
                mha.scaled_dot_product_attention(query, each, num_threads=threads, return_lse=True, **options)
                for each in (cache, other)
            )
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_array_equal(a, b)
            for stage in ("masked", "weights"):
                found, expected = (
                    mha.attention_weights(query, each, num_threads=threads, stage=stage, **options)
                    for each in (cache, other)
                )
                np.testing.assert_array_equal(found, expected)
        found, expected = (mha.attention_statistics(query, each, num_threads=threads) for each in (cache, other))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)


@KINDS
def test_tokens_are_moved_with_their_scales(make: Make) -> None:
    rng = np.random.default_rng(4)
    key, value = tokens(rng, 200), tokens(rng, 200, DV)
    cache = make()
    cache.append(key, value, np.array([200, 30, 129]))
    cache.reorder(np.array([1, 2, 0]))  # a circle
    order = [1, 2, 0]
    same(cache, key[order], value[order], [30, 129, 200])
    cache.reorder(np.array([2, 1, 2]))
    order = [0, 2, 0]
    same(cache, key[order], value[order], [200, 129, 200])
    cache.rollback(np.array([70, 1, 0]))
    same(cache, key[order], value[order], [130, 128, 200])
    cache.append(key[:, :, :2], value[:, :, :2])  # a page of two sequences is copied
    found = cache.keys
    np.testing.assert_array_equal(found[0, :, 130:132], numbers(key)[0, :, :2])
    np.testing.assert_array_equal(found[2, :, 198:202], numbers(np.concatenate([key[0, :, 198:], key[2, :, :2]], 1)))
    cache.keep_last(64)
    kept = cache.lengths
    for b, length in enumerate(kept):
        np.testing.assert_array_equal(cache.keys[b, :, length - 2 : length], numbers(key)[b, :, :2])
    cache.clear()
    assert not cache.keys.size


def test_forked_sequences_share_scales() -> None:
    rng = np.random.default_rng(5)
    key, value = tokens(rng, 100), tokens(rng, 100, DV)
    cache = paged()
    cache.append(key, value, np.array([100, 0, 0]))
    cache.fork(0, length=80)
    cache.append(key[:, :, :1], value[:, :, :1], np.array([0, 1, 0]))
    np.testing.assert_array_equal(cache.keys[1, :, :80], numbers(key)[0, :, :80])
    np.testing.assert_array_equal(cache.keys[1, :, 80], numbers(key)[1, :, 0])
    np.testing.assert_array_equal(cache.keys[0, :, :100], numbers(key)[0])


@KINDS
def test_states_and_pickles_keep_integers_and_scales(make: Make) -> None:
    rng = np.random.default_rng(6)
    cache, lengths = make(), np.array([70, 0, 9])
    cache.append(tokens(rng, 70), tokens(rng, 70, DV), lengths)
    state = cache.state_dict()
    assert set(state) == {"keys", "values", "key_scales", "value_scales", "lengths"}
    assert state["keys"].dtype == np.int8
    assert state["key_scales"].shape == (B, HK, 70)
    other = dense(capacity=70)
    other.load_state_dict(state)
    for each in (other, pickle.loads(pickle.dumps(cache))):
        assert each.dtype == np.int8
        for name, array in each.state_dict().items():
            np.testing.assert_array_equal(array, state[name])
    for name in ("key_scales", "value_scales"):
        with pytest.raises(TypeError, match=rf"KVCache.load_state_dict: {name} must be a NumPy array"):
            other.load_state_dict(state | {name: "scales"})
    del state["key_scales"]
    with pytest.raises(ValueError, match=r"state must hold keys, values, key_scales, value_scales and lengths; got"):
        other.load_state_dict(state)
    assert other.longest == 70


@KINDS
@pytest.mark.parametrize("qk_norm", [None, "rms"])
def test_layers_fill_and_read_it(make: Make, qk_norm: str | None) -> None:
    """As a float32 cache that holds, after each step, the numbers of the int8 one."""
    rng = np.random.default_rng(7)
    layer = mha.MultiHeadAttention(4 * D, 4, num_kv_heads=HK, value_head_dim=DV, seed=8, qk_norm=qk_norm)
    x = rng.standard_normal((B, 90, 4 * D), dtype=np.float32)
    cache, begin = make(), 0
    for count in (70, 1, 1, 18):
        step = x[:, begin : begin + count]
        plain = dense("float32")
        if begin:
            plain.append(cache.keys[:, :, :begin], cache.values[:, :, :begin])
        layer.append_to(plain, step)
        found = layer(step, cache=cache, is_causal=True)
        same_tokens = numbers(plain.keys[:, :, begin : begin + count])
        np.testing.assert_array_equal(cache.keys[:, :, begin : begin + count], same_tokens)
        expected = layer(step, cache=twin(cache), append=False, is_causal=True, query_offset=begin)
        np.testing.assert_array_equal(found, expected)
        begin += count


def test_what_it_does_not_go_with() -> None:
    rng = np.random.default_rng(9)
    cache = dense()
    key, value = tokens(rng, 4), tokens(rng, 4, DV)
    with pytest.raises(TypeError, match=r"KVCache\.append: key"):
        cache.append(key.astype(np.float64), value.astype(np.float64))
    with pytest.raises(
        TypeError, match=r"KVCache: dtype must be float32, float64, float16 or bfloat16 or int8; got int16"
    ):
        mha.KVCache(1, 1, 1, 1, dtype="int16")
    cache.append(key, value)
    query = rng.standard_normal((B, HK, 1, D))
    with pytest.raises(TypeError, match="query must be of float32 where the cache is of int8; got float64"):
        mha.scaled_dot_product_attention(query, cache)
    layer = mha.MultiHeadAttention(HK * D, HK, value_head_dim=DV, dtype="float64", seed=1)
    with pytest.raises(TypeError, match="cache must have the dtype of the layer, float64; got int8"):
        layer(rng.standard_normal((B, 1, HK * D)), cache=cache)
    assert cache.lengths.tolist() == [4] * B


def test_nbytes() -> None:
    assert dense(capacity=10).nbytes == B * 10 * HK * (D + DV + 8)
    assert paged().nbytes == 40 * 64 * HK * (D + DV + 8)
    assert dense("float32", 10).nbytes == B * 10 * HK * (D + DV) * 4

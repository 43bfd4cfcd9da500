"""Paged caches whose pages lie in any order, and hold NaN where no token was written."""

from __future__ import annotations

from typing import Any

import numpy as np

from mha_native import PagedKVCache

Array = np.ndarray[Any, np.dtype[Any]]


def poisoned(cache: PagedKVCache) -> PagedKVCache:
    """NaN in every row of every page, and no tokens."""
    grow(cache, 0, np.nan, cache.capacity)
    cache.clear()
    return cache


def scatter(cache: PagedKVCache, rng: np.random.Generator) -> PagedKVCache:
    """Lets sequences hold NaN in pages of their own, so that those that give theirs back leave gaps for the others."""
    for b in rng.permutation(np.repeat(np.arange(cache.batch_size), 2)):
        if cache.free_pages:
            grow(cache, b, np.nan, cache.page_size)
    return cache


def grow(cache: PagedKVCache, sequence: int, number: float, count: int) -> None:
    """Appends `count` tokens of one number to a sequence."""
    counts = np.zeros(cache.batch_size, int)
    counts[sequence] = count
    shape = (cache.batch_size, cache.num_kv_heads, count)
    dtype = np.float32 if cache.dtype == np.int8 else cache.dtype
    one = np.array(number, dtype)  # a view of one number: arrays of this size would take most of the time
    tokens = (np.broadcast_to(one, (*shape, n)) for n in (cache.head_dim, cache.value_head_dim))
    cache.append(*tokens, new_lengths=counts)


def over_pages(key: Array, value: Array, lengths: Array, page_size: int, rng: np.random.Generator) -> PagedKVCache:
    """The first lengths[b] tokens of `key` [B, Hk, T, D] and `value`, in pages that are scattered over the pool."""
    batch, heads, keys, width = key.shape
    pages = int(sum(-(-lengths // page_size))) + 2 * batch
    cache = PagedKVCache(
        pages,
        page_size,
        batch_size=batch,
        num_kv_heads=heads,
        head_dim=width,
        value_head_dim=value.shape[3],
        dtype=key.dtype,
    )
    scatter(poisoned(cache), rng)
    middle = int(rng.integers(keys + 1))
    for part in (slice(0, middle), slice(middle, keys)):
        for b in rng.permutation(batch):
            if part.start == 0:
                cache.release(int(b))
            counts = np.zeros(batch, int)
            counts[b] = np.clip(lengths[b] - part.start, 0, part.stop - part.start)
            cache.append(key[:, :, part], value[:, :, part], new_lengths=counts)
    assert cache._check()
    return cache

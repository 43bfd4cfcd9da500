"""Caches, and calls over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import mha_native as mha

from .entry import (
    BATCH,
    HEADS,
    KEYS,
    KV_HEADS,
    QUERIES,
    VALUE_WIDTH,
    WIDTH,
    Arguments,
    Generator,
    Made,
    entry,
    normal,
    some,
)

FORMS = ("KVCache", "PagedKVCache")


def cache_of(rng: Generator, form: str = "KVCache", dtype: Any = np.float32) -> mha.KVCache:
    """The first sequences have tokens, the last one has none."""
    sizes = {"batch_size": BATCH + 1, "num_kv_heads": KV_HEADS, "head_dim": WIDTH, "value_head_dim": VALUE_WIDTH}
    place: Arguments = {"capacity": KEYS + 4} if form == "KVCache" else {"num_pages": 8}
    cache: mha.KVCache = getattr(mha, form)(**sizes, **place, dtype=dtype)
    cache.append(*tokens(rng, 4, np.float32 if dtype == "int8" else dtype).values(), np.array([4, 3, 0]))
    return cache


def tokens(rng: Generator, count: int, dtype: Any = np.float32) -> Arguments:
    return {
        "key": normal(rng, BATCH + 1, KV_HEADS, count, WIDTH, dtype=dtype),
        "value": normal(rng, BATCH + 1, KV_HEADS, count, VALUE_WIDTH, dtype=dtype),
    }


def some_dtype(rng: Generator) -> Any:
    return "int8" if rng.random() < 0.3 else np.float32


@entry("KVCache")
def _cache(rng: Generator) -> Made:
    sizes = {"batch_size": BATCH, "num_kv_heads": KV_HEADS, "capacity": KEYS, "head_dim": WIDTH}
    return mha.KVCache, sizes | some(rng, {"value_head_dim": VALUE_WIDTH, "dtype": "float16"})


@entry("KVCache.over")
def _cache_in_arrays(rng: Generator) -> Made:
    shape = (BATCH, KV_HEADS, KEYS)
    arrays = {"keys": np.zeros((*shape, WIDTH), np.float32), "values": np.zeros((*shape, VALUE_WIDTH), np.float32)}
    return mha.KVCache.over, arrays | some(rng, {"lengths": np.array([KEYS, 0])[:BATCH]})


@entry("PagedKVCache")
def _paged_cache(rng: Generator) -> Made:
    sizes = {"num_pages": 5, "batch_size": BATCH, "num_kv_heads": KV_HEADS, "head_dim": WIDTH}
    more = {"page_size": 128, "value_head_dim": VALUE_WIDTH, "dtype": "int8"}
    return mha.PagedKVCache, sizes | some(rng, more)


def _name_of(form: str, method: str) -> str:
    """Messages of the methods that both caches share name KVCache."""
    is_own = form == "KVCache" or method in vars(mha.PagedKVCache)
    return f"{form}.{method}" if is_own else f"KVCache.{method} of pages"


def _method_of(form: str, method: str, arguments: Callable[[Generator], Arguments]) -> None:
    @entry(_name_of(form, method))
    def make(rng: Generator) -> Made:
        return getattr(cache_of(rng, form, some_dtype(rng)), method), arguments(rng)


for _form in FORMS:
    _method_of(_form, "append", lambda rng: tokens(rng, 3) | some(rng, {"new_lengths": np.array([1, 3, 0])}))
    _method_of(_form, "rollback", lambda rng: {"count": 0 if rng.random() < 0.5 else np.array([1, 3, 0])})
    _method_of(_form, "reorder", lambda _: {"index": np.array([1, 1, 2])})
    _method_of(_form, "keep_last", lambda _: {"count": 2})


def _loader_of(form: str) -> None:
    @entry(_name_of(form, "load_state_dict"))
    def make(rng: Generator) -> Made:
        dtype = some_dtype(rng)
        saved = cache_of(rng, form, dtype)
        if form == "PagedKVCache" and rng.random() < 0.5:
            saved.fork(0)  # type: ignore[attr-defined]
        return cache_of(rng, form, dtype).load_state_dict, {"state": saved.state_dict()}


for _form in FORMS:
    _loader_of(_form)
_method_of("PagedKVCache", "fork", lambda rng: {"sequence": 0} | some(rng, {"into": 2, "length": 3}))
_method_of("PagedKVCache", "release", lambda rng: {"sequence": 1 if rng.random() < 0.5 else np.array([1, 0])})


@entry("scaled_dot_product_attention over a cache")
def _attend_over_a_cache(rng: Generator) -> Made:
    arguments = {
        "query": normal(rng, BATCH + 1, HEADS, QUERIES, WIDTH),
        "key": cache_of(rng, FORMS[rng.integers(2)], some_dtype(rng)),
    }
    more = {"is_causal": True, "query_offset": np.array([1, 0, 2]), "window": (2, -1), "return_lse": True}
    return mha.scaled_dot_product_attention, arguments | some(rng, more | {"num_threads": 2})


@entry("MultiHeadAttention ragged over a cache")
def _attend_ragged(rng: Generator) -> Made:
    layer = mha.MultiHeadAttention(KV_HEADS * WIDTH, KV_HEADS, seed=0)
    pages: Arguments = {"num_pages": 6} if rng.random() < 0.5 else {}
    arguments = {
        "query": normal(rng, 5, KV_HEADS * WIDTH),
        "cache": layer.new_cache(3, 9, **pages),
        "cu_seqlens_q": np.array([0, 3, 5]),
        "sequences": np.array([2, 0]),
    }
    return layer, arguments | some(rng, {"is_causal": True, "num_threads": 2})

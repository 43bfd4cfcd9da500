"""Equivalent calls: a random call of attention, and changes of it that must leave every row of its result as it is.

A change takes a call and gives another: fewer queries, other sequences beside them, more keys that nobody sees, other
memory. It says with `rows` which row of the first call each of its own is. Changes follow one another in any order, so
one more is one function, and meets all others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import textbook
from element_types import accumulator_of
from scattered_pages import over_pages

from mha_native import KVCache, scaled_dot_product_attention, scaled_dot_product_attention_varlen

Array = np.ndarray[Any, np.dtype[Any]]
Generator = np.random.Generator
ALL = slice(None)

# Whole vectors on every instruction set, on some, and on none: with them the kernel for few rows computes, or does not.
WIDTHS = (64, 128, 144, 16, 32, 48, 8, 20, 40, 5, 1)
FEW_KEYS = (1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 80, 100, 127, 128, 129, 200, 0)
# Around the ends of spans; with as many keys, and wide ones, a call of few rows has work for several threads.
MANY_KEYS = (511, 512, 513, 529, 640, 1023, 1024, 1025, 1040, 1100, 1537)


@dataclass(frozen=True)
class Call:
    """A dense call. `attn_mask` has all four axes, slopes both, and offsets and lengths one entry for each sequence."""

    query: Array  # [B, H, Tq, D]
    key: Array  # [B, Hk, Tk, D]
    value: Array  # [B, Hk, Tk, Dv]
    options: dict[str, Any]
    rows: Array  # [B, H, Tq]: which row of the first call; -1: none of them
    num_threads: int = 1
    layout: Callable[[Array], Array] = np.ascontiguousarray  # of the result

    @property
    def group(self) -> int:
        return self.query.shape[1] // self.key.shape[1]

    @property
    def score_shape(self) -> tuple[int, ...]:
        return (*self.query.shape[:3], self.key.shape[2])

    def changed(self, **fields: Any) -> Call:
        return replace(self, **fields)

    def with_options(self, **options: Any) -> Call:
        merged = self.options | options
        return replace(self, options={name: value for name, value in merged.items() if value is not None})

    def part(self, batch: Any = ALL, heads: Any = ALL, kv_heads: Any = ALL, queries: slice = ALL) -> Call:
        """Some sequences, heads, and neighbouring queries."""
        options = dict(self.options)
        options["query_offset"] = options["query_offset"][batch] + (queries.start or 0)
        if "key_lengths" in options:
            options["key_lengths"] = options["key_lengths"][batch]
        if "attn_mask" in options:
            options["attn_mask"] = options["attn_mask"][batch][:, heads, queries]
        if "alibi_slopes" in options:
            options["alibi_slopes"] = options["alibi_slopes"][batch][:, heads]
        for name in ("position_bias", "sinks"):
            if name in options:
                options[name] = options[name][heads]
        return self.changed(
            query=self.query[batch][:, heads, queries],
            key=self.key[batch][:, kv_heads],
            value=self.value[batch][:, kv_heads],
            options=options,
            rows=self.rows[batch][:, heads, queries],
        )


def random_call(seed: int, dtype: Any) -> Call:
    """Any shape, and any mixture of options; every fourth has many keys."""
    rng = np.random.default_rng(seed)

    def chance(of: float = 0.35) -> bool:
        return bool(rng.random() < of)

    has_many_keys = seed % 4 == 0
    batch, kv_heads = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    heads = kv_heads * int(rng.choice([1, 1, 2, 3, 4, 8, 9]))
    keys = int(rng.choice(MANY_KEYS if has_many_keys else FEW_KEYS))
    queries = int(rng.choice([1, 2, 5, 9, 20] if has_many_keys else [1, 2, 3, 7, 16, 33, 65, 130]))
    width, value_width = (int(rng.choice(WIDTHS[:3] if has_many_keys else WIDTHS)) for _ in range(2))
    query = 10.0 ** rng.integers(-1, 3) * rng.standard_normal((batch, heads, queries, width))
    key = rng.standard_normal((batch, kv_heads, keys, width))
    value = rng.standard_normal((batch, kv_heads, keys, value_width))
    if chance(0.15):
        key[..., 0] = np.arange(keys)  # the running maximum moves at every block
        query[..., 0] = 0.1
    if chance(0.25):  # behind masks and before them, some where weights are 0
        value[rng.random(value.shape) < 0.003] = rng.choice([np.nan, np.inf])

    options: dict[str, Any] = {"query_offset": rng.integers(-20, keys + 20, batch)}
    if chance(0.5):
        options["query_offset"] = np.full(batch, keys - queries)
    if chance(0.5):
        options["is_causal"] = True
    if chance():
        options["key_lengths"] = rng.integers(keys // 2, keys + 1, batch)
    if chance():
        left, right = rng.integers(-1, max(keys, 2), 2)
        options["window"] = (int(left), int(right))
    if chance():
        options["scale"] = float(rng.choice([-0.7, 0.0, 0.3]))
    if chance():
        options["softcap"] = float(rng.choice([0.5, 3.0, 50.0]))
    if chance():
        slopes = rng.random((batch if chance(0.5) else 1, heads)) / 4
        options["alibi_slopes"] = np.tile(slopes, (batch // len(slopes), 1)).astype(accumulator_of(dtype))
        if chance():  # so far away that distances are rounded, and to more than the 16 keys where decode may begin
            options |= {"query_offset": options["query_offset"] + 2**30, "window": (2**30 + 15, -1)}
            options["alibi_slopes"] *= accumulator_of(dtype)(2**-18)
    if chance():
        sinks = 3 * rng.standard_normal(heads) + 3
        options["sinks"] = sinks.astype(accumulator_of(dtype) if chance(0.5) else dtype)
    if chance(0.5):
        axes = [1 if chance(0.5) else n for n in (batch, heads, queries)]
        mask = rng.standard_normal((*axes, keys)).astype(dtype)
        mask[rng.random(mask.shape) < rng.choice([0.05, 0.3, 0.995])] = -np.inf
        full = (batch, heads, queries, keys)
        options["attn_mask"] = np.broadcast_to(mask > -np.inf if chance(0.6) else mask, full)
    if chance():
        farthest = int(rng.choice([0, 1, 7, 40, 128, 600]))
        options["position_bias"] = rng.standard_normal((heads, 2 * farthest + 1)).astype(accumulator_of(dtype))
    rows = np.arange(batch * heads * queries).reshape(batch, heads, queries)
    return Call(query.astype(dtype), key.astype(dtype), value.astype(dtype), options, rows)


Change = Callable[[Call, Generator], Call]


def one_query(call: Call, rng: Generator) -> Call:
    return _queries(call, rng, 1)


def few_queries(call: Call, rng: Generator) -> Call:
    return _queries(call, rng, int(rng.integers(2, 10)))


def _queries(call: Call, rng: Generator, count: int) -> Call:
    first = int(rng.integers(max(1, call.query.shape[2] - count + 1)))
    return call.part(queries=slice(first, first + count))


def among_other_queries(call: Call, rng: Generator) -> Call:
    before, after = (int(n) for n in rng.integers(0, 40, 2))
    rows_axis = [(0, 0), (0, 0), (before, after)]
    call = call.with_options(query_offset=call.options["query_offset"] - before)
    if "attn_mask" in call.options:
        call = call.with_options(attn_mask=np.pad(call.options["attn_mask"], [*rows_axis, (0, 0)], "wrap"))
    query = np.pad(call.query, [*rows_axis, (0, 0)], constant_values=np.nan)
    return call.changed(query=query, rows=np.pad(call.rows, rows_axis, constant_values=-1))


def one_sequence(call: Call, rng: Generator) -> Call:
    return call.part(batch=rng.integers(len(call.query), size=1))


def other_batch(call: Call, rng: Generator) -> Call:
    size = 64 if call.query.size < 2000 and call.key.size < 20000 else int(rng.integers(2, 6))
    return call.part(batch=rng.integers(len(call.query), size=size))


def one_head(call: Call, rng: Generator) -> Call:
    head = int(rng.integers(call.query.shape[1]))
    kv_head = head // call.group
    return call.part(heads=slice(head, head + 1), kv_heads=slice(kv_head, kv_head + 1))


def other_heads(call: Call, rng: Generator) -> Call:
    kv_heads = rng.integers(call.key.shape[1], size=int(rng.integers(1, 4)))
    heads = (kv_heads[:, None] * call.group + np.arange(call.group)).ravel()
    return call.part(heads=heads, kv_heads=kv_heads)


def repeated_keys(call: Call, _: Generator) -> Call:
    """For each query head; a single head without a copy."""

    def repeated(x: Array) -> Array:
        if x.shape[1] == 1:
            return np.broadcast_to(x, (len(x), call.group, *x.shape[2:]))
        return np.repeat(x, call.group, 1)

    return call.changed(key=repeated(call.key), value=repeated(call.value))


def keys_behind_lengths(call: Call, rng: Generator) -> Call:
    lengths = call.options.get("key_lengths", np.full(len(call.key), call.key.shape[2]))
    return _padded(call, int(rng.integers(1, 700)), np.nan).with_options(key_lengths=lengths)


def keys_behind_a_mask(call: Call, rng: Generator) -> Call:
    if "attn_mask" not in call.options:
        call = masked_by_nothing(call, rng)
    return _padded(call, int(rng.integers(1, 700)), -np.inf)


def _padded(call: Call, count: int, entry: float) -> Call:
    """`count` more keys of NaN, with that entry in masks."""

    def padded(x: Array) -> Array:
        return np.pad(x, [(0, 0), (0, 0), (0, count), (0, 0)], constant_values=np.nan)

    if "attn_mask" in call.options:
        mask = call.options["attn_mask"]
        entry = entry if mask.dtype != bool else entry != -np.inf
        same_for_all = mask[:, :1, :1] if mask.strides[1:3] == (0, 0) else mask
        wide = np.pad(same_for_all, [(0, 0), (0, 0), (0, 0), (0, count)], constant_values=entry)
        call = call.with_options(attn_mask=np.broadcast_to(wide, (*mask.shape[:3], mask.shape[3] + count)))
    return call.changed(key=padded(call.key), value=padded(call.value))


def no_unseen_keys(call: Call, _: Generator) -> Call:
    """Keys behind the last one that any row sees are left out."""
    seen = textbook.visible(call.score_shape, call.options).any((0, 1, 2))
    last = int(seen.nonzero()[0].max(initial=-1)) + 1
    if "key_lengths" in call.options:
        call = call.with_options(key_lengths=np.minimum(call.options["key_lengths"], last))
    if "attn_mask" in call.options:
        call = call.with_options(attn_mask=call.options["attn_mask"][..., :last])
    return call.changed(key=call.key[:, :, :last], value=call.value[:, :, :last])


def nan_in_unseen_keys(call: Call, _: Generator) -> Call:
    batch, _, queries, keys = call.score_shape
    seen = textbook.visible(call.score_shape, call.options)
    seen = seen.reshape(batch, call.key.shape[1], call.group * queries, keys).any(2)[..., None]
    return call.changed(
        **{name: np.where(seen, x, x.dtype.type(np.nan)) for name, x in (("key", call.key), ("value", call.value))}
    )


def masked_by_nothing(call: Call, _: Generator) -> Call:
    if "attn_mask" in call.options:
        return call
    return call.with_options(attn_mask=np.broadcast_to(np.ones((1, 1, 1, call.key.shape[2]), bool), call.score_shape))


def bounds_as_a_mask(call: Call, _: Generator) -> Call:
    seen = textbook.visible(call.score_shape, call.options)
    mask = call.options.get("attn_mask", seen)
    mask = seen if mask.dtype == bool else np.where(seen, mask, -np.inf).astype(mask.dtype)
    return call.with_options(attn_mask=mask, is_causal=None, window=None, key_lengths=None)


def over_a_cache(call: Call, rng: Generator) -> Call:
    """Tokens come in two parts, to the wrong sequences; behind them there are NaN."""
    batch, kv_heads, keys, width = call.key.shape
    lengths = call.options.get("key_lengths", np.full(batch, keys))
    extra = int(rng.integers(1, 600))
    cache = KVCache(batch, kv_heads, keys + extra, width, call.value.shape[-1], call.key.dtype)
    brim = (np.full((batch, kv_heads, keys + extra, x.shape[-1]), np.nan, x.dtype) for x in (call.key, call.value))
    cache.append(*brim)
    cache.clear()
    order, middle = rng.permutation(batch), int(rng.integers(keys + 1))
    for part in (slice(0, middle), slice(middle, keys)):
        new = np.clip(lengths - part.start, 0, part.stop - part.start)[order]
        cache.append(call.key[order][:, :, part], call.value[order][:, :, part], new)
    cache.reorder(np.argsort(order))
    call = _padded(call, extra, np.nan)
    return call.changed(key=cache.keys, value=cache.values).with_options(key_lengths=cache.lengths)


LAYOUTS: tuple[Callable[[Array], Array], ...] = (
    np.asfortranarray,
    lambda x: np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2),
    lambda x: np.ascontiguousarray(x[::-1, ::-1, ::-1])[::-1, ::-1, ::-1],
    lambda x: np.ascontiguousarray(x[..., ::-1])[..., ::-1],
    lambda x: np.repeat(x, 3, axis=-1)[..., 1::3],
    lambda x: np.pad(x, [(1, 2), (2, 1), (1, 2), (3, 0)])[1:-2, 2:-1, 1:-2, 3:],
)


def _layout(rng: Generator) -> Callable[[Array], Array]:
    return LAYOUTS[rng.integers(len(LAYOUTS))]


def queries_in_other_memory(call: Call, rng: Generator) -> Call:
    return call.changed(query=_layout(rng)(call.query))


def keys_in_other_memory(call: Call, rng: Generator) -> Call:
    return call.changed(key=_layout(rng)(call.key), value=_layout(rng)(call.value))


def result_in_other_memory(call: Call, rng: Generator) -> Call:
    return call.changed(layout=_layout(rng))


def mask_in_other_memory(call: Call, rng: Generator) -> Call:
    mask = call.options.get("attn_mask")
    return call if mask is None else call.with_options(attn_mask=_layout(rng)(mask))


CHANGES: tuple[Change, ...] = (
    one_query,
    few_queries,
    among_other_queries,
    one_sequence,
    other_batch,
    one_head,
    other_heads,
    repeated_keys,
    keys_behind_lengths,
    keys_behind_a_mask,
    no_unseen_keys,
    nan_in_unseen_keys,
    masked_by_nothing,
    bounds_as_a_mask,
    over_a_cache,
    queries_in_other_memory,
    keys_in_other_memory,
    result_in_other_memory,
    mask_in_other_memory,
)


def attend(call: Call) -> tuple[Array, Array, Array]:
    """Rows, out and lse of the dense call, written over NaN."""
    out = call.layout(np.full((*call.query.shape[:3], call.value.shape[3]), np.nan, call.query.dtype))
    result, lse = scaled_dot_product_attention(
        call.query, call.key, call.value, **call.options, return_lse=True, out=out, num_threads=call.num_threads
    )
    assert result is out
    return call.rows, out, lse


def attend_ragged(call: Call, rng: Generator) -> tuple[Array, Array, Array]:
    """The same of some queries of each sequence, one after another; keys that do not exist are left out, or hidden."""
    batch, heads, queries, keys = call.score_shape
    options = dict(call.options)
    firsts, counts = rng.integers(queries + 1, size=batch), rng.choice([1, 2, queries], batch)
    some = [slice(first, min(first + count, queries)) for first, count in zip(firsts, counts, strict=True)]
    exist = options.pop("key_lengths", np.full(batch, keys))
    lengths = exist
    if rng.random() < 0.5:
        lengths = np.full(batch, keys)
        if rng.random() < 0.5:
            options["key_lengths"] = exist
        else:
            options["key_mask"] = (np.arange(keys) < exist[:, None]).ravel()
    options["query_offset"] = options["query_offset"] + firsts
    if "attn_mask" in options:
        mask = [options["attn_mask"][b, :, q, : lengths.max()] for b, q in enumerate(some)]
        options["attn_mask"] = np.concatenate(mask, 1)
    query = np.concatenate([call.query[b, :, q] for b, q in enumerate(some)], 1).swapaxes(0, 1)
    key, value = (
        np.concatenate([x[b, :, :length] for b, length in enumerate(lengths)], 1).swapaxes(0, 1)
        for x in (call.key, call.value)
    )
    cu_q = np.cumsum([0, *(q.stop - q.start for q in some)])
    out = np.full((len(query), heads, value.shape[2]), np.nan, query.dtype)
    _, lse = scaled_dot_product_attention_varlen(
        query,
        key,
        value,
        cu_q,
        np.cumsum([0, *lengths]),
        **options,
        return_lse=True,
        out=out,
        num_threads=call.num_threads,
    )
    rows = np.concatenate([call.rows[b, :, q] for b, q in enumerate(some)], 1)
    return rows, out.swapaxes(0, 1), lse.swapaxes(0, 1)


def attend_over_pages(call: Call, rng: Generator) -> tuple[Array, Array, Array]:
    """The same over a cache whose pages are scattered; keys that do not exist are not in it."""
    options = dict(call.options)
    lengths = options.pop("key_lengths", np.full(len(call.key), call.key.shape[2]))
    cache = over_pages(call.key, call.value, lengths, int(rng.choice([64, 128, 192])), rng)
    if "attn_mask" in options:
        options["attn_mask"] = options["attn_mask"][..., : cache.longest]
    out, lse = scaled_dot_product_attention(call.query, cache, **options, return_lse=True, num_threads=call.num_threads)
    return call.rows, out, lse

"""Decode over pages that sequences share: every row has the bits of a call of its sequence alone."""

from typing import Any

import numpy as np
import pytest
from element_types import accumulator_of
from matrix import ALL, matrix
from tolerance import assert_same_bits

import mha_native as mha

Array = np.ndarray[Any, np.dtype[Any]]
PREFIX = 1200  # two spans of 512 keys, and a part of a third

# For each sequence, which one it begins as, with how many tokens of it, and how many come behind.
FAMILIES = {
    "one prefix": [(0, PREFIX, count) for count in (1, 7, 100, 3, 1, 64, 900, 2, 5)],
    "many": [(0, PREFIX, count) for count in range(1, 20)],
    "two prefixes": [
        (0, PREFIX, 3),
        (1, PREFIX, 9),
        (0, 1024, 30),
        (1, 600, 1),
        (0, 512, 700),
        (1, PREFIX, 65),
        (0, 511, 8),
    ],
    "a tree": [(0, PREFIX, 400), (2, 1500, 80), (2, 1550, 1), (3, 1570, 10), (0, 0, 5), (0, 1100, 0)],
}


def cache_of(family: str, heads: int, width: int, dtype: Any) -> mha.PagedKVCache:
    """Sequences 0 and 1 are prefixes; the others follow."""
    rng = np.random.default_rng(len(family))
    members = FAMILIES[family]
    cache = mha.PagedKVCache(150, 64, batch_size=2 + len(members), num_kv_heads=heads, head_dim=width, dtype=dtype)

    def append(sequence: int, count: int) -> None:
        lengths = np.zeros(2 + len(members), np.int64)
        lengths[sequence] = count
        rows = rng.standard_normal((2, 1, heads, count, width)).astype(dtype)
        cache.append(*np.broadcast_to(rows, (2, len(lengths), heads, count, width)), new_lengths=lengths)

    append(0, PREFIX)
    append(1, PREFIX)
    for i, (source, length, count) in enumerate(members, 2):
        if length:
            cache.fork(source, into=i, length=length)
        append(i, count)
    return cache


def options_of(
    rng: np.random.Generator, heads: int, sequences: int, queries: int, keys: int, dtype: Any
) -> dict[str, Any]:
    scores = accumulator_of(dtype)
    mask = rng.standard_normal((sequences, heads, queries, keys)).astype(dtype)
    mask[rng.random(mask.shape) < 0.1] = -np.inf
    every: dict[str, Any] = {
        "attn_mask": mask,
        "is_causal": True,
        "window": (700, -1),
        "softcap": 3.0,
        "alibi_slopes": (rng.random(heads) / 50).astype(scores),
        "position_bias": rng.standard_normal((heads, 81)).astype(scores),
        "sinks": rng.standard_normal(heads).astype(scores),
    }
    return {name: value for name, value in every.items() if rng.random() < 0.4}


def _of_one_sequence(query: Array, key: Array, value: Array, options: dict[str, Any], b: int) -> tuple[Array, Array]:
    """Out and lse of sequence `b` [heads, length, width] by itself, whose last query is at its last key."""
    if "attn_mask" in options:
        options = options | {"attn_mask": options["attn_mask"][b, :, :, : key.shape[1]]}
    return mha.scaled_dot_product_attention(
        query, key, value, query_offset=key.shape[1] - query.shape[1], return_lse=True, **options
    )


@pytest.mark.parametrize("family", FAMILIES)
@matrix(dtype=ALL)
def test_has_the_bits_of_each_sequence_alone(isa: str, dtype: Any, family: str) -> None:
    for seed, (kv_heads, group, queries, width) in enumerate(
        [(2, 1, 1, 64), (1, 2, 1, 32), (2, 1, 3, 64), (1, 4, 1, 16), (3, 3, 1, 64), (1, 8, 1, 32)]
    ):
        rng = np.random.default_rng(seed)
        cache = cache_of(family, kv_heads, width, dtype)
        sequences, heads = len(cache.lengths), kv_heads * group
        query = rng.standard_normal((sequences, heads, queries, width)).astype(dtype)
        keys, values = cache.keys, cache.values
        for _ in range(3):
            options = options_of(rng, heads, sequences, queries, keys.shape[2], dtype)
            alone = [
                _of_one_sequence(query[b], keys[b, :, :length], values[b, :, :length], options, b)
                for b, length in enumerate(cache.lengths)
            ]
            for threads in (1, 2, 3):
                out = np.full(query.shape, np.nan, dtype)
                _, lse = mha.scaled_dot_product_attention(
                    query, cache, return_lse=True, out=out, num_threads=threads, **options
                )
                for b, (its_out, its_lse) in enumerate(alone):
                    label = f"{family}, {kv_heads} x {group} heads, {queries} queries, {options.keys()}, sequence {b}"
                    assert_same_bits(out[b], its_out, label=label)
                    assert_same_bits(lse[b], its_lse, label=label)


@pytest.mark.parametrize("options", [{"is_causal": True}, {"window": (600, -1)}, {"window": (-1, 0)}])
def test_rows_that_see_parts_of_a_shared_span(isa: str, options: dict[str, Any]) -> None:
    """Sequences that end with a span, whose first queries see less of it than the last one, beside others."""
    rng = np.random.default_rng(0)
    cache = mha.PagedKVCache(60, 64, batch_size=12, num_kv_heads=1, head_dim=32)
    key, value = rng.standard_normal((2, 12, 1, 1024, 32), dtype=np.float32)
    cache.append(key, value, new_lengths=np.array([1024] + 11 * [0]))
    for _ in range(11):
        cache.fork(0)
    more = np.array([0, 0, 9, 70, 0, 0, 200, 0, 1, 0, 0, 0])
    cache.append(key[:, :, :200], value[:, :, :200], new_lengths=more)
    query = rng.standard_normal((12, 1, 5, 32), dtype=np.float32)
    for rows in (2, 3, 5):
        out = mha.scaled_dot_product_attention(query[:, :, :rows], cache, num_threads=1, **options)
        for b, length in enumerate(cache.lengths):
            keys, values = cache.keys[b, :, :length], cache.values[b, :, :length]
            offset = int(length) - rows
            alone = mha.scaled_dot_product_attention(query[b, :, :rows], keys, values, query_offset=offset, **options)
            assert_same_bits(out[b], alone, label=f"{rows} queries, sequence {b}")


def test_values_behind_overflow_are_mended_alike(isa: str) -> None:
    cache = mha.PagedKVCache(40, 64, batch_size=3, num_kv_heads=1, head_dim=32)
    key, value = np.zeros((2, 3, 1, PREFIX, 32), np.float32)
    value[:] = 3e38
    cache.append(key, value, new_lengths=np.array([PREFIX, 0, 0]))
    cache.fork(0)
    cache.fork(0)
    out = mha.scaled_dot_product_attention(np.zeros((3, 2, 1, 32), np.float32), cache)
    np.testing.assert_allclose(out, np.float32(3e38), rtol=1e-6)


def test_layers_read_shared_pages(isa: str) -> None:
    layer = mha.MultiHeadAttention(96, 6, num_kv_heads=3, seed=0)
    rng = np.random.default_rng(0)
    prompt = rng.standard_normal((1, PREFIX, 96), dtype=np.float32)
    cache = layer.new_cache(6, 1280, num_pages=60)
    x = np.zeros((6, PREFIX, 96), np.float32)
    x[0] = prompt
    layer(x, cache=cache, is_causal=True, new_lengths=np.array([PREFIX, 0, 0, 0, 0, 0]))
    for i in range(1, 6):
        cache.fork(0, into=i, length=PREFIX - 10 * i)
    steps = rng.standard_normal((6, 1, 96), dtype=np.float32)
    out = layer(steps, cache=cache, is_causal=True)
    some = layer(
        steps[[4, 1, 5], 0], cu_seqlens_q=np.arange(4), cache=cache, sequences=np.array([4, 1, 5]), is_causal=True
    )
    for i in range(6):
        alone = layer.new_cache(batch_size=1, capacity=PREFIX + 2)
        layer(prompt[:, : PREFIX - 10 * i], cache=alone, is_causal=True)
        np.testing.assert_array_equal(out[i], layer(steps[i : i + 1], cache=alone, is_causal=True)[0])
        if i in (4, 1, 5):
            second = layer(steps[i : i + 1], cache=alone, is_causal=True)[0]
            np.testing.assert_array_equal(some[[4, 1, 5].index(i)], second[0])

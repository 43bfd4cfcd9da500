"""`key_mask`: bit for bit an `attn_mask` that hides the same keys from every query; what it hides never counts."""

from typing import Any

import mask_blocks
import numpy as np
import pytest
from equivalent_calls import random_call
from matrix import ALL, matrix, nightly
from tolerance import assert_same_numbers

import mha_native as mha
from mha_native import reference

Array = np.ndarray[Any, np.dtype[Any]]
Generator = np.random.Generator

BATCH, HEADS, KV_HEADS, KEYS, WIDTH = 3, 4, 2, 150, 16


def random_mask(rng: Generator, batch: int, keys: int) -> Array:
    """[B, Tk], [1, Tk], [Tk] or [B, 1]; of many keys or few, or of a run of them, as padding has it."""
    shape = [(batch, keys), (1, keys), (keys,), (batch, 1)][rng.choice(4, p=[0.6, 0.15, 0.15, 0.1])]
    if rng.random() < 0.4:  # padding in front and behind
        first, last = np.sort(rng.integers(0, keys + 1, (2, *shape[:-1], 1)), axis=0)
        return np.broadcast_to((np.arange(keys) >= first) & (np.arange(keys) < last), (*shape[:-1], keys))
    return rng.random(shape) < rng.choice([0.0, 0.1, 0.6, 1.0], p=[0.1, 0.3, 0.5, 0.1])


@matrix(dtype=ALL, seeds=nightly([range(s, s + 20) for s in range(0, 80, 20)], quick=[range(20)]))
def test_has_the_bits_of_an_attn_mask(isa: str, dtype: Any, seeds: range) -> None:
    for seed in seeds:
        call = random_call(seed, dtype)
        batch, _, _, keys = call.score_shape
        mask = random_mask(np.random.default_rng(seed + 11), batch, keys)
        dense = np.broadcast_to(mask, (batch, keys))[:, None, None]
        mask_blocks.assert_bits_of_a_dense_mask(call, dense, f"seed {seed}", key_mask=mask)


@pytest.mark.parametrize("queries", [1, 3, 70])
@pytest.mark.parametrize("kind", ["dense", "pages", "int8", "int8 pages"])
def test_over_caches(isa: str, kind: str, queries: int) -> None:
    rng = np.random.default_rng(queries)
    dtype = "int8" if "int8" in kind else "float32"
    cache: Any = (
        mha.PagedKVCache(12, batch_size=BATCH, num_kv_heads=KV_HEADS, head_dim=WIDTH, dtype=dtype)
        if "pages" in kind
        else mha.KVCache(BATCH, KV_HEADS, KEYS, WIDTH, dtype=dtype)
    )
    cache.append(*rng.standard_normal((2, BATCH, KV_HEADS, KEYS, WIDTH), dtype=np.float32), np.array([KEYS, 80, 131]))
    query = rng.standard_normal((BATCH, HEADS, queries, WIDTH), dtype=np.float32)
    padding = np.arange(KEYS) >= np.array([[0], [17], [70]])
    bias = rng.standard_normal((HEADS, queries, KEYS), dtype=np.float32)
    for attn_mask in (None, bias, bias > -1):
        same = mask_blocks.with_dense(attn_mask, padding[:, None, None])
        options: dict[str, Any] = {"is_causal": True, "return_lse": True}
        found = mha.scaled_dot_product_attention(query, cache, attn_mask=attn_mask, key_mask=padding, **options)
        expected = mha.scaled_dot_product_attention(query, cache, attn_mask=same, **options)
        for actual, other in zip(found, expected, strict=True):
            assert_same_numbers(actual, other)


def test_the_reference_hides_the_same_keys(isa: str) -> None:
    rng = np.random.default_rng(5)
    query, key, value = (rng.standard_normal((BATCH, HEADS, n, WIDTH)) for n in (30, KEYS, KEYS))
    mask = rng.random((BATCH, KEYS)) < 0.6
    mask[1] = False  # no query of this batch element sees a key
    bias = rng.standard_normal((HEADS, 30, KEYS))
    options: dict[str, Any] = {"key_mask": mask, "attn_mask": bias, "window": (90, 200)}
    out, lse = mha.scaled_dot_product_attention(query, key, value, return_lse=True, **options)
    expected = reference.scaled_dot_product_attention(query, key, value, return_lse=True, **options)
    np.testing.assert_allclose(out, expected[0], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(lse, expected[1], rtol=1e-12)
    assert not out[1].any()
    assert (mha.attention_weights(query, key, **options) > 0).any((1, 2))[[0, 2]].tolist() == mask[[0, 2]].tolist()


def test_any_strides(isa: str) -> None:
    rng = np.random.default_rng(6)
    x = rng.standard_normal((BATCH, HEADS, KEYS, WIDTH), dtype=np.float32)
    mask = rng.random((BATCH, KEYS)) < 0.6
    expected = mha.scaled_dot_product_attention(x, x, x, key_mask=mask)
    wide = np.zeros((BATCH, 2 * KEYS), bool)
    wide[:, ::2] = mask
    backwards = np.ascontiguousarray(mask[:, ::-1])[:, ::-1]
    for view in (wide[:, ::2], np.asfortranarray(mask), backwards):
        assert_same_numbers(mha.scaled_dot_product_attention(x, x, x, key_mask=view), expected)


@pytest.mark.parametrize("function", ["scaled_dot_product_attention", "attention_weights", "attention_statistics"])
@pytest.mark.parametrize(
    ("mask", "error", "words"),
    [
        (np.ones((2, 7)), TypeError, "key_mask must be bool; got query float32, key float32"),
        (np.ones((2, 7), np.int32), TypeError, "key_mask"),
        (np.ones((2, 6), bool), ValueError, "key_mask must broadcast to [B, Tk] = [2, 7]; got key_mask [2, 6]"),
        (np.ones((3, 7), bool), ValueError, "key_mask must broadcast to [B, Tk] = [2, 7]; got key_mask [3, 7]"),
        (np.ones((2, 1, 7), bool), ValueError, "key_mask must broadcast to [B, Tk] = [2, 7]; got key_mask [2, 1, 7]"),
        ("padding", TypeError, "key_mask"),
    ],
)
def test_what_is_no_key_mask(function: str, mask: Any, error: type[Exception], words: str) -> None:
    query, key = np.zeros((2, 4, 5, 8), np.float32), np.zeros((2, 2, 7, 8), np.float32)
    arrays = [query, key, key] if function == "scaled_dot_product_attention" else [query, key]
    with pytest.raises(error) as raised:
        getattr(mha, function)(*arrays, key_mask=mask)
    assert str(raised.value).startswith(f"{function}: "), raised.value
    assert words in str(raised.value)


def test_the_result_must_not_overlap_it() -> None:
    x, out = np.zeros((2, 64, 64), np.float32), np.zeros((2, 64, 64), np.float32)
    with pytest.raises(ValueError, match="overlap key_mask"):
        mha.scaled_dot_product_attention(x, x, x, key_mask=out.view(bool)[0, :1, :64], out=out)


@matrix(dtype=ALL)
@pytest.mark.parametrize(("starts", "keys"), [((0, 64, 192, 448), 500), ((0, 512, 1024, 1536), 1600)])
@pytest.mark.parametrize("queries", [1, 40])
def test_padding_in_front_has_the_bits_of_a_call_without_it(
    isa: str, dtype: Any, starts: tuple[int, ...], keys: int, queries: int
) -> None:
    # Blocks have 64 keys and spans 512, both counted from the first: so many may be cut off, and positions go on.
    rng = np.random.default_rng(keys + queries)
    key, value = (rng.standard_normal((len(starts), KV_HEADS, keys, WIDTH)).astype(dtype) for _ in range(2))
    query = rng.standard_normal((len(starts), HEADS, queries, WIDTH)).astype(dtype)
    for b, start in enumerate(starts):
        key[b, :, :start] = value[b, :, :start] = np.nan
    takes_part = np.arange(keys) >= np.array(starts)[:, None]
    options: dict[str, Any] = {"is_causal": True, "window": (700, 0), "return_lse": True}
    for threads in (1, 2, 3):
        out, lse = mha.scaled_dot_product_attention(
            query, key, value, key_mask=takes_part, query_offset=keys - queries, num_threads=threads, **options
        )
        for b, start in enumerate(starts):
            alone = mha.scaled_dot_product_attention(
                query[b], key[b, :, start:], value[b, :, start:], query_offset=keys - queries - start, **options
            )
            for actual, other in zip((out[b], lse[b]), alone, strict=True):
                assert_same_numbers(actual, other, label=f"padding of {start}, {threads} threads")

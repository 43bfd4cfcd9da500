"""`block_mask`: bit for bit the dense mask that hides the same blocks; nothing hidden is read."""

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


def random_blocks(rng: Generator, shape: tuple[int, ...]) -> Array:
    """Of scores of `shape` [B, H, Tq, Tk]."""
    batch, heads, queries, keys = shape
    sizes = [1 if rng.random() < 0.5 else n for n in (batch, heads)]
    while len(sizes) > 0 and sizes[0] == 1 and rng.random() < 0.5:
        sizes.pop(0)  # missing leading axes
    return rng.random((*sizes, -(-queries // 64), -(-keys // 64))) < rng.choice(
        [0.0, 0.2, 0.6, 1.0], p=[0.1, 0.4, 0.4, 0.1]
    )


@matrix(dtype=ALL, seeds=nightly([range(s, s + 20) for s in range(0, 80, 20)], quick=[range(20)]))
def test_has_the_bits_of_a_dense_mask(isa: str, dtype: Any, seeds: range) -> None:
    for seed in seeds:
        call = random_call(seed, dtype)
        blocks = random_blocks(np.random.default_rng(seed + 7), call.score_shape)
        dense = mask_blocks.expanded(blocks, call.score_shape)
        mask_blocks.assert_bits_of_a_dense_mask(call, dense, f"seed {seed}", block_mask=blocks)


@matrix(dtype=(np.float32, np.float16))
def test_ragged_sequences_count_blocks_from_their_own_first_row(isa: str, dtype: Any) -> None:
    rng = np.random.default_rng(3)
    lengths_q, lengths_k = [1, 70, 0, 200, 64], [130, 70, 9, 640, 0]
    cu_q, cu_k = (np.concatenate([[0], np.cumsum(lengths)]) for lengths in (lengths_q, lengths_k))
    query = rng.standard_normal((cu_q[-1], 4, 32)).astype(dtype)
    key, value = (rng.standard_normal((cu_k[-1], 2, 32)).astype(dtype) for _ in range(2))
    for shape in ((5, 4, 4, 10), (1, 4, 4, 10), (5, 1, 4, 10), (4, 10)):
        blocks = rng.random(shape) < 0.5
        out = mha.scaled_dot_product_attention_varlen(
            query, key, value, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, block_mask=blocks, is_causal=True, query_offset=50
        )
        every = blocks.reshape((1,) * (4 - blocks.ndim) + blocks.shape)
        for b, (q, k) in enumerate(zip(lengths_q, lengths_k, strict=True)):
            rows, keys = slice(*cu_q[b : b + 2]), slice(*cu_k[b : b + 2])
            alone = mha.scaled_dot_product_attention(
                *(x.swapaxes(0, 1) for x in (query[rows], key[keys], value[keys])),
                block_mask=every[b if len(every) > 1 else 0, :, : -(-q // 64), : -(-k // 64)],
                is_causal=True,
                query_offset=50,
            )
            assert_same_numbers(out[rows], alone.swapaxes(0, 1))


def test_the_reference_hides_the_same_keys(isa: str) -> None:
    rng = np.random.default_rng(5)
    query, key, value = (rng.standard_normal((2, 3, n, 16)) for n in (130, 200, 200))
    blocks = rng.random((2, 3, 3, 4)) < 0.5
    blocks[1, 2, 1] = False  # rows that see no key
    out, lse = mha.scaled_dot_product_attention(query, key, value, block_mask=blocks, return_lse=True, window=(90, 40))
    expected = reference.scaled_dot_product_attention(
        query, key, value, block_mask=blocks, return_lse=True, window=(90, 40)
    )
    np.testing.assert_allclose(out, expected[0], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(lse, expected[1], rtol=1e-12)
    assert not out[1, 2, 64:128].any()


def test_layers_take_it_over_caches(isa: str) -> None:
    layer = mha.MultiHeadAttention(64, 4, num_kv_heads=2, seed=0)
    x = np.random.default_rng(0).standard_normal((2, 150, 64), dtype=np.float32)
    cache = layer.new_cache(batch_size=2, capacity=300)
    layer(x[:, :100], cache=cache, is_causal=True)
    blocks = np.array([[True, False, True]])
    step = layer(x[:, 100:], cache=cache, is_causal=True, block_mask=blocks)
    dense = np.ones((50, 150), bool)
    dense[:, 64:128] = False
    same = layer.new_cache(batch_size=2, capacity=300)
    layer(x[:, :100], cache=same, is_causal=True)
    assert_same_numbers(step, layer(x[:, 100:], cache=same, is_causal=True, attn_mask=dense))


def test_a_layer_with_keys_of_its_own_shows_them_to_all(isa: str) -> None:
    layer = mha.MultiHeadAttention(64, 4, add_bias_kv=True, seed=0)
    x = np.random.default_rng(0).standard_normal((1, 128, 64), dtype=np.float32)
    out = layer(x, block_mask=np.array([[True, False], [False, False]]))
    mask = np.zeros((128, 128), bool)
    mask[:64, :64] = True
    assert_same_numbers(out, layer(x, attn_mask=mask))


@pytest.mark.parametrize(
    ("blocks", "error", "words"),
    [
        (np.ones((2, 3)), TypeError, ["block_mask", "bool"]),
        (np.ones((3, 3), bool), ValueError, ["block_mask", "[1, 2, 2, 3]", "[3, 3]"]),
        (np.ones((1, 3), bool), ValueError, ["block_mask", "[1, 2, 2, 3]", "[1, 3]"]),
        (np.ones((2, 1), bool), ValueError, ["block_mask", "[2, 1]"]),
        (np.ones((3, 2, 2, 3), bool), ValueError, ["block_mask", "[3, 2, 2, 3]"]),
        (np.ones((1, 1, 1, 2, 3), bool), ValueError, ["block_mask"]),
        ("all", TypeError, ["block_mask"]),
    ],
)
def test_what_is_no_block_mask(blocks: Any, error: type[Exception], words: list[str]) -> None:
    query, key = np.zeros((2, 100, 8), np.float32), np.zeros((2, 130, 8), np.float32)
    with pytest.raises(error) as raised:
        mha.scaled_dot_product_attention(query, key, key, block_mask=blocks)
    assert all(word in str(raised.value) for word in words), raised.value


def test_the_result_must_not_overlap_it() -> None:
    x, out = np.zeros((2, 64, 64), np.float32), np.zeros((2, 64, 64), np.float32)
    with pytest.raises(ValueError, match="overlap block_mask"):
        mha.scaled_dot_product_attention(x, x, x, block_mask=out.view(bool)[0, :1, :1], out=out)

"""The layer over ragged batches: every sequence has the bits that it has by itself."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import tolerance
from element_types import accumulator_of
from matrix import ALL, matrix, nightly
from ragged import LENGTHS, Array
from random_layers import FEW_LAYERS, LAYERS, SELF_LAYERS, attention_layer
from tolerance import assert_close, assert_same_bits

from mha_native import MultiHeadAttention

pytestmark = matrix(dtype=ALL)


def _offsets(lengths: Any) -> Array:
    return np.concatenate([[0], np.cumsum(lengths)])


def _inputs(layer: MultiHeadAttention, queries: int, keys: int, rng: np.random.Generator) -> tuple[Array, ...]:
    shapes = ((queries, layer.embed_dim), (keys, layer.kdim), (keys, layer.vdim))
    return tuple(rng.standard_normal(shape).astype(layer.dtype) for shape in shapes)


@matrix(name=nightly(LAYERS, quick=FEW_LAYERS))
@matrix(masked=nightly([False, True], quick=[True]))
def test_a_sequence_by_itself(name: str, masked: bool, isa: str, dtype: Any, rng: np.random.Generator) -> None:
    layer = attention_layer(name, dtype)
    for _ in range(3):
        size = int(rng.integers(1, 7))
        lengths_q, lengths_k = rng.choice(LENGTHS, (2, size))
        cu_q, cu_k = _offsets(lengths_q), _offsets(lengths_k)
        query, key, value = _inputs(layer, cu_q[-1], cu_k[-1], rng)
        mask = rng.standard_normal((layer.num_heads, cu_q[-1], lengths_k.max())).astype(dtype)
        mask[rng.random(mask.shape) < 0.3] = -np.inf
        key_mask = rng.random(cu_k[-1]) < 0.7
        scores = {
            "window": (30, 5),
            "softcap": 3.0,
            "alibi_slopes": rng.random((size, layer.num_heads)).astype(accumulator_of(dtype)),
            "position_bias": rng.standard_normal((layer.num_heads, 13)).astype(accumulator_of(dtype)),
            "sinks": rng.standard_normal(layer.num_heads).astype(accumulator_of(dtype)),
        }
        offsets = rng.integers(-5, 40, size)
        options = {}
        if masked:
            options = {"attn_mask": mask, "key_mask": key_mask, "is_causal": True, "query_offset": offsets, **scores}
        for threads in (1, 2, 3):
            buffer = np.full((cu_q[-1], layer.out_dim), np.nan, dtype)
            out = layer(
                query, key, value, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, out=buffer, num_threads=threads, **options
            )
            assert out is buffer
            for b in range(size):
                q, k = slice(*cu_q[b : b + 2]), slice(*cu_k[b : b + 2])
                mine = {}
                if masked:
                    mine = {
                        "attn_mask": mask[:, q, : lengths_k[b]],
                        "key_mask": key_mask[k],
                        "query_offset": offsets[b],
                        "alibi_slopes": scores["alibi_slopes"][b],
                    }
                alone = layer(query[q], key[k], value[k], **{**options, **mine})
                assert_same_bits(out[q], alone, label=f"{threads} threads, sequence {b} of {lengths_q}, {lengths_k}")


@matrix(name=nightly(SELF_LAYERS, quick=FEW_LAYERS))
def test_self_attention(name: str, isa: str, dtype: Any, rng: np.random.Generator) -> None:
    layer = attention_layer(name, dtype)
    cu = _offsets([12, 1, 70, 33])
    x = _inputs(layer, cu[-1], 0, rng)[0]
    out = layer(x, cu_seqlens_q=cu, is_causal=True)
    for first, last in pairwise(cu):
        one = x[first:last]
        expected = tolerance.layer(layer, one, one, one, {"is_causal": True})
        assert_close(out[first:last], expected.out, expected.out_bound, label=f"rows {first} to {last}")
    assert_same_bits(layer(x, x, x.copy(), cu_seqlens_q=cu, cu_seqlens_k=cu.astype(np.int32), is_causal=True), out)


def test_views_of_memory(isa: str, dtype: Any, rng: np.random.Generator) -> None:
    layer, cu = attention_layer("everything", dtype), _offsets([5, 40, 17])
    inputs = _inputs(layer, 62, 62, rng)
    expected = layer(*inputs, cu_seqlens_q=cu)
    for view in (
        lambda x: np.asfortranarray(x),
        lambda x: np.repeat(x, 2, axis=1)[:, ::2],
        lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
    ):
        views = [view(x) for x in inputs]
        for x in views:
            x.flags.writeable = False
        out = view(np.full_like(expected, np.nan))
        assert layer(*views, cu_seqlens_q=cu, out=out) is out
        assert_same_bits(out.copy(), expected)


def test_hidden_keys_are_not_read(isa: str, dtype: Any, rng: np.random.Generator) -> None:
    layer, cu = attention_layer("grouped", dtype), _offsets([30, 50, 5])
    x = _inputs(layer, 85, 0, rng)[0]
    tokens = rng.random(85) < 0.5
    tokens[80:] = False  # the last sequence sees nothing
    other = x.copy()
    clean = layer(x, other, cu_seqlens_q=cu, key_mask=tokens)
    other[~tokens] = np.nan
    out = layer(x, other, cu_seqlens_q=cu, key_mask=tokens)
    assert_same_bits(out, clean)
    assert_same_bits(out[80:], np.broadcast_to(layer.state_dict()["out_proj.bias"], (5, 64)).copy())


@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0]], ids=str)
def test_no_rows(lengths: list[int], dtype: Any) -> None:
    layer = attention_layer("usual", dtype)
    cu = _offsets(lengths).astype(int)
    assert layer(np.ones((0, 64), dtype), cu_seqlens_q=cu).shape == (0, 64)


def test_torch_tensors(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    layer, cu = attention_layer("usual"), _offsets([4, 6])
    x = _inputs(layer, 10, 0, rng)[0]
    expected = layer(x, cu_seqlens_q=cu)
    out = layer(torch.from_numpy(x), cu_seqlens_q=torch.from_numpy(cu))
    assert type(out) is torch.Tensor
    assert_same_bits(out.numpy(), expected)


WRONG = [
    # (arguments besides query, kind of error, words of the message)
    ({"cu_seqlens_q": np.array([0, 4])}, ValueError, "cu_seqlens_q must end with the rows of query, 5; got 4"),
    ({"cu_seqlens_q": np.array([0, 6, 5])}, ValueError, "cu_seqlens_q must never fall"),
    ({"cu_seqlens_q": [0, 5]}, TypeError, "cu_seqlens_q must be an integer array"),
    (
        {"cu_seqlens_q": np.array([0, 5]), "key": np.ones((7, 64), np.float32)},
        ValueError,
        "cu_seqlens_k must end with the rows of key, 7; got 5",
    ),
    ({"cu_seqlens_k": np.array([0, 5])}, ValueError, "cu_seqlens_q must be given if cu_seqlens_k is"),
    ({"cu_seqlens_q": np.array([0, 5]), "need_weights": True}, ValueError, "need_weights must be False with cu_seq"),
    (
        {"cu_seqlens_q": np.array([0, 5]), "query": np.ones((1, 5, 64), np.float32)},
        ValueError,
        "query must have 2 axes",
    ),
    ({"cu_seqlens_q": np.array([0, 5]), "out": np.ones((1, 5, 64), np.float32)}, ValueError, "out must have 2 axes"),
    ({"cu_seqlens_q": np.array([0, 5]), "out": np.ones((5, 65), np.float32)}, ValueError, "out must have the axes of"),
    ({"cu_seqlens_q": np.array([0, 5]), "key_mask": np.ones((1, 4), bool)}, ValueError, "key_mask must broadcast to"),
]


@pytest.mark.parametrize(("arguments", "kind", "words"), WRONG, ids=range(len(WRONG)))
def test_what_is_refused(arguments: dict[str, Any], kind: type[Exception], words: str) -> None:
    out = np.full((5, 64), 3, np.float32)
    with pytest.raises(kind, match=f"^MultiHeadAttention: {words}") as error:
        attention_layer("usual")(**({"query": np.ones((5, 64), np.float32), "out": out} | arguments))
    assert type(error.value) is kind
    assert (out == 3).all(), "work was done before the error"

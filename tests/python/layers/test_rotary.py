"""Rotary positions of queries and keys, in every kind of call."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matrix import ALL, WIDE, matrix, nightly
from tolerance import assert_same_bits
from turned_layers import (
    HEADS,
    E,
    H,
    P,
    Same,
    assert_near,
    every_head,
    in_chunks,
    random_rows,
    random_table,
    reference_of,
    turned_layer,
)

from mha_native import CausalDecoder, DecoderLayer, Encoder, MultiHeadAttention, RotaryEmbedding, reference

pytestmark = matrix(dtype=ALL)

Array = np.ndarray[Any, np.dtype[Any]]


@every_head
def test_the_reference_turns_by_the_equation(head_dim: int, rotary_dim: int, interleaved: bool) -> None:
    x, rotary = random_rows(np.float64, 5, head_dim), random_table(rotary_dim, interleaved, np.float64)
    turned = reference.rotate(x, [3, 0, 69, 3, 7], rotary.cos, rotary.sin, interleaved)
    expected = x.copy()
    for row, position in enumerate([3, 0, 69, 3, 7]):
        for i in range(rotary_dim // 2):
            a, b = (2 * i, 2 * i + 1) if interleaved else (i, rotary_dim // 2 + i)
            angle = complex(rotary.cos[position, i], rotary.sin[position, i])
            z = complex(x[row, a], x[row, b]) * angle
            expected[row, a], expected[row, b] = z.real, z.imag
    np.testing.assert_allclose(turned, expected, rtol=0, atol=1e-15)


@every_head
@pytest.mark.parametrize("num_kv_heads", [4, 2])
def test_a_layer_is_its_reference(
    head_dim: int, rotary_dim: int, interleaved: bool, num_kv_heads: int, isa: str, dtype: Any
) -> None:
    layer = turned_layer((head_dim, rotary_dim, interleaved), dtype, num_kv_heads=num_kv_heads)
    x = random_rows(dtype, 2, 37, E)
    options: list[dict[str, Any]] = [
        {},
        {"is_causal": True, "query_offset": 5},
        {"window": (3, 4), "query_offset": np.array([7, 0])},
        {"is_causal": True, "softcap": 3.0, "key_lengths": np.array([30, 37])},
    ]
    for chosen in options:
        assert_near(layer(x, **chosen), reference_of(layer, x, x, x, **chosen))


@matrix(dtype=WIDE)
@every_head
def test_keys_in_a_cache_are_turned(head_dim: int, rotary_dim: int, interleaved: bool, isa: str, dtype: Any) -> None:
    """The numbers themselves, by a rotation in NumPy of what the projection gives."""
    layer = turned_layer((head_dim, rotary_dim, interleaved), dtype)
    plain, rotary = MultiHeadAttention(E, H, head_dim=head_dim, dtype=dtype, seed=5), layer.rotary
    assert rotary is not None
    x, cache, unturned = random_rows(dtype, 2, 9, E), layer.new_cache(2, 20), plain.new_cache(2, 20)
    for t in (slice(0, 4), slice(4, 9)):
        layer.append_to(cache, x[:, t])
        plain.append_to(unturned, x[:, t])
    k = unturned.keys[:, :, :9]
    c, s = rotary.cos[:9], rotary.sin[:9]
    halves = (slice(0, rotary_dim, 2), slice(1, rotary_dim, 2))
    if not interleaved:
        halves = (slice(rotary_dim // 2), slice(rotary_dim // 2, rotary_dim))
    a, b = k[..., halves[0]], k[..., halves[1]]
    expected = k.copy()
    expected[..., halves[0]], expected[..., halves[1]] = a * c - b * s, a * s + b * c
    assert_same_bits(cache.keys[:, :, :9], expected)
    assert_same_bits(cache.values[:, :, :9], unturned.values[:, :, :9])


def test_from_base() -> None:
    rotary = RotaryEmbedding.from_base(8, 50, 500.0, dtype="float64")
    angles = np.outer(np.arange(50), [500 ** (-i / 4) for i in range(4)])
    np.testing.assert_allclose(rotary.cos, np.cos(angles), rtol=0, atol=1e-12)
    np.testing.assert_allclose(rotary.sin, np.sin(angles), rtol=0, atol=1e-12)
    single = RotaryEmbedding.from_base(8, 50, 500.0)
    assert_same_bits(single.cos, rotary.cos.astype(np.float32))
    assert (single.rotary_dim, single.max_positions, single.interleaved) == (8, 50, False)
    assert single.dtype == np.float32
    assert repr(single) == "RotaryEmbedding(rotary_dim=8, max_positions=50, interleaved=False, dtype='float32')"
    assert not single.cos.flags.writeable


def test_a_score_depends_on_the_distance_alone() -> None:
    rotary = RotaryEmbedding.from_base(16, 200, dtype="float64")
    layer = MultiHeadAttention(E, H, head_dim=16, dtype="float64", rotary=rotary, seed=1)
    x = random_rows(np.float64, 8, E)
    cache, later = layer.new_cache(1, 60), layer.new_cache(1, 60)
    layer(random_rows(np.float64, 40, E, seed=2), cache=later)
    # Rows 0 to 7, and the same 40 positions on, behind keys that they do not see.
    first = layer(x, cache=cache, is_causal=True, window=(7, 0))
    second = layer(x, cache=later, is_causal=True, attn_mask=np.arange(48) >= 40)
    np.testing.assert_allclose(second, first, rtol=0, atol=1e-13)


def _ragged(layer: MultiHeadAttention, x: Array) -> Array:
    """Between other sequences, and empty ones."""
    length = x.shape[1]
    before, after = random_rows(x.dtype, 5, E, seed=8), random_rows(x.dtype, 33, E, seed=9)
    ends = np.cumsum([0, 0, 5, *[length] * len(x), 0, 33, 0])
    rows = layer(np.concatenate([before, *x, after]), cu_seqlens_q=ends, is_causal=True)
    return rows[5:-33].reshape(*x.shape[:2], -1)


def _padded(layer: MultiHeadAttention, x: Array) -> Array:
    """A prompt of which only some rows count, then the rest; what is padding is NaN."""
    lengths = np.array([x.shape[1] - 6 - 3 * b for b in range(len(x))])
    cache, length = layer.new_cache(len(x), 64), x.shape[1]
    out = np.empty((*x.shape[:2], layer.out_dim), x.dtype)
    for counts, starts in ((lengths, 0 * lengths), (length - lengths, lengths)):
        given = np.full((len(x), P, E), np.nan, x.dtype)  # as many rows as positions, most of them padding
        for b, (start, count) in enumerate(zip(starts, counts, strict=True)):
            given[b, :count] = x[b, start : start + count]
        result = layer(given[:, :64], cache=cache, new_lengths=counts, is_causal=True)
        for b, (start, count) in enumerate(zip(starts, counts, strict=True)):
            out[b, start : start + count] = result[b, :count]
    return out


def _alone(layer: MultiHeadAttention, x: Array) -> Array:
    return np.concatenate([layer(one[None], is_causal=True) for one in x])


def _later_rows(layer: MultiHeadAttention, x: Array) -> Array:
    """Each row by itself, by its offset."""
    offsets = range(x.shape[1])
    return np.concatenate([layer(x[:, i : i + 1], x, query_offset=i, is_causal=True) for i in offsets], axis=1)


def _strided(layer: MultiHeadAttention, x: Array) -> Array:
    return layer(np.asfortranarray(x)[:, ::-1][:, ::-1], is_causal=True)


def _weights(layer: MultiHeadAttention, x: Array) -> Array:
    return layer(x, is_causal=True, need_weights=True)[0]


def _appended(layer: MultiHeadAttention, x: Array) -> Array:
    cache = layer.new_cache(len(x), 64)
    layer.append_to(cache, x)
    return layer(x, cache=cache, append=False, is_causal=True)


SAMES: list[Same] = [
    in_chunks(20), in_chunks(1, 2, 3, 36), in_chunks(32, 33), _ragged, _padded, _alone, _later_rows, _strided, _weights,
    _appended,
]  # fmt: skip


@pytest.mark.parametrize("head", HEADS, ids=str)
@matrix(num_threads=nightly([1, 3], quick=[3]))
def test_one_row_one_answer(head: tuple[int, int, bool], num_threads: int, isa: str, dtype: Any) -> None:
    qk_norm = {16: None, 10: "rms", 64: "layer", 80: "rms_unit_offset", 3: "layer"}[head[0]]
    layer, x = turned_layer(head, dtype, num_kv_heads=2, qk_norm=qk_norm), random_rows(dtype, 2, 37, E)
    expected = layer(x, is_causal=True, num_threads=num_threads)
    for same in SAMES:
        assert_same_bits(same(layer, x), expected, label=getattr(same, "__name__", ""))


@pytest.mark.parametrize("cache_dtype", ["float16", "bfloat16"])
def test_narrow_caches(cache_dtype: str, isa: str) -> None:
    """Keys are rounded after they are turned, wherever a prompt is cut."""
    pytest.importorskip("ml_dtypes")
    layer, x = turned_layer((10, 6, True), num_kv_heads=2, qk_norm="rms"), random_rows(np.float32, 2, 37, E)
    results = []
    for ends in ((37,), (36, 37), (5, 6, 37)):
        cache = layer.new_cache(2, 40, dtype=cache_dtype)
        parts = [x[:, begin:end] for begin, end in zip((0, *ends), ends, strict=False)]
        results.append(np.concatenate([layer(part, cache=cache, is_causal=True) for part in parts], axis=1))
    assert_same_bits(results[1], results[0])
    assert_same_bits(results[2], results[0])
    exact = layer.new_cache(2, 40)
    layer.append_to(exact, x)
    assert_same_bits(cache.keys[:, :, :37], exact.keys[:, :, :37].astype(cache.dtype))


@matrix(dtype=WIDE)
def test_cross_attention(dtype: Any) -> None:
    layer = turned_layer((10, 6, False), dtype, kdim=7, vdim=9)
    query, key, value = random_rows(dtype, 2, 11, E), random_rows(dtype, 2, 30, 7), random_rows(dtype, 2, 30, 9)
    for chosen in ({}, {"query_offset": np.array([3, 50])}):
        expected, weights = reference_of(layer, query, key, value, need_weights=True, **chosen)
        out, its_weights = layer(query, key, value, need_weights=True, **chosen)
        assert_near(out, expected)
        assert_near(its_weights, weights)
    cache = layer.new_cache(2, 30)
    layer.append_to(cache, key, value)
    assert_same_bits(layer(query, cache=cache, append=False), layer(query, key, value))


@matrix(dtype=WIDE)
@pytest.mark.parametrize("which", ["add_bias_kv", "add_zero_attn"])
def test_added_keys_are_not_turned(which: str, dtype: Any) -> None:
    layer = turned_layer((10, 6, True), dtype, num_kv_heads=2, **{which: True})
    x = random_rows(dtype, 2, 21, E)
    assert_near(layer(x, query_offset=9), reference_of(layer, x, x, x, query_offset=9))


def test_a_table_of_ones_and_zeros_turns_nothing(dtype: Any) -> None:
    kind = np.float64 if np.dtype(dtype) == np.float64 else np.float32
    rotary = RotaryEmbedding(np.ones((P, 8), kind), np.zeros((P, 8), kind))
    layer, plain = (MultiHeadAttention(E, H, dtype=dtype, seed=5, head_dim=16, rotary=r) for r in (rotary, None))
    x = random_rows(dtype, 2, 21, E)
    assert_same_bits(layer(x), plain(x))


def test_padding_reaches_nothing(isa: str) -> None:
    layer, x = turned_layer(), random_rows(np.float32, 2, 20, E)
    lengths = np.array([13, 20])
    expected = layer(x, key_lengths=lengths)
    x[0, 13:] = np.nan
    assert_same_bits(layer(x, key_lengths=lengths)[0, :13], expected[0, :13])


@pytest.mark.parametrize("how", ["pickle", "copy", "deepcopy", "astype", "quantize"])
@pytest.mark.parametrize("qk_norm", [None, "layer", "rms_unit_offset"])
def test_copies_keep_the_steps(how: str, qk_norm: str | None) -> None:
    layer, x = turned_layer(qk_norm=qk_norm, qk_norm_eps=0.5), random_rows(np.float32, 2, 20, E)
    copies: dict[str, Callable[[MultiHeadAttention], MultiHeadAttention]] = {
        "pickle": lambda layer: pickle.loads(pickle.dumps(layer)),
        "copy": copy.copy,
        "deepcopy": copy.deepcopy,
        "astype": lambda layer: layer.astype("float64").astype("float32"),
        "quantize": lambda layer: layer.quantize("float32"),
    }
    other = copies[how](layer)
    assert_same_bits(other(x), layer(x))
    assert repr(other) == repr(layer)
    assert qk_norm is None or f"qk_norm='{qk_norm}', qk_norm_eps=0.5, " in repr(layer)
    assert "rotary=RotaryEmbedding(rotary_dim=16, max_positions=70" in repr(layer)
    assert not any("rotary" in name or "cos" in name for name in layer.state_dict())
    if how in ("copy", "deepcopy", "quantize"):
        assert other.rotary is layer.rotary


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_astype_has_a_table_of_its_dtype(dtype: str) -> None:
    layer = turned_layer().astype(dtype)
    assert layer.rotary is not None
    assert layer.rotary.dtype == (np.float64 if dtype == "float64" else np.float32)
    x = random_rows(dtype, 2, 20, E)
    assert_near(layer(x), reference_of(layer, x, x, x))


@pytest.mark.parametrize("weight_dtype", ["int8", "bfloat16"])
def test_narrow_weights(weight_dtype: str) -> None:
    layer = turned_layer(qk_norm="rms").quantize(weight_dtype)
    x = random_rows(np.float32, 2, 20, E)
    exact = turned_layer(qk_norm="rms")(x)
    state = layer.state_dict()
    assert state["q_norm.weight"].dtype == np.float32
    assert "q_norm.weight_scale" not in state
    again = turned_layer(qk_norm="rms", weight_dtype=weight_dtype)
    again.load_state_dict(state)
    assert_same_bits(again(x), layer(x))
    assert np.abs(layer(x) - exact).max() < 0.05 * np.abs(exact).max()
    assert_same_bits(in_chunks(7)(layer, x), layer(x, is_causal=True))


def test_stacks() -> None:
    rotary = RotaryEmbedding.from_base(10, P)
    x = random_rows(np.float32, 2, 23, E)
    encoder = Encoder(2, E, H, 50, rotary=rotary, qk_norm="rms", qk_norm_eps=0.01, seed=1)
    table = (rotary.cos, rotary.sin, False)
    expected = reference.encoder(x, encoder.state_dict(), H, rotary=table, qk_norm="rms", qk_norm_eps=0.01)
    np.testing.assert_allclose(encoder(x), expected, rtol=1e-4, atol=1e-5)
    assert (
        all(layer.self_attn.rotary is rotary for layer in pickle.loads(pickle.dumps([encoder, rotary]))[0].layers)
        is False
    )
    unpickled = pickle.loads(pickle.dumps(encoder))
    assert unpickled.layers[0].self_attn.rotary is unpickled.layers[1].self_attn.rotary, "layers share the table"
    assert_same_bits(unpickled(x), encoder(x))
    assert "rotary=RotaryEmbedding(" in repr(encoder)

    decoder = CausalDecoder(2, E, H, 50, rotary=rotary, qk_norm="layer", seed=1)
    caches = decoder.new_caches(2, 30)
    steps = [decoder(x[:, t], caches=caches) for t in (slice(0, 20), slice(20, 21), slice(21, 23))]
    assert_same_bits(np.concatenate(steps, axis=1), decoder(x))
    rows = decoder(x.reshape(-1, E), cu_seqlens=np.array([0, 23, 46]))
    assert_same_bits(rows.reshape(x.shape), decoder(x))


def test_attention_to_a_memory_is_not_turned() -> None:
    layer = DecoderLayer(E, H, 50, rotary=random_table(10, False), seed=1)
    assert layer.self_attn.rotary is not None
    assert layer.cross_attn is not None
    assert layer.cross_attn.rotary is None
    layer.cross_attn = MultiHeadAttention(E, H, rotary=random_table(10, False))
    with pytest.raises(ValueError, match="cross_attention must have no rotary"):
        layer(random_rows(np.float32, 2, 3, E), random_rows(np.float32, 2, 4, E))

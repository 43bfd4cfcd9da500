"""What a layer does to its queries and keys: norms, and rotary positions, in every kind of call."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tolerance import assert_same_bits

from mha_native import (
    CausalDecoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    MultiHeadAttention,
    RotaryEmbedding,
    reference,
)

Array = np.ndarray[Any, np.dtype[Any]]
E, H = 40, 4
P = 70  # positions of the tables
# D, R, whether neighbours are turned: whole vectors and less, all of a head and a part of it.
HEADS = [(16, 16, False), (16, 16, True), (10, 6, False), (10, 6, True), (64, 64, False), (80, 34, True), (3, 2, False)]
every_head = pytest.mark.parametrize(("head_dim", "rotary_dim", "interleaved"), HEADS)


def _table(rotary_dim: int, interleaved: bool, dtype: Any = "float32", seed: int = 3) -> RotaryEmbedding:
    """Cosines and sines of random angles: what mixes up positions, or pairs, gives something else."""
    angles = np.random.default_rng(seed).uniform(0, 2 * np.pi, (P, rotary_dim // 2))
    kind = np.float64 if np.dtype(dtype) == np.float64 else np.float32
    return RotaryEmbedding(np.cos(angles).astype(kind), np.sin(angles).astype(kind), interleaved=interleaved)


def _layer(head: tuple[int, int, bool] = HEADS[0], dtype: Any = "float32", **options: Any) -> MultiHeadAttention:
    head_dim, rotary_dim, interleaved = head
    rotary = _table(rotary_dim, interleaved, dtype)
    layer = MultiHeadAttention(E, H, **{"head_dim": head_dim, "rotary": rotary, "dtype": dtype, "seed": 5} | options)
    if layer.qk_norm is not None:  # whose weights are otherwise the same for query and key
        state = layer.state_dict()
        layer.load_state_dict(
            state | {n: _rows(dtype, head_dim, seed=len(n) + ord(n[0])) for n in state if "norm" in n}
        )
    return layer


def _rows(dtype: Any, *shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype)


def _reference(layer: MultiHeadAttention, *inputs: Array, **options: Any) -> Any:
    rotary = layer.rotary
    assert rotary is not None
    return reference.multi_head_attention(
        *(np.asarray(x, np.float64) for x in inputs),
        {name: np.asarray(x, np.float64) for name, x in layer.state_dict().items()},
        layer.num_heads,
        num_kv_heads=layer.num_kv_heads,
        add_zero_attn=layer.add_zero_attn,
        qk_norm=layer.qk_norm,
        rotary=(rotary.cos, rotary.sin, rotary.interleaved),
        **options,
    )


def _assert_near(actual: Array, expected: Array) -> None:
    """What is turned otherwise is off by the size of the numbers. Rounding is bounded in the tests of numerics."""
    digits = {"float64": 1e-13, "float32": 1e-5, "float16": 1e-2, "bfloat16": 6e-2}[str(actual.dtype)]
    assert np.isfinite(expected).all()
    assert np.abs(np.asarray(actual, np.float64) - expected).max() <= digits * max(1, np.abs(expected).max())


@every_head
def test_the_reference_turns_by_the_equation(head_dim: int, rotary_dim: int, interleaved: bool) -> None:
    x, rotary = _rows(np.float64, 5, head_dim), _table(rotary_dim, interleaved, np.float64)
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
    layer = _layer((head_dim, rotary_dim, interleaved), dtype, num_kv_heads=num_kv_heads)
    x = _rows(dtype, 2, 37, E)
    options: list[dict[str, Any]] = [
        {},
        {"is_causal": True, "query_offset": 5},
        {"window": (3, 4), "query_offset": np.array([7, 0])},
        {"is_causal": True, "softcap": 3.0, "key_lengths": np.array([30, 37])},
    ]
    for chosen in options:
        _assert_near(layer(x, **chosen), _reference(layer, x, x, x, **chosen))


@pytest.mark.parametrize("qk_norm", ["layer", "rms", "rms_unit_offset"])
@pytest.mark.parametrize("head", [HEADS[0], HEADS[3], HEADS[5]], ids=str)
def test_norms_of_heads_are_those_of_the_reference(
    qk_norm: str, head: tuple[int, int, bool], isa: str, dtype: Any
) -> None:
    layer, x = _layer(head, dtype, num_kv_heads=2, qk_norm=qk_norm), _rows(dtype, 2, 37, E)
    for chosen in ({}, {"is_causal": True, "query_offset": 5}):
        _assert_near(layer(x, **chosen), _reference(layer, x, x, x, **chosen))


@pytest.mark.wide
@every_head
def test_keys_in_a_cache_are_turned(head_dim: int, rotary_dim: int, interleaved: bool, isa: str, dtype: Any) -> None:
    """The numbers themselves, by a rotation in NumPy of what the projection gives."""
    layer = _layer((head_dim, rotary_dim, interleaved), dtype)
    plain, rotary = MultiHeadAttention(E, H, head_dim=head_dim, dtype=dtype, seed=5), layer.rotary
    assert rotary is not None
    x, cache, unturned = _rows(dtype, 2, 9, E), layer.new_cache(2, 20), plain.new_cache(2, 20)
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
    x = _rows(np.float64, 8, E)
    cache, later = layer.new_cache(1, 60), layer.new_cache(1, 60)
    layer(_rows(np.float64, 40, E, seed=2), cache=later)
    # Rows 0 to 7, and the same 40 positions on, behind keys that they do not see.
    first = layer(x, cache=cache, is_causal=True, window=(7, 0))
    second = layer(x, cache=later, is_causal=True, attn_mask=np.arange(48) >= 40)
    np.testing.assert_allclose(second, first, rtol=0, atol=1e-13)


Same = Callable[[MultiHeadAttention, Array], Array]


def _chunks(*ends: int) -> Same:
    def run(layer: MultiHeadAttention, x: Array) -> Array:
        cache = layer.new_cache(len(x), 64)
        parts = [x[:, begin:end] for begin, end in zip((0, *ends), (*ends, x.shape[1]), strict=True)]
        return np.concatenate([layer(part, cache=cache, is_causal=True) for part in parts], axis=1)

    return run


def _ragged(layer: MultiHeadAttention, x: Array) -> Array:
    """Between other sequences, and empty ones."""
    length = x.shape[1]
    before, after = _rows(x.dtype, 5, E, seed=8), _rows(x.dtype, 33, E, seed=9)
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
    _chunks(20), _chunks(1, 2, 3, 36), _chunks(32, 33), _ragged, _padded, _alone, _later_rows, _strided, _weights,
    _appended,
]  # fmt: skip


@pytest.mark.parametrize("head", HEADS, ids=str)
@pytest.mark.parametrize("num_threads", [1, 3])
def test_one_row_one_answer(head: tuple[int, int, bool], num_threads: int, isa: str, dtype: Any) -> None:
    qk_norm = {16: None, 10: "rms", 64: "layer", 80: "rms_unit_offset", 3: "layer"}[head[0]]
    layer, x = _layer(head, dtype, num_kv_heads=2, qk_norm=qk_norm), _rows(dtype, 2, 37, E)
    expected = layer(x, is_causal=True, num_threads=num_threads)
    for same in SAMES:
        assert_same_bits(same(layer, x), expected, label=getattr(same, "__name__", ""))


@pytest.mark.parametrize("cache_dtype", ["float16", "bfloat16"])
def test_narrow_caches(cache_dtype: str, isa: str) -> None:
    """Keys are rounded after they are turned, wherever a prompt is cut."""
    pytest.importorskip("ml_dtypes")
    layer, x = _layer((10, 6, True), num_kv_heads=2, qk_norm="rms"), _rows(np.float32, 2, 37, E)
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


@pytest.mark.wide
def test_cross_attention(dtype: Any) -> None:
    layer = _layer((10, 6, False), dtype, kdim=7, vdim=9)
    query, key, value = _rows(dtype, 2, 11, E), _rows(dtype, 2, 30, 7), _rows(dtype, 2, 30, 9)
    for chosen in ({}, {"query_offset": np.array([3, 50])}):
        expected, weights = _reference(layer, query, key, value, need_weights=True, **chosen)
        out, its_weights = layer(query, key, value, need_weights=True, **chosen)
        _assert_near(out, expected)
        _assert_near(its_weights, weights)
    cache = layer.new_cache(2, 30)
    layer.append_to(cache, key, value)
    assert_same_bits(layer(query, cache=cache, append=False), layer(query, key, value))


@pytest.mark.wide
@pytest.mark.parametrize("which", ["add_bias_kv", "add_zero_attn"])
def test_added_keys_are_not_turned(which: str, dtype: Any) -> None:
    layer = _layer((10, 6, True), dtype, num_kv_heads=2, **{which: True})
    x = _rows(dtype, 2, 21, E)
    _assert_near(layer(x, query_offset=9), _reference(layer, x, x, x, query_offset=9))


def test_a_table_of_ones_and_zeros_turns_nothing(dtype: Any) -> None:
    kind = np.float64 if np.dtype(dtype) == np.float64 else np.float32
    rotary = RotaryEmbedding(np.ones((P, 8), kind), np.zeros((P, 8), kind))
    layer, plain = (MultiHeadAttention(E, H, dtype=dtype, seed=5, head_dim=16, rotary=r) for r in (rotary, None))
    x = _rows(dtype, 2, 21, E)
    assert_same_bits(layer(x), plain(x))


def test_padding_reaches_nothing(isa: str) -> None:
    layer, x = _layer(), _rows(np.float32, 2, 20, E)
    lengths = np.array([13, 20])
    expected = layer(x, key_lengths=lengths)
    x[0, 13:] = np.nan
    assert_same_bits(layer(x, key_lengths=lengths)[0, :13], expected[0, :13])


@pytest.mark.parametrize("how", ["pickle", "copy", "deepcopy", "astype", "quantize"])
@pytest.mark.parametrize("qk_norm", [None, "layer", "rms_unit_offset"])
def test_copies_keep_the_steps(how: str, qk_norm: str | None) -> None:
    layer, x = _layer(qk_norm=qk_norm, qk_norm_eps=0.5), _rows(np.float32, 2, 20, E)
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
    layer = _layer().astype(dtype)
    assert layer.rotary is not None
    assert layer.rotary.dtype == (np.float64 if dtype == "float64" else np.float32)
    x = _rows(dtype, 2, 20, E)
    _assert_near(layer(x), _reference(layer, x, x, x))


@pytest.mark.parametrize("weight_dtype", ["int8", "bfloat16"])
def test_narrow_weights(weight_dtype: str) -> None:
    layer = _layer(qk_norm="rms").quantize(weight_dtype)
    x = _rows(np.float32, 2, 20, E)
    exact = _layer(qk_norm="rms")(x)
    state = layer.state_dict()
    assert state["q_norm.weight"].dtype == np.float32
    assert "q_norm.weight_scale" not in state
    again = _layer(qk_norm="rms", weight_dtype=weight_dtype)
    again.load_state_dict(state)
    assert_same_bits(again(x), layer(x))
    assert np.abs(layer(x) - exact).max() < 0.05 * np.abs(exact).max()
    assert_same_bits(_chunks(7)(layer, x), layer(x, is_causal=True))


def test_names_of_norms() -> None:
    def norms(**options: Any) -> dict[str, tuple[int, ...]]:
        state = MultiHeadAttention(E, H, head_dim=6, num_kv_heads=2, **options).state_dict()
        return {name: array.shape for name, array in state.items() if "norm" in name}

    assert norms() == {}
    assert norms(qk_norm="rms") == {"q_norm.weight": (6,), "k_norm.weight": (6,)}
    of_layers = {"q_norm.weight": (6,), "q_norm.bias": (6,), "k_norm.weight": (6,), "k_norm.bias": (6,)}
    assert norms(qk_norm="layer") == of_layers
    kinds = {"layer": 1, "rms": 1, "rms_unit_offset": 0}
    for kind, weight in kinds.items():
        state = MultiHeadAttention(E, H, qk_norm=kind).state_dict()
        assert (state["q_norm.weight"] == weight).all()
    layer = MultiHeadAttention(E, H, qk_norm="rms")
    with pytest.raises(ValueError, match=r"load_state_dict: missing: q_norm\.weight, k_norm\.weight"):
        layer.load_state_dict(MultiHeadAttention(E, H).state_dict())


@pytest.mark.parametrize("qk_norm", ["layer", "rms"])
def test_norms_without_rotary(qk_norm: str, isa: str) -> None:
    layer, x = _layer(qk_norm=qk_norm, rotary=None), _rows(np.float32, 2, 37, E)
    expected = reference.multi_head_attention(x, x, x, layer.state_dict(), H, is_causal=True, qk_norm=qk_norm)
    _assert_near(layer(x, is_causal=True), expected)
    assert_same_bits(_chunks(7, 8)(layer, x), layer(x, is_causal=True))


def test_stacks() -> None:
    rotary = RotaryEmbedding.from_base(10, P)
    x = _rows(np.float32, 2, 23, E)
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
    layer = DecoderLayer(E, H, 50, rotary=_table(10, False), seed=1)
    assert layer.self_attn.rotary is not None
    assert layer.cross_attn is not None
    assert layer.cross_attn.rotary is None
    layer.cross_attn = MultiHeadAttention(E, H, rotary=_table(10, False))
    with pytest.raises(ValueError, match="cross_attention must have no rotary"):
        layer(_rows(np.float32, 2, 3, E), _rows(np.float32, 2, 4, E))


Wrong = tuple[Callable[[], Any], type[Exception], list[str]]
ONES = np.ones((4, 2), np.float32)
TABLES: list[Wrong] = [
    (lambda: RotaryEmbedding(ONES, ONES[:3]), ValueError, ["RotaryEmbedding", "sin", "[4, 2]", "[3, 2]"]),
    (lambda: RotaryEmbedding(ONES[0], ONES), ValueError, ["RotaryEmbedding", "cos", "[2]"]),
    (lambda: RotaryEmbedding(ONES[:0], ONES[:0]), ValueError, ["RotaryEmbedding", "cos", "[0, 2]"]),
    (lambda: RotaryEmbedding(ONES[:, :0], ONES[:, :0]), ValueError, ["RotaryEmbedding", "cos", "[4, 0]"]),
    (lambda: RotaryEmbedding(ONES, ONES.astype(np.float64)), TypeError, ["RotaryEmbedding", "sin float64"]),
    (lambda: RotaryEmbedding(*[ONES.astype(np.float16)] * 2), TypeError, ["RotaryEmbedding", "float32", "float16"]),
    (lambda: RotaryEmbedding([[1.0]], ONES), TypeError, ["RotaryEmbedding", "cos", "list"]),
    (lambda: RotaryEmbedding(ONES, ONES, interleaved=1), TypeError, ["RotaryEmbedding", "interleaved"]),
    (lambda: RotaryEmbedding.from_base(7, 4), ValueError, ["from_base", "rotary_dim", "even", "7"]),
    (lambda: RotaryEmbedding.from_base(0, 4), ValueError, ["from_base", "rotary_dim", "0"]),
    (lambda: RotaryEmbedding.from_base(8, 0), ValueError, ["from_base", "max_positions", "0"]),
    (lambda: RotaryEmbedding.from_base(8, 4, 0), ValueError, ["from_base", "base", "0"]),
    (lambda: RotaryEmbedding.from_base(8, 4, np.nan), ValueError, ["from_base", "base", "nan"]),
    (lambda: RotaryEmbedding.from_base(8, 4, dtype="float16"), TypeError, ["from_base", "dtype", "float16"]),
    (lambda: RotaryEmbedding.from_base(8, 2**61), MemoryError, ["from_base"]),
    (lambda: _layer(rotary=RotaryEmbedding.from_base(18, 4)), ValueError, ["MultiHeadAttention", "rotary", "16", "18"]),
    (lambda: _layer(dtype="float64", rotary=_table(8, False)), TypeError, ["rotary", "float64", "float32"]),
    (lambda: _layer(rotary=(ONES, ONES)), TypeError, ["MultiHeadAttention", "rotary", "tuple"]),
    (lambda: _layer(qk_norm="batch"), ValueError, ["MultiHeadAttention", "qk_norm", "'rms_unit_offset'", "'batch'"]),
    (lambda: _layer(qk_norm=True), TypeError, ["MultiHeadAttention", "qk_norm", "True"]),
    (lambda: _layer(qk_norm_eps=-1), ValueError, ["MultiHeadAttention", "qk_norm_eps", "-1"]),
    (lambda: _layer(qk_norm_eps="a"), TypeError, ["MultiHeadAttention", "qk_norm_eps"]),
    (lambda: EncoderLayer(E, H, 5, rotary=3), TypeError, ["EncoderLayer", "rotary", "int"]),
]


@pytest.mark.parametrize(("call", "kind", "words"), TABLES, ids=lambda x: "-".join(x) if type(x) is list else "")
def test_wrong_tables(call: Callable[[], Any], kind: type[Exception], words: list[str]) -> None:
    with pytest.raises(kind) as error:
        call()
    for word in words:
        assert word in str(error.value), str(error.value)


X = np.ones((2, 20, E), np.float32)
CALLS: list[tuple[dict[str, Any], list[str]]] = [
    ({"query": np.ones((1, P + 1, E), np.float32)}, ["query", "0 to 69", "71 rows"]),
    ({"query": X, "key": np.ones((2, P + 1, E), np.float32)}, ["key", "0 to 69", "71 rows"]),
    ({"query": X, "query_offset": P - 19}, ["query_offset", "51", "batch element 0"]),
    ({"query": X, "query_offset": np.array([50, 51])}, ["query_offset", "51", "batch element 1"]),
    ({"query": X, "query_offset": -1}, ["query_offset", "-1"]),
    ({"query": X, "query_offset": 2**62}, ["query_offset", str(2**62)]),
    ({"query": np.ones((80, E), np.float32), "cu_seqlens_q": np.array([0, 9, 80])}, ["query", "71", "batch element 1"]),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), CALLS, ids=lambda x: "-".join(x))
def test_positions_that_the_table_lacks(arguments: dict[str, Any], words: list[str]) -> None:
    layer = _layer()
    out = np.full((*arguments["query"].shape[:-1], E), 3, np.float32)
    with pytest.raises(ValueError, match="must stand at positions of rotary") as error:
        layer(**arguments, out=out)
    message = str(error.value)
    assert message.startswith("MultiHeadAttention: ")
    for word in words:
        assert word in message, message
    assert (out == 3).all()


def test_a_cache_that_outgrows_the_table() -> None:
    layer, decoder = _layer(), CausalDecoder(1, E, H, 50, rotary=_table(10, False), seed=1)
    cache, caches = layer.new_cache(2, 100), decoder.new_caches(2, 100)
    full = np.ones((2, P - 1, E), np.float32)
    layer(full, cache=cache)
    decoder(full, caches=caches)
    keys = cache.keys.copy()
    with pytest.raises(ValueError, match=r"MultiHeadAttention: query must stand at .* 2 rows from position 69"):
        layer(X[:, :2], cache=cache)
    with pytest.raises(ValueError, match=r"MultiHeadAttention\.append_to: key must stand at"):
        layer.append_to(cache, X[:, :2])
    with pytest.raises(ValueError, match=r"CausalDecoder: x must stand at .* 0 to 69"):
        decoder(X[:, :2], caches=caches)
    assert cache.lengths.tolist() == caches[0].lengths.tolist() == [P - 1, P - 1]
    assert_same_bits(cache.keys, keys)
    layer(X[:, :2], cache=cache, new_lengths=np.array([1, 0]))  # padding has no position
    decoder(X[:, :1], caches=caches)

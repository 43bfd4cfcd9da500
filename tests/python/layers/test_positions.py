"""The positions that a call of a layer gives its rows, instead of those that are counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matrix import ALL, matrix
from tolerance import assert_same_bits

from mha_native import (
    CausalDecoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    MultiHeadAttention,
    RotaryEmbedding,
    reference,
    scaled_dot_product_attention,
)

pytestmark = matrix(dtype=ALL)

Array = np.ndarray[Any, np.dtype[Any]]
B, T, E, H, P = 2, 21, 24, 4, 70
TABLE = RotaryEmbedding.from_base(6, P, 50.0)
# A row at a time, equal ones, and runs that cross the tasks of 32 rows.
SCATTERED = np.random.default_rng(4).integers(0, P, (B, T))
PACKED = np.concatenate([np.arange(9), np.arange(12)])


def _layer(dtype: Any = "float32", **options: Any) -> MultiHeadAttention:
    rotary = RotaryEmbedding.from_base(6, P, 50.0, dtype="float64" if np.dtype(dtype) == np.float64 else "float32")
    return MultiHeadAttention(E, H, num_kv_heads=2, rotary=rotary, dtype=dtype, seed=5, **options)


def _rows(*shape: int, dtype: Any = np.float32, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype)


@pytest.mark.parametrize("positions", [SCATTERED, PACKED, np.tile(PACKED, (B, 1))], ids=["scattered", "packed", "both"])
def test_a_layer_is_its_reference(positions: Array, isa: str) -> None:
    layer, x = _layer("float64"), _rows(B, T, E, dtype=np.float64)
    rotary = layer.rotary
    assert rotary is not None
    for options in ({}, {"is_causal": True, "query_offset": 3}):
        expected = reference.multi_head_attention(
            x, x, x, layer.state_dict(), H, num_kv_heads=2, rotary=(rotary.cos, rotary.sin, False),
            positions=positions, **options,
        )  # fmt: skip
        actual = layer(x, positions=positions, **options)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-13 * np.abs(expected).max())


@pytest.mark.parametrize("integers", ["int64", "uint8", "int32"])
def test_counted_positions_are_the_default(integers: str, isa: str, dtype: Any) -> None:
    layer, x = _layer(dtype, qk_norm="rms"), _rows(B, T, E, dtype=dtype)
    counted = np.arange(T).astype(integers)
    for positions in (counted, np.tile(counted, (B, 1)), np.repeat(counted, 2).reshape(T, 2).T):
        assert_same_bits(layer(x, positions=positions, is_causal=True), layer(x, is_causal=True))
    cache, other = layer.new_cache(B, 40), layer.new_cache(B, 40)
    for part in (slice(0, 13), slice(13, 14), slice(14, T)):
        step = layer(x[:, part], cache=cache, positions=counted[part], is_causal=True)
        assert_same_bits(step, layer(x[:, part], cache=other, is_causal=True))
    assert_same_bits(cache.keys[:, :, :T], other.keys[:, :, :T])
    assert_same_bits(layer(x[:, -1:], cache=cache, append=False, positions=counted[-1:]),
                     layer(x[:, -1:], cache=cache, append=False, query_offset=T - 1))  # fmt: skip


def test_one_row_one_answer(isa: str, dtype: Any) -> None:
    layer, x = _layer(dtype), _rows(B, T, E, dtype=dtype)
    expected = layer(x, positions=SCATTERED, is_causal=True)
    assert not np.array_equal(expected, layer(x, is_causal=True))
    for num_threads in (1, 3):
        assert_same_bits(layer(x, positions=SCATTERED, is_causal=True, num_threads=num_threads), expected)
    for b in range(B):
        assert_same_bits(layer(x[b], positions=SCATTERED[b], is_causal=True), expected[b])
    ends = np.array([0, T, T, 2 * T])
    ragged = layer(x.reshape(-1, E), cu_seqlens_q=ends, positions=SCATTERED.ravel(), is_causal=True)
    assert_same_bits(ragged.reshape(x.shape), expected)
    cache = layer.new_cache(B, 40)
    parts = [slice(0, 13), slice(13, 14), slice(14, T)]
    steps = [layer(x[:, part], cache=cache, positions=SCATTERED[:, part], is_causal=True) for part in parts]
    assert_same_bits(np.concatenate(steps, axis=1), expected)


def test_padding_has_no_position() -> None:
    layer, x = _layer(), _rows(B, T, E)
    cache, counts = layer.new_cache(B, 40), np.array([T, 5])
    positions = SCATTERED.copy()
    positions[1, 5:] = -9
    out = layer(x, cache=cache, new_lengths=counts, positions=positions, is_causal=True)
    expected = layer(x, positions=SCATTERED, is_causal=True)
    assert_same_bits(out[0], expected[0])
    assert_same_bits(out[1, :5], expected[1, :5])


def test_a_cache_that_has_lost_its_oldest_tokens() -> None:
    """Scores depend on distances alone, so with positions a window over a short cache is that over a long one."""
    layer, x = _layer("float64"), _rows(B, 60, E, dtype=np.float64)
    whole, kept = layer.new_cache(B, 60), layer.new_cache(B, 20)
    for t in range(60):
        if kept.longest == 20:
            kept.keep_last(10)
        expected = layer(x[:, t : t + 1], cache=whole, is_causal=True, window=(8, 0))
        given = {"cache": kept, "positions": np.array([t])}
        np.testing.assert_allclose(
            layer(x[:, t : t + 1], is_causal=True, window=(8, 0), **given), expected, rtol=0, atol=1e-13
        )


@pytest.mark.parametrize("kind", [EncoderLayer, Encoder, CausalDecoder])
def test_stacks(kind: Any, isa: str) -> None:
    count = () if kind is EncoderLayer else (2,)
    stack, x = kind(*count, E, H, 50, rotary=TABLE, seed=1), _rows(B, T, E)
    assert_same_bits(stack(x, positions=np.arange(T)), stack(x))
    expected = stack(x, positions=SCATTERED)
    y = x
    for layer in getattr(stack, "layers", (stack,)):
        y = layer(y, positions=SCATTERED, is_causal=kind is CausalDecoder)
    assert_same_bits(y, expected)
    rows = stack(x.reshape(-1, E), cu_seqlens=np.array([0, T, 2 * T]), positions=SCATTERED.ravel())
    assert_same_bits(rows.reshape(x.shape), expected)
    if kind is not EncoderLayer:
        caches = stack.new_caches(B, T)
        parts = [slice(0, 13), slice(13, T)]
        options = {"is_causal": True, "caches": caches}
        steps = [stack(x[:, part], positions=SCATTERED[:, part], **options) for part in parts]
        assert_same_bits(np.concatenate(steps, axis=1), stack(x, positions=SCATTERED, is_causal=True))


def test_layer_options_do_not_hide_them() -> None:
    options = [{"window": (3, 0)}, {}]
    stack, x = CausalDecoder(2, E, H, 50, rotary=TABLE, layer_options=options, seed=1), _rows(B, T, E)
    y = stack.layers[0](x, positions=SCATTERED, window=(3, 0), is_causal=True)
    assert_same_bits(stack(x, positions=SCATTERED), stack.layers[1](y, positions=SCATTERED, is_causal=True))


def test_layers_that_turn_nothing_do_without() -> None:
    stack, x = CausalDecoder(2, E, H, 50, rotary=TABLE, seed=1), _rows(B, T, E)
    stack.layers[0].self_attn = MultiHeadAttention(E, H, seed=3)
    y = stack.layers[1](stack.layers[0](x, is_causal=True), positions=SCATTERED, is_causal=True)
    assert_same_bits(stack(x, positions=SCATTERED), y)


def test_a_memory_is_not_turned() -> None:
    layer, x, memory = DecoderLayer(E, H, 50, rotary=TABLE, seed=1), _rows(B, T, E), _rows(B, 5, E, seed=2)
    assert_same_bits(layer(x, memory, positions=np.arange(T)), layer(x, memory))
    assert not np.array_equal(layer(x, memory, positions=SCATTERED), layer(x, memory))


X = _rows(B, T, E)
WRONG: dict[str, tuple[dict[str, Any], type[Exception], list[str]]] = {
    "negative": ({"positions": np.arange(T) - 1}, ValueError, ["0 to 69", "-1 for row 0 of batch element 0"]),
    "behind": (
        {"positions": SCATTERED + P * (np.arange(T) == 3)},
        ValueError,
        ["0 to 69", "for row 3 of"],
    ),
    "huge": ({"positions": np.full(T, 2**63 - 1)}, ValueError, ["0 to 69", str(2**63 - 1)]),
    "unsigned": ({"positions": np.full(T, 2**64 - 1, np.uint64)}, ValueError, ["63 bits"]),
    "too few": ({"positions": np.arange(T - 1)}, ValueError, ["one entry for each row, [21] or [2, 21]", "[20]"]),
    "too many": ({"positions": np.zeros((B + 1, T), int)}, ValueError, ["[21] or [2, 21]", "[3, 21]"]),
    "axes": ({"positions": np.zeros((1, B, T), int)}, ValueError, ["[21] or [2, 21]", "[1, 2, 21]"]),
    "none": ({"positions": np.int64(3)}, TypeError, ["integer array"]),
    "scalar": ({"positions": np.array(3)}, ValueError, ["[21] or [2, 21]", "positions []"]),
    "floats": ({"positions": np.arange(T) / 2}, TypeError, ["integer array", "float64"]),
    "list": ({"positions": list(range(T))}, TypeError, ["positions", "list"]),
    "key": ({"positions": np.arange(T), "key": X[:, :9]}, ValueError, ["query and key", "one length"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_positions(case: str) -> None:
    options, kind, words = WRONG[case]
    out = np.full_like(X, 3)
    with pytest.raises(kind) as error:
        _layer()(X, out=out, **options)
    message = str(error.value)
    assert message.startswith("MultiHeadAttention: positions")
    for word in words:
        assert word in message, message
    assert (out == 3).all()


def test_refusals_of_stacks() -> None:
    stack = Encoder(2, E, H, 50, rotary=TABLE, seed=1)
    with pytest.raises(
        ValueError, match=r"^Encoder: positions must be .* 0 to 69; got 70 for row 2 of batch element 0"
    ):
        stack(X, positions=np.where(np.arange(T) == 2, P, 0))
    with pytest.raises(
        ValueError, match=r"^Encoder: positions must have one entry for each row, \[42\]; got .*\[2, 21\]"
    ):
        stack(X.reshape(-1, E), cu_seqlens=np.array([0, T, 2 * T]), positions=SCATTERED)
    with pytest.raises(ValueError, match=r"^Encoder: positions must be .* got 70 for row 41$"):
        stack(X.reshape(-1, E), cu_seqlens=np.array([0, T, 2 * T]), positions=np.append(np.zeros(2 * T - 1, int), P))
    with pytest.raises(ValueError, match="Encoder: positions must not be given without rotary"):
        Encoder(2, E, H, 50, seed=1)(X, positions=np.arange(T))
    with pytest.raises(ValueError, match="MultiHeadAttention: positions must not be given without rotary"):
        MultiHeadAttention(E, H, seed=1)(X, positions=np.arange(T))
    with pytest.raises(TypeError, match="'positions'"):
        scaled_dot_product_attention(X, X, X, positions=np.arange(T))  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'positions'"):
        Encoder(1, E, H, 50, rotary=TABLE, layer_options=[{"positions": np.arange(T)}])  # type: ignore[typeddict-unknown-key]
    with pytest.raises(ValueError, match="positions must not be given without rotary"):
        reference.multi_head_attention(X, X, X, MultiHeadAttention(E, H).state_dict(), H, positions=np.arange(T))

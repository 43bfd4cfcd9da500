"""Keys of the layer itself (add_bias_kv, add_zero_attn): every query sees them, whatever the masks say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tolerance
from element_types import accumulator_of
from matrix import ALL, WIDE, matrix, nightly
from random_layers import attention_inputs, call_options, with_random_biases
from tolerance import assert_close, assert_same_bits

from mha_native import MultiHeadAttention, reference, scaled_dot_product_attention

pytestmark = matrix(dtype=ALL)

Array = np.ndarray[Any, np.dtype[Any]]

BOTH = {"add_bias_kv": True, "add_zero_attn": True}
ADDED: dict[str, dict[str, Any]] = {"key": {"add_bias_kv": True}, "zeros": {"add_zero_attn": True}, "both": BOTH}
SIZES: dict[str, dict[str, Any]] = {
    "usual": {"embed_dim": 64, "num_heads": 4},
    "whole vectors": {"embed_dim": 64, "num_heads": 1, "bias": False},
    "grouped": {"embed_dim": 64, "num_heads": 8, "num_kv_heads": 2},
    "everything": {
        "embed_dim": 29, "num_heads": 6, "num_kv_heads": 3, "head_dim": 11, "value_head_dim": 13, "kdim": 23,
        "vdim": 31, "out_dim": 70,
    },
}  # fmt: skip
every_addition = matrix(added=nightly(ADDED, quick=("both",)))
every_layer = matrix(name=nightly(SIZES, quick=("usual", "grouped", "everything")))


def _layer(name: str, added: str, dtype: Any, size: float = 1) -> MultiHeadAttention:
    """A layer without zeros in its weights, whose added key is `size` times a normal one."""
    return with_random_biases(MultiHeadAttention(**SIZES[name], **ADDED[added], dtype=dtype, seed=3), size)


def _count(layer: MultiHeadAttention) -> int:
    return layer.add_bias_kv + layer.add_zero_attn


MASKS = ["none", "causal", "boolean", "additive", "far", "key mask", "all", "bounds", "scores"]


@every_addition
@every_layer
@matrix(mask=nightly(MASKS, quick=("none", "causal", "additive", "key mask", "all", "bounds", "scores")))
@pytest.mark.parametrize("sizes", [(3, 1, 40), (2, 70, 33)], ids=str)
def test_against_the_oracle(
    name: str, added: str, mask: str, sizes: tuple[int, int, int], isa: str, dtype: Any
) -> None:
    layer = _layer(name, added, dtype)
    inputs, options = attention_inputs(layer, *sizes), call_options(mask, layer.num_heads, dtype, *sizes)
    expected = tolerance.layer(layer, *inputs, options)
    buffer = np.full((*inputs[0].shape[:-1], layer.out_dim), np.nan, dtype)
    out, weights = layer(*inputs, out=buffer, need_weights=True, num_threads=2, **options)
    assert out is buffer
    assert weights.shape == (sizes[0], layer.num_heads, sizes[1], sizes[2] + _count(layer))
    assert_close(out, expected.out, expected.out_bound, label=f"{name} out")
    assert_close(weights, expected.weights, expected.weights_bound, label=f"{name} weights")
    assert_same_bits(layer(*inputs, num_threads=1, **options), out, label="without weights, on one thread")


@matrix(size=(0.0, 30.0, 300.0), where=lambda size, dtype, **_: size > 0 or dtype in WIDE)
def test_keys_that_take_nothing_or_all(size: float, isa: str, dtype: Any) -> None:
    layer = _layer("usual", "both", dtype, size)
    inputs = attention_inputs(layer, 2, 20, 90)
    expected = tolerance.layer(layer, *inputs, {})
    out, weights = layer(*inputs, need_weights=True)
    assert_close(out, expected.out, expected.out_bound, label="out")
    assert_close(weights, expected.weights, expected.weights_bound, label="weights")
    if size > 0:
        assert weights[..., 90].max() > 0.9
        assert weights[..., 90].min() < 1e-6


@every_addition
def test_the_oracle_appends_projected_keys(added: str) -> None:
    """The specification itself, written once more: more keys and values, of which no mask knows."""
    layer = _layer("everything", added, np.float64)
    query, key, value = attention_inputs(layer, 2, 7, 9)
    mask = np.random.default_rng(0).random((7, 9)) < 0.5
    state = layer.state_dict()
    parts = np.cumsum([6 * 11, 3 * 11])
    biases = np.split(state["in_proj_bias"], parts)
    q, k, v = (
        (x @ state[f"{n}_proj_weight"].T + b).reshape(2, -1, heads, width).swapaxes(1, 2)
        for n, x, b, heads, width in zip("qkv", (query, key, value), biases, (6, 3, 3), (11, 11, 13), strict=True)
    )
    if layer.add_bias_kv:
        k = np.concatenate([k, np.tile(state["bias_k"].reshape(1, 3, 1, 11), (2, 1, 1, 1))], 2)
        v = np.concatenate([v, np.tile(state["bias_v"].reshape(1, 3, 1, 13), (2, 1, 1, 1))], 2)
    if layer.add_zero_attn:
        k, v = (np.concatenate([x, np.zeros((2, 3, 1, x.shape[-1]))], 2) for x in (k, v))
    longer = np.concatenate([mask, np.ones((7, _count(layer)), bool)], 1)
    z = reference.scaled_dot_product_attention(q, k, v, longer)
    expected = z.swapaxes(1, 2).reshape(2, 7, -1) @ state["out_proj.weight"].T + state["out_proj.bias"]
    out, weights = reference.multi_head_attention(
        query, key, value, state, 6, num_kv_heads=3, add_zero_attn=layer.add_zero_attn, attn_mask=mask,
        need_weights=True,
    )  # fmt: skip
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(weights, reference.attention_weights(q, k, longer), rtol=1e-12, atol=1e-12)


@every_addition
@pytest.mark.parametrize("name", ["usual", "grouped"])
@matrix(mask=nightly(["none", "causal", "far", "all"], quick=("none", "causal", "all")))
def test_without_the_errors_of_projections(name: str, added: str, mask: str, isa: str, dtype: Any) -> None:
    layer = _layer(name, added, dtype)
    sizes = (2, 70, 130)
    query, key, value = attention_inputs(layer, *sizes)
    identity, (rows, kv_rows, _) = np.eye(64, dtype=dtype), layer._sizes.in_rows
    state = layer.state_dict()
    for bias in ("in_proj_bias", "out_proj.bias"):
        state[bias][...] = 0
    state["in_proj_weight"] = np.concatenate([identity[:rows], identity[:kv_rows], identity[:kv_rows]])
    layer.load_state_dict(state | {"out_proj.weight": identity})

    def heads(x: Array, columns: int) -> Array:
        return x[..., :columns].reshape(*x.shape[:2], -1, layer.head_dim).swapaxes(1, 2)

    projected = [heads(query, rows), heads(key, kv_rows), heads(value, kv_rows)]
    options = call_options(mask, layer.num_heads, dtype, *sizes)
    none = [np.zeros(x.shape) for x in projected]
    expected = tolerance.heads_with_added_keys(layer, projected, none, options)
    out, weights = layer(query, key, value, need_weights=True, **options)
    assert_close(heads(out, 64), expected.out, expected.out_bound, label="out")
    assert_close(weights, expected.weights, expected.weights_bound, label="weights")


def test_zeros_are_a_sink_of_0(isa: str, dtype: Any) -> None:
    layer = MultiHeadAttention(64, 4, add_zero_attn=True, dtype=dtype, seed=0)
    state = layer.state_dict()
    identity = np.eye(64, dtype=dtype)
    layer.load_state_dict(state | {"in_proj_weight": np.tile(identity, (3, 1)), "out_proj.weight": identity})
    x = attention_inputs(layer, 2, 30, 30)[0]
    heads = x.reshape(2, 30, 4, 16).swapaxes(1, 2)
    expected = scaled_dot_product_attention(
        heads, heads, heads, sinks=np.zeros(4, accumulator_of(dtype)), is_causal=True
    )
    assert_same_bits(layer(x, is_causal=True), expected.swapaxes(1, 2).reshape(2, 30, 64))


@every_addition
def test_queries_that_see_no_other_key(added: str, isa: str, dtype: Any) -> None:
    layer = _layer("grouped", added, dtype)
    query, key, value = attention_inputs(layer, 3, 20, 70)
    nothing = np.zeros((3, 70), bool)
    empty = layer(query, key[:, :0], value[:, :0], need_weights=True)
    key[...] = value[...] = np.nan
    out, weights = layer(query, key, value, key_mask=nothing, need_weights=True)
    assert_same_bits(out, empty[0])
    assert_same_bits(weights[..., 70:], empty[1])
    assert not weights[..., :70].any()
    expected = tolerance.layer(layer, query, key[:, :0], value[:, :0], {})
    assert_close(out, expected.out, expected.out_bound, label="out")
    assert_close(weights[..., 70:], expected.weights, expected.weights_bound, label="weights")


@every_addition
@every_layer
def test_rows_and_batch_elements_by_themselves(name: str, added: str, isa: str, dtype: Any) -> None:
    layer = _layer(name, added, dtype)
    inputs = attention_inputs(layer, 3, 130, 50)
    together, weights = layer(*inputs, need_weights=True, num_threads=1)
    for threads in (2, 3, 7):
        out, same = layer(*inputs, need_weights=True, num_threads=threads)
        assert_same_bits(out, together, label=f"{threads} threads")
        assert_same_bits(same, weights, label=f"{threads} threads")
    for b in range(3):
        out, same = layer(*(x[b] for x in inputs), need_weights=True)
        assert_same_bits(out, together[b], label=f"b={b}")
        assert_same_bits(same, weights[b], label=f"b={b}")
    query, key, value = inputs
    for first, last in ((0, 1), (129, 130), (3, 9), (60, 70), (64, 128), (1, 130)):
        out = layer(query[:, first:last], key, value)
        assert_same_bits(out, together[:, first:last], label=f"{first}:{last}")


@every_addition
def test_a_nan_query_keeps_to_itself(added: str, isa: str, dtype: Any) -> None:
    layer = _layer("usual", added, dtype)
    query, key, value = attention_inputs(layer, 2, 40, 30)
    clean = layer(query, key, value)
    query[1, 7] = np.nan
    out = layer(query, key, value)
    assert np.isnan(out[1, 7]).all()
    others = np.ones((2, 40), bool)
    others[1, 7] = False
    assert_same_bits(out[others], clean[others])


@every_addition
def test_strided_and_read_only_inputs(added: str, isa: str, dtype: Any) -> None:
    layer = _layer("everything", added, dtype)
    inputs = attention_inputs(layer, 2, 20, 30)
    expected = layer(*inputs)
    views = [np.ascontiguousarray(x.T).T for x in inputs]
    for view in views:
        view.flags.writeable = False
    memory = np.full((2, 20, 140), np.nan, dtype)
    layer(*views, out=memory[..., 1::2])
    assert_same_bits(memory[..., 1::2].copy(), expected)
    assert np.isnan(memory[..., ::2]).all()


@every_addition
@matrix(name=nightly(["usual", "whole vectors", "grouped"], quick=("usual", "grouped")))
def test_steps_over_a_cache(name: str, added: str, isa: str, dtype: Any) -> None:
    layer = _layer(name, added, dtype)
    x = attention_inputs(layer, 3, 40, 40)[0]
    whole, weights = layer(x, is_causal=True, need_weights=True)
    cache = layer.new_cache(3, 40)
    for start, stop in ((0, 7), (7, 8), (8, 12), (12, 13), (13, 40)):
        out, some = layer(x[:, start:stop], cache=cache, is_causal=True, need_weights=True, num_threads=2)
        assert_same_bits(out, whole[:, start:stop], label=f"rows {start} to {stop}")
        assert_same_bits(some[..., :stop], weights[:, :, start:stop, :stop], label=f"rows {start} to {stop}")
        assert_same_bits(some[..., stop:], weights[:, :, start:stop, 40:], label=f"rows {start} to {stop}")
    assert cache.lengths.tolist() == [40] * 3, "keys of the layer are not in the cache"
    attended = layer(x[:, :5], cache=cache, append=False)
    assert_same_bits(attended, layer(x[:, :5], x))


@every_addition
def test_padding_sees_nothing(added: str, isa: str, dtype: Any) -> None:
    layer = _layer("grouped", added, dtype)
    x, counts = attention_inputs(layer, 3, 12, 12)[0], np.array([5, 0, 12])
    for b, count in enumerate(counts):
        x[b, count:] = np.nan
    cache = layer.new_cache(3, 12)
    out, weights = layer(x, cache=cache, is_causal=True, new_lengths=counts, need_weights=True)
    for b, count in enumerate(counts):
        alone = layer(x[b, :count], is_causal=True)
        assert_same_bits(out[b, :count], alone, label=f"sequence {b}")
        padding = np.broadcast_to(layer.state_dict()["out_proj.bias"], (12 - count, layer.out_dim))
        assert_same_bits(out[b, count:], padding.copy(), label=f"padding of sequence {b}")
        assert not weights[b, :, count:].any()


@every_addition
@matrix(masked=nightly([False, True], quick=[True]))
def test_ragged_batches(added: str, masked: bool, isa: str, dtype: Any) -> None:
    layer = _layer("everything", added, dtype)
    rng = np.random.default_rng(0)
    lengths_q, lengths_k = np.array([3, 0, 70, 1, 9]), np.array([30, 5, 0, 1, 90])
    cu_q, cu_k = (np.concatenate([[0], np.cumsum(n)]) for n in (lengths_q, lengths_k))
    query, key, value = (x[0] for x in attention_inputs(layer, 1, cu_q[-1], cu_k[-1]))
    key_mask = rng.random(cu_k[-1]) < 0.5 if masked else None
    options: dict[str, Any] = {"is_causal": masked}
    for threads in (1, 2, 3):
        buffer = np.full((cu_q[-1], layer.out_dim), np.nan, dtype)
        layer(
            query, key, value, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, key_mask=key_mask, out=buffer,
            num_threads=threads, **options,
        )  # fmt: skip
        for b in range(5):
            q, k = slice(*cu_q[b : b + 2]), slice(*cu_k[b : b + 2])
            alone = layer(query[q], key[k], value[k], key_mask=key_mask[k] if masked else None, **options)
            assert_same_bits(buffer[q], alone, label=f"{threads} threads, sequence {b}")


def test_names_shapes_and_initial_values() -> None:
    layer = MultiHeadAttention(512, 8, num_kv_heads=4, value_head_dim=32, **BOTH, seed=0)
    state = layer.state_dict()
    assert list(state) == ["in_proj_weight", "in_proj_bias", "bias_k", "bias_v", "out_proj.weight", "out_proj.bias"]
    assert state["bias_k"].shape == (1, 1, 256)
    assert state["bias_v"].shape == (1, 1, 128)
    assert 0.8 < state["bias_k"].std() * 16 < 1.2, "Xavier-normal, as in torch"
    assert layer.add_bias_kv
    assert layer.add_zero_attn
    assert "add_bias_kv=True, add_zero_attn=True" in repr(layer)
    assert "bias_k" not in MultiHeadAttention(24, 4, add_zero_attn=True).state_dict()
    plain = MultiHeadAttention(24, 4, seed=0).state_dict()
    with_zeros = MultiHeadAttention(24, 4, add_zero_attn=True, seed=0).state_dict()
    for name, array in plain.items():
        assert_same_bits(with_zeros[name], array, label=name)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bias_k": None}, ["missing", "bias_k"]),
        ({"bias_v": None}, ["missing", "bias_v"]),
        ({"bias_k": np.ones((1, 1, 23), np.float32)}, ["bias_k", "[1, 1, 23]", "[1, 1, 24]"]),
        ({"bias_v": np.ones(24, np.float32)}, ["bias_v", "[24]", "[1, 1, 24]"]),
    ],
    ids=lambda x: "-".join(x) if type(x) is list else "",
)
def test_wrong_states(change: dict[str, Any], words: list[str]) -> None:
    layer = MultiHeadAttention(24, 4, add_bias_kv=True, seed=0)
    state = {name: array for name, array in (layer.state_dict() | change).items() if array is not None}
    with pytest.raises(ValueError, match=r"^MultiHeadAttention\.load_state_dict: ") as error:
        layer.load_state_dict(state)
    for word in words:
        assert word in str(error.value)

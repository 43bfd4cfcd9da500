"""The layer against the oracle, for every option of its constructor and of its call."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import tolerance
from element_types import limits
from matrix import ALL, matrix, nightly
from random_layers import FEW_LAYERS, LAYERS, SELF_LAYERS, attention_inputs, attention_layer, call_options
from tolerance import Expected, assert_close, assert_same_bits

import mha_native
from mha_native import MultiHeadAttention

pytestmark = matrix(dtype=ALL)

every_layer = matrix(name=nightly(LAYERS, quick=FEW_LAYERS))


MASKS = ["none", "causal", "boolean", "additive", "key mask", "one key mask", "flat key mask", "all"]
MASKS += ["lengths", "offsets", "window", "scores"]


@functools.cache
def _expected(name: str, mask: str, sizes: tuple[int, int, int], dtype: Any) -> Expected:
    layer = attention_layer(name, dtype)
    return tolerance.layer(layer, *attention_inputs(layer, *sizes), call_options(mask, layer.num_heads, dtype, *sizes))


def _check(name: str, mask: str, sizes: tuple[int, int, int], dtype: Any, threads: int) -> None:
    layer, expected = attention_layer(name, dtype), _expected(name, mask, sizes, dtype)
    inputs, options = attention_inputs(layer, *sizes), call_options(mask, layer.num_heads, dtype, *sizes)
    buffer = np.full((*inputs[0].shape[:-1], layer.out_dim), np.nan, dtype)
    out, weights = layer(*inputs, out=buffer, need_weights=True, num_threads=threads, **options)
    assert out is buffer
    assert_close(out, expected.out, expected.out_bound, label=f"{name} out")
    assert_close(weights, expected.weights, expected.weights_bound, label=f"{name} weights")
    assert_same_bits(layer(*inputs, num_threads=threads, **options), out, label="without weights")


@every_layer
@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 9, 9), (3, 5, 40), (1, 70, 33), (2, 1, 130)], ids=str)
def test_cross_attention(name: str, sizes: tuple[int, int, int], isa: str, dtype: Any, num_threads: int) -> None:
    _check(name, "none", sizes, dtype, num_threads)


@matrix(mask=nightly(MASKS, quick=("none", "causal", "additive", "key mask", "all", "scores")))
@pytest.mark.parametrize("name", ["usual", "grouped", "everything"])
def test_masks(name: str, mask: str, isa: str, dtype: Any) -> None:
    _check(name, mask, (2, 37, 101), dtype, 2)


@matrix(name=nightly(SELF_LAYERS, quick=FEW_LAYERS), length=nightly([1, 2, 15, 64, 97, 130], quick=(1, 15, 97)))
def test_self_attention(name: str, length: int, isa: str, dtype: Any) -> None:
    layer = attention_layer(name, dtype)
    x = attention_inputs(layer, 2, length, length)[0]
    expected = tolerance.layer(layer, x, x, x, {"is_causal": True})
    out = layer(x, is_causal=True)
    assert_close(out, expected.out, expected.out_bound, label=f"{name} {length}")
    # One projection of x to queries, keys and values is the three of them.
    for same in (
        layer(x, x, is_causal=True),
        layer(x, x, x, is_causal=True),
        layer(x, x.copy(), x.copy(), is_causal=True),
    ):
        assert_same_bits(same, out, label=f"{name} {length}")


def test_value_defaults_to_key(isa: str) -> None:
    layer = attention_layer("usual")
    query, key, _ = attention_inputs(layer, 2, 5, 9)
    assert_same_bits(layer(query, key), layer(query, key, key))


def test_planted_features(isa: str, dtype: Any) -> None:
    # Weights that pick one feature each, at every edge of a panel: a column that goes astray is a whole feature.
    features = 200
    layer = MultiHeadAttention(features, 4, dtype=dtype, seed=0)
    state = layer.state_dict()
    order = np.random.default_rng(0).permutation(features)
    identity = np.eye(features, dtype=dtype)
    state["in_proj_weight"] = np.concatenate([identity * 0, identity * 0, identity[order]])
    state["out_proj.weight"] = identity
    layer.load_state_dict(state)
    x = np.random.default_rng(1).standard_normal((1, features)).astype(dtype)
    assert_same_bits(layer(x), x[:, order])


@pytest.mark.parametrize("mask", ["none", "all"])
def test_averaged_weights(mask: str, isa: str, dtype: Any) -> None:
    layer = attention_layer("grouped", dtype)
    inputs, options = attention_inputs(layer, 2, 20, 30), call_options(mask, layer.num_heads, dtype, 2, 20, 30)
    out, per_head = layer(*inputs, need_weights=True, **options)
    same, averaged = layer(*inputs, need_weights=True, average_attn_weights=True, **options)
    assert_same_bits(same, out)
    assert averaged.shape == (2, 20, 30)
    bound = np.full(averaged.shape, limits(dtype).eps)  # of a mean of weights, which are at most 1
    assert_close(averaged, per_head.astype(np.float64).mean(1), bound, label="average")


@pytest.mark.parametrize("name", ["usual", "everything"])
def test_without_a_batch_axis(name: str, isa: str, dtype: Any) -> None:
    layer = attention_layer(name, dtype)
    query, key, value = attention_inputs(layer, 1, 8, 12)
    out, weights = layer(query[0], key[0], value[0], need_weights=True)
    batched, batched_weights = layer(query, key, value, need_weights=True)
    assert_same_bits(out, batched[0])
    assert_same_bits(weights, batched_weights[0])
    _, averaged = layer(query[0], key[0], value[0], need_weights=True, average_attn_weights=True)
    assert averaged.shape == (8, 12)


@every_layer
def test_a_batch_element_by_itself(name: str, isa: str, dtype: Any) -> None:
    layer = attention_layer(name, dtype)
    inputs = attention_inputs(layer, 5, 13, 20)
    together = layer(*inputs)
    for b in range(5):
        assert_same_bits(layer(*(x[b] for x in inputs)), together[b], label=f"b={b}")
    for split in (1, 2, 4):
        halves = [layer(*(x[part] for x in inputs)) for part in (slice(split), slice(split, None))]
        assert_same_bits(np.concatenate(halves), together, label=f"split at {split}")


@pytest.mark.parametrize("name", ["usual", "wide", "everything"])
def test_rows_by_themselves(name: str, isa: str, dtype: Any) -> None:
    layer = attention_layer(name, dtype)
    query, key, value = attention_inputs(layer, 1, 130, 50)
    together = layer(query, key, value)
    for first, last in ((0, 1), (129, 130), (3, 9), (60, 70), (64, 128), (1, 130)):
        assert_same_bits(layer(query[:, first:last], key, value), together[:, first:last], label=f"{first}:{last}")


@pytest.mark.parametrize("name", ["usual", "wide", "everything"])
def test_threads(name: str, isa: str, dtype: Any) -> None:
    layer = attention_layer(name, dtype)
    inputs = attention_inputs(layer, 2, 150, 170)
    one, one_weights = layer(*inputs, num_threads=1, need_weights=True)
    for threads in (2, 3, 7):
        out, weights = layer(*inputs, num_threads=threads, need_weights=True)
        assert_same_bits(out, one, label=f"{threads} threads")
        assert_same_bits(weights, one_weights, label=f"{threads} threads")


@pytest.mark.parametrize("which", [0, 1, 2])
def test_strided_inputs(which: int, isa: str, dtype: Any) -> None:
    layer = attention_layer("everything", dtype)
    inputs = attention_inputs(layer, 2, 20, 30)
    expected = layer(*inputs)
    x = inputs[which]
    wide = np.full((*x.shape[:2], 2 * x.shape[2]), np.nan, dtype)
    wide[..., ::2] = x
    transposed = np.ascontiguousarray(x.T).T
    time_first = np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1)
    backwards = np.ascontiguousarray(x[::-1, ::-1, ::-1])[::-1, ::-1, ::-1]
    for view in (wide[..., ::2], transposed, time_first, backwards):
        assert np.array_equal(view, x)
        assert_same_bits(layer(*inputs[:which], view, *inputs[which + 1 :]), expected)


def test_strided_out(isa: str, dtype: Any) -> None:
    layer = attention_layer("usual", dtype)
    x = attention_inputs(layer, 2, 20, 20)[0]
    expected = layer(x)
    for memory, view in (
        (wide := np.full((2, 20, 128), np.nan, dtype), wide[..., 1::2]),
        (turned := np.full((64, 20, 2), np.nan, dtype), turned.T),
        (longer := np.full((2, 25, 64), np.nan, dtype), longer[:, 22:2:-1]),
    ):
        assert layer(x, out=view) is view
        assert_same_bits(view.copy(), expected)
        assert np.count_nonzero(np.isnan(memory)) == memory.size - view.size


@matrix(poison=nightly([np.nan, np.inf, -np.inf], quick=[np.nan]))
def test_hidden_keys(poison: float, isa: str, dtype: Any) -> None:
    layer = attention_layer("grouped", dtype)
    query, key, value = attention_inputs(layer, 3, 20, 70)
    key_mask = np.ones((3, 70), bool)
    key_mask[0, 50:] = key_mask[1, ::2] = key_mask[2] = False
    clean, clean_weights = layer(query, key, value, key_mask=key_mask, need_weights=True)
    key[~key_mask] = value[~key_mask] = poison
    out, weights = layer(query, key, value, key_mask=key_mask, need_weights=True)
    assert_same_bits(out, clean)
    assert_same_bits(weights, clean_weights)
    assert (weights[2] == 0).all()
    assert_same_bits(out[2], np.broadcast_to(layer.state_dict()["out_proj.bias"], out[2].shape).copy())


def test_a_nan_token_reaches_the_rows_that_see_it(isa: str, dtype: Any) -> None:
    layer = attention_layer("usual", dtype)
    x = attention_inputs(layer, 2, 40, 40)[0]
    clean = layer(x, is_causal=True)
    x[1, 25] = np.nan
    out = layer(x, is_causal=True)
    assert np.isnan(out[1, 25:]).all()
    assert_same_bits(out[0], clean[0])
    assert_same_bits(out[1, :25], clean[1, :25])


@pytest.mark.parametrize("sizes", [(0, 5, 5), (2, 0, 5), (2, 5, 0), (0, 0, 0)], ids=str)
def test_empty_sizes(sizes: tuple[int, int, int], isa: str, dtype: Any) -> None:
    layer = attention_layer("usual", dtype)
    query, key, value = attention_inputs(layer, *sizes)
    out, weights = layer(query, key, value, need_weights=True)
    assert out.shape == (sizes[0], sizes[1], 64)
    assert weights.shape == (sizes[0], 4, sizes[1], sizes[2])
    # Without keys heads give zeros: what is left is the bias.
    assert (out == layer.state_dict()["out_proj.bias"]).all()
    mha_native.scaled_dot_product_attention(*np.ones((3, 2, 4), dtype))  # an empty result computes nothing


def test_a_layer_runs_on_every_instruction_set(dtype: Any) -> None:
    # Weights are packed once, in an order that all of them read.
    names = mha_native.available_isas()
    with mha_native.use_isa(names[0]):
        built_on_first = MultiHeadAttention(**LAYERS["everything"], dtype=dtype, seed=1)
    with mha_native.use_isa(names[-1]):
        built_on_last = MultiHeadAttention(**LAYERS["everything"], dtype=dtype, seed=1)
    inputs = attention_inputs(built_on_first, 2, 20, 30)
    expected = tolerance.layer(built_on_first, *inputs, {})
    for name in names:
        with mha_native.use_isa(name):
            out = built_on_first(*inputs)
            assert mha_native.last_used_isa() == name
            assert_close(out, expected.out, expected.out_bound, label=name)
            assert_same_bits(built_on_last(*inputs), out, label=name)

"""Feed-forwards with a gate: ``(activation(gate(x)) * linear1(x))``, in every format of weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import transformer_tolerance
from int8_oracle import projection, weights
from random_layers import randomized, rows, views
from tolerance import assert_close, assert_same_bits
from transformer_tolerance import Near

from mha_native import EncoderLayer, FeedForward, reference

SIZES = [(1, 1), (5, 3), (29, 37), (64, 64), (65, 255), (130, 1025), (769, 70)]  # E, F
F32 = np.float32
every_size = pytest.mark.parametrize("sizes", SIZES, ids=str)
every_format = pytest.mark.parametrize("weight_dtype", ["float32", "bfloat16", "int8", "int4"])


def _layer(sizes: tuple[int, int], dtype: Any = F32, **more: Any) -> FeedForward:
    return randomized(FeedForward(*sizes, **({"activation": "silu"} | more), gated=True, dtype=dtype, seed=1))


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "swiglu_oai", "quick_gelu"])
@every_size
def test_against_the_oracle(sizes: tuple[int, int], activation: str, isa: str, dtype: Any, num_threads: int) -> None:
    layer = _layer(sizes, dtype, activation=activation)
    for count in (1, 7, 130):
        x = rows((count, sizes[0]), dtype)
        expected = transformer_tolerance.feed_forward(layer, Near.exactly(x))
        out = np.full(x.shape, np.nan, x.dtype)
        assert layer(x, out=out, num_threads=num_threads) is out
        assert_close(out, expected.out, expected.bound, label=f"{count} rows")


@pytest.mark.parametrize("biased", [(), ("gate",), ("linear1",), ("linear2",), ("linear1", "gate")], ids=str)
def test_any_bias_may_be_missing(biased: tuple[str, ...], isa: str, dtype: Any) -> None:
    layer, x = _layer((29, 37), dtype, bias=set(biased)), rows((5, 29), dtype)
    assert {name for name in layer.state_dict() if name.endswith("bias")} == {f"{name}.bias" for name in biased}
    expected = transformer_tolerance.feed_forward(layer, Near.exactly(x))
    assert_close(layer(x), expected.out, expected.bound, label=str(biased))


@pytest.mark.parametrize("biased", ["linear1", "linear2"])
def test_any_bias_may_be_missing_without_a_gate(biased: str, dtype: Any) -> None:
    layer = randomized(FeedForward(29, 37, bias={biased}, dtype=dtype, seed=1))
    assert layer.bias == (biased,)
    expected = transformer_tolerance.feed_forward(layer, Near.exactly(x := rows((5, 29), dtype)))
    assert_close(layer(x), expected.out, expected.bound, label=str(biased))


@every_format
@every_size
def test_rows_by_themselves(sizes: tuple[int, int], weight_dtype: str, isa: str) -> None:
    layer, x = _layer(sizes).quantize(weight_dtype), rows((200, sizes[0]), F32)
    together = layer(x, num_threads=1)
    for threads in (2, 3, 7):
        assert_same_bits(layer(x, num_threads=threads), together, label=f"{threads} threads")
    for first, last in ((0, 1), (199, 200), (3, 9), (1, 150)):
        for threads in (1, 2):
            out = layer(x[first:last], num_threads=threads)
            assert_same_bits(out, together[first:last], label=f"{first}:{last}, {threads} threads")


@every_size
def test_sixteen_bits_round_the_product_and_not_its_factors(sizes: tuple[int, int], isa: str) -> None:
    # An identity behind the product shows what is stored between the two steps.
    layer = _layer((sizes[0], sizes[0]), np.float16, activation="relu", bias=False)
    identity = np.eye(sizes[0], dtype=np.float16)
    state = layer.state_dict() | {"linear2.weight": identity}
    layer.load_state_dict(state)
    wide = layer.astype("float32")
    x = rows((9, sizes[0]), np.float16)
    assert_same_bits(layer(x), wide(x.astype(F32)).astype(np.float16))


@every_size
def test_bfloat16_weights_have_the_bits_of_rounded_ones(sizes: tuple[int, int], isa: str, num_threads: int) -> None:
    layer = _layer(sizes).quantize("bfloat16")
    rounded = layer.quantize("float32")
    for count in (1, 7, 150):
        x = rows((count, sizes[0]), F32)
        assert_same_bits(layer(x, num_threads=num_threads), rounded(x), label=f"{count} rows")


@every_size
def test_int8_weights_give_what_the_rule_says(sizes: tuple[int, int], isa: str, num_threads: int) -> None:
    plain = _layer(sizes, activation="relu")
    layer, state = plain.quantize("int8"), plain.state_dict()
    stored = {
        name: (*weights(state[f"{name}.weight"]), state[f"{name}.bias"]) for name in ("linear1", "linear2", "gate")
    }
    for name, (integers, scale, _) in stored.items():
        assert_same_bits(layer.state_dict()[f"{name}.weight"], integers)
        assert_same_bits(layer.state_dict()[f"{name}.weight_scale"], scale)
    for count in (1, 7, 150):
        x = rows((count, sizes[0]), F32)
        hidden = np.maximum(projection(x, *stored["gate"]), 0) * projection(x, *stored["linear1"])
        out = np.full_like(x, np.nan)
        layer(x, out=out, num_threads=num_threads)
        assert_same_bits(out, projection(hidden, *stored["linear2"]), label=f"{count} rows")


@every_format
def test_views_of_memory(weight_dtype: str, isa: str) -> None:
    layer, x = _layer((77, 130)).quantize(weight_dtype), rows((3, 21, 77), F32)
    expected = layer(x)
    for view in views(x):
        assert_same_bits(layer(view), expected)
    wide = np.full((3, 21, 154), np.nan, F32)
    layer(x, out=wide[..., 1::2])
    assert_same_bits(wide[..., 1::2].copy(), expected)
    assert np.isnan(wide[..., ::2]).all()
    assert layer(x, out=x) is x
    assert_same_bits(x, expected)


def test_nan_and_infinity(isa: str, dtype: Any) -> None:
    layer, x = _layer((33, 70), dtype), rows((40, 33), dtype)
    clean = layer(x)
    x[7, 3] = np.nan
    out = layer(x)
    assert np.isnan(out[7]).all()
    assert_same_bits(np.delete(out, 7, 0), np.delete(clean, 7, 0))
    one = FeedForward(1, 1, activation="silu", gated=True, bias=False, dtype=dtype)
    ones = {name: np.ones((1, 1), dtype) for name in one.state_dict()}
    one.load_state_dict(ones)
    special = np.array([[np.inf], [-np.inf], [np.nan], [0]], dtype)
    expected = np.array([[np.inf], [np.nan], [np.nan], [0]], dtype)  # silu(-inf) is 0, and 0 times infinity NaN
    assert np.array_equal(one(special), expected, equal_nan=True)


@every_format
def test_a_layer_has_the_bits_of_its_parts(weight_dtype: str, isa: str, num_threads: int) -> None:
    layer = randomized(EncoderLayer(48, 4, 200, activation="silu", gated=True, norm_first=True, seed=2))
    layer = layer.quantize(weight_dtype)
    x = rows((2, 130, 48), F32)
    z = x + layer.self_attn(layer.norm1(x))
    expected = z + layer.feed_forward(layer.norm2(z))
    assert_same_bits(layer(x, num_threads=num_threads), expected)


def test_the_oracle_by_hand() -> None:
    state = {"linear1.weight": [[2], [1]], "gate.weight": [[1], [-1]], "gate.bias": [0, 1], "linear2.weight": [[1, 10]]}
    np.testing.assert_array_equal(reference.feed_forward([[3], [-3]], state), [[18], [-120]])


def test_the_seed_gives_the_same_ungated_weights() -> None:
    plain, gated = (FeedForward(5, 7, gated=gated, seed=3).state_dict() for gated in (False, True))
    assert [name for name in gated if name not in plain] == ["gate.weight", "gate.bias"]
    for name, array in plain.items():
        assert_same_bits(gated[name], array)

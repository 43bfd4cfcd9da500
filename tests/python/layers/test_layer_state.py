"""What an attention layer holds and refuses: sizes, weights in and out, errors. Copies: test_transformer_state.py."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from matrix import ALL, matrix
from tolerance import assert_same_bits

from mha_native import MultiHeadAttention

pytestmark = matrix(dtype=ALL)

WIDE = {"num_kv_heads": 2, "head_dim": 5, "value_head_dim": 3, "kdim": 7, "vdim": 9, "out_dim": 11}


def _run(layer: MultiHeadAttention) -> np.ndarray:
    rng = np.random.default_rng(1)
    shapes = ((2, 4, layer.embed_dim), (2, 6, layer.kdim), (2, 6, layer.vdim))
    return layer(*(rng.standard_normal(shape).astype(layer.dtype) for shape in shapes))


def test_names_and_shapes_are_those_of_torch() -> None:
    stacked = {"in_proj_weight": (72, 24), "in_proj_bias": (72,), "out_proj.weight": (24, 24), "out_proj.bias": (24,)}
    assert {n: x.shape for n, x in MultiHeadAttention(24, 4).state_dict().items()} == stacked
    assert {n: x.shape for n, x in MultiHeadAttention(24, 4, **WIDE).state_dict().items()} == {
        "q_proj_weight": (20, 24),
        "k_proj_weight": (10, 7),
        "v_proj_weight": (6, 9),
        "in_proj_bias": (36,),
        "out_proj.weight": (11, 12),
        "out_proj.bias": (11,),
    }
    no_bias = MultiHeadAttention(24, 4, bias=False).state_dict()
    assert list(no_bias) == ["in_proj_weight", "out_proj.weight"]


def test_names_of_separate_biases() -> None:
    def biases(*names: str) -> dict[str, tuple[int, ...]]:
        layer = MultiHeadAttention(24, 4, num_kv_heads=2, bias=set(names))
        return {name: x.shape for name, x in layer.state_dict().items() if name.endswith("bias")}

    assert biases() == {}
    assert biases("query", "key", "value") == {"in_proj_bias": (48,)}
    assert biases("out", "query", "value") == {"q_proj_bias": (24,), "v_proj_bias": (12,), "out_proj.bias": (24,)}
    assert biases("key") == {"k_proj_bias": (12,)}


def test_which_biases_there_are_can_be_read() -> None:
    assert MultiHeadAttention(24, 4, bias={"out", "key"}).bias == ("key", "out")
    assert "bias=('key', 'out')" in repr(MultiHeadAttention(24, 4, bias={"out", "key"}))
    assert MultiHeadAttention(24, 4, bias=["value", "query", "key", "out"]).bias is True
    assert MultiHeadAttention(24, 4, bias=()).bias is False


def test_a_missing_bias_is_one_of_zeros() -> None:
    layer, other = MultiHeadAttention(24, 4, bias={"query", "out"}, seed=0), MultiHeadAttention(24, 4, seed=1)
    rng = np.random.default_rng(2)
    state = {name: rng.standard_normal(array.shape, np.float32) for name, array in layer.state_dict().items()}
    layer.load_state_dict(state)
    query_bias, zeros = state.pop("q_proj_bias"), np.zeros(24, np.float32)
    assert query_bias.any()
    other.load_state_dict(state | {"q_proj_bias": query_bias, "k_proj_bias": zeros, "v_proj_bias": zeros})
    assert_same_bits(_run(other), _run(layer))


def test_stacked_or_not_is_the_same() -> None:
    layer = MultiHeadAttention(24, 4, seed=0)
    state = layer.state_dict()
    state |= {
        name: np.random.default_rng(2).standard_normal(72, np.float32) for name in state if name == "in_proj_bias"
    }
    layer.load_state_dict(state)
    for name in ("in_proj_weight", "in_proj_bias"):
        parts = zip("qkv", np.split(state.pop(name), 3), strict=True)
        state |= {name.replace("in", letter, 1): part for letter, part in parts}
        other = MultiHeadAttention(24, 4, seed=1)
        other.load_state_dict(state)
        assert_same_bits(_run(other), _run(layer))


def test_a_layer_keeps_weights_of_its_own() -> None:
    layer = MultiHeadAttention(24, 4, seed=0)
    before = _run(layer)
    state = layer.state_dict()
    layer.load_state_dict(state)
    for array in state.values():
        array[...] = np.nan
    assert_same_bits(_run(layer), before)


def test_strided_weights() -> None:
    layer, other = MultiHeadAttention(24, 4, seed=0), MultiHeadAttention(24, 4, seed=1)
    state = {name: np.asfortranarray(np.repeat(array, 2, -1))[..., ::2] for name, array in layer.state_dict().items()}
    for array in state.values():
        array.flags.writeable = False
    other.load_state_dict(state)
    assert_same_bits(_run(other), _run(layer))


def test_the_seed_fixes_the_weights() -> None:
    def first(seed: int | None) -> np.ndarray:
        return MultiHeadAttention(24, 4, seed=seed).state_dict()["in_proj_weight"]

    assert_same_bits(first(7), first(7))
    assert not np.array_equal(first(7), first(8))
    assert not np.array_equal(first(None), first(None))
    bound = np.sqrt(6 / (24 + 72))  # of Xavier's rule, as torch applies it to the stacked matrix
    assert 0.9 * bound < np.abs(first(7)).max() <= bound


def _without(name: str) -> dict[str, np.ndarray]:
    return {other: array for other, array in MultiHeadAttention(24, 4).state_dict().items() if other != name}


STATES = [
    (lambda: _without("out_proj.bias"), ValueError, ["missing", "out_proj.bias"]),
    (lambda: _without("in_proj_weight"), ValueError, ["missing", "in_proj_weight"]),
    (dict, ValueError, ["missing", "in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]),
    (lambda: MultiHeadAttention(24, 4).state_dict() | {"bias_k": np.ones(3)}, ValueError, ["unexpected", "bias_k"]),
    (lambda: MultiHeadAttention(24, 4, bias=False).state_dict(), ValueError, ["missing", "in_proj_bias"]),
    (lambda: MultiHeadAttention(32, 4).state_dict(), ValueError, ["shape", "[96, 32]", "[72, 24]"]),
    (
        lambda: _without("out_proj.weight") | {"out_proj.weight": np.ones((24, 25), np.float32)},
        ValueError,
        ["out_proj.weight", "[24, 25]", "[24, 24]"],
    ),
    (lambda: MultiHeadAttention(24, 4, dtype="float64").state_dict(), TypeError, ["float32", "float64"]),
    (
        lambda: _without("out_proj.bias") | {"out_proj.bias": np.ones(24, np.int32)},
        TypeError,
        ["out_proj.bias", "int32"],
    ),
    (lambda: _without("out_proj.bias") | {"out_proj.bias": [0.0] * 24}, TypeError, ["out_proj.bias", "list"]),
]


@pytest.mark.parametrize(("make_state", "kind", "words"), STATES, ids=lambda x: "-".join(x) if type(x) is list else "")
def test_a_wrong_state_leaves_the_layer_as_it_was(make_state: Any, kind: type[Exception], words: list[str]) -> None:
    layer = MultiHeadAttention(24, 4, seed=0)
    before, before_state = _run(layer), layer.state_dict()
    with pytest.raises(kind) as error:
        layer.load_state_dict(make_state())
    message = str(error.value)
    assert message.startswith("MultiHeadAttention.load_state_dict: ")
    for word in words:
        assert word in message, message
    assert_same_bits(_run(layer), before)
    for name, array in layer.state_dict().items():
        assert_same_bits(array, before_state[name], label=name)


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"num_heads": 5}, ValueError, ["embed_dim", "num_heads", "24", "5"]),
        ({"embed_dim": 0}, ValueError, ["embed_dim", "0"]),
        ({"num_heads": 0}, ValueError, ["num_heads", "0"]),
        ({"num_heads": -4}, ValueError, ["num_heads", "-4"]),
        ({"embed_dim": 24.0}, TypeError, ["embed_dim", "24.0"]),
        ({"num_heads": True}, TypeError, ["num_heads", "True"]),
        ({"embed_dim": "24"}, TypeError, ["embed_dim"]),
        ({"num_kv_heads": 3}, ValueError, ["num_kv_heads", "3", "4"]),
        ({"num_kv_heads": 0}, ValueError, ["num_kv_heads", "0"]),
        ({"num_kv_heads": 8}, ValueError, ["num_kv_heads", "8"]),
        ({"head_dim": 0}, ValueError, ["head_dim"]),
        ({"value_head_dim": -1}, ValueError, ["value_head_dim"]),
        ({"kdim": 0}, ValueError, ["kdim"]),
        ({"vdim": 0}, ValueError, ["vdim"]),
        ({"out_dim": 0}, ValueError, ["out_dim"]),
        ({"bias": 1}, TypeError, ["bias", "1"]),
        ({"bias": "query"}, TypeError, ["bias", "query"]),
        ({"bias": ["query", "q"]}, ValueError, ["bias", "'q'", "'query', 'key', 'value', 'out'"]),
        ({"bias": [np.ones(2)]}, ValueError, ["bias", "'query'"]),
        ({"dtype": "int32"}, TypeError, ["dtype", "int32", "float32", "float64"]),
        ({"dtype": np.complex64}, TypeError, ["dtype", "float16", "complex64"]),
        ({"dtype": np.dtype(np.float32).newbyteorder()}, TypeError, ["dtype"]),
    ],
    ids=str,
)
def test_wrong_sizes(arguments: dict[str, Any], kind: type[Exception], words: list[str]) -> None:
    with pytest.raises(kind) as error:
        MultiHeadAttention(**({"embed_dim": 24, "num_heads": 4} | arguments))
    assert str(error.value).startswith("MultiHeadAttention: ")
    for word in words:
        assert word in str(error.value), str(error.value)


F32 = np.float32
CALLS: list[tuple[dict[str, Any], type[Exception], list[str]]] = [
    ({"query": np.ones((2, 4, 23), F32)}, ValueError, ["query", "24", "[2, 4, 23]"]),
    ({"query": np.ones(24, F32)}, ValueError, ["query", "[24]"]),
    ({"query": np.ones((1, 2, 4, 24), F32)}, ValueError, ["query", "[1, 2, 4, 24]"]),
    ({"key": np.ones((2, 6, 23), F32)}, ValueError, ["key", "24", "[2, 6, 23]"]),
    ({"key": np.ones((3, 6, 24), F32)}, ValueError, ["key", "batch", "[3, 6, 24]", "[2, 4, 24]"]),
    ({"value": np.ones((2, 5, 24), F32)}, ValueError, ["value", "length", "[2, 5, 24]", "[2, 6, 24]"]),
    ({"value": np.ones((1, 6, 24), F32)}, ValueError, ["value", "batch", "[1, 6, 24]"]),
    ({"query": np.ones((2, 4, 24))}, TypeError, ["query float64", "key float32"]),
    ({"key": np.ones((2, 6, 24))}, TypeError, ["key float64", "query float32"]),
    ({"value": np.ones((2, 6, 24), np.int64)}, TypeError, ["value int64", "query float32"]),
    ({"attn_mask": np.ones((4, 7), bool)}, ValueError, ["attn_mask", "[4, 7]", "[2, 4, 4, 6]"]),
    ({"attn_mask": np.ones((4, 6), np.int32)}, TypeError, ["attn_mask int32"]),
    ({"attn_mask": np.ones((4, 6))}, TypeError, ["attn_mask float64"]),
    ({"key_mask": np.ones((2, 7), bool)}, ValueError, ["key_mask", "[2, 7]", "[2, 6]"]),
    ({"key_mask": np.ones((2, 4, 6), bool)}, ValueError, ["key_mask", "[2, 4, 6]"]),
    ({"key_mask": np.ones((2, 6), F32)}, TypeError, ["key_mask", "bool"]),
    ({"is_causal": 1}, TypeError, ["is_causal"]),
    ({"need_weights": 1}, TypeError, ["need_weights"]),
    ({"num_threads": 0}, ValueError, ["num_threads"]),
    ({"out": np.ones((2, 4, 23), F32)}, ValueError, ["out", "24", "[2, 4, 23]"]),
    ({"out": np.ones((4, 24), F32)}, ValueError, ["out", "[4, 24]"]),
    ({"out": np.ones((2, 4, 24))}, TypeError, ["out float64"]),
    ({"out": [1.0]}, TypeError, ["out list"]),
]


@pytest.mark.parametrize(("fault", "kind", "words"), CALLS, ids=lambda x: "-".join(x) if isinstance(x, dict) else "")
def test_wrong_calls(fault: dict[str, Any], kind: type[Exception], words: list[str]) -> None:
    layer = MultiHeadAttention(24, 4, seed=0)
    out = np.full((2, 4, 24), 3, F32)
    good = {"query": np.ones((2, 4, 24), F32), "key": np.ones((2, 6, 24), F32), "value": np.ones((2, 6, 24), F32)}
    with pytest.raises(kind) as error:
        layer(**(good | {"out": out} | fault))
    message = str(error.value)
    assert re.match(r"MultiHeadAttention\b", message), message
    for word in words:
        assert word in message, message
    assert (out == 3).all(), "work was done before the error"


@pytest.mark.parametrize("which", ["query", "key", "value", "key_mask"])
def test_out_over_an_input(which: str) -> None:
    layer = MultiHeadAttention(24, 4, seed=0)
    inputs: dict[str, np.ndarray] = {name: np.ones((2, 4, 24), F32) for name in ("query", "key", "value")}
    inputs["key_mask"] = np.ones((2, 4), bool)
    out = np.ones((2, 4, 24), F32)
    inputs[which] = out.view(bool).reshape(-1)[:8].reshape(2, 4) if which == "key_mask" else out
    before = out.copy()
    with pytest.raises(ValueError, match=f"out must not overlap {which}"):
        layer(**inputs, out=out)
    assert_same_bits(out, before)


def test_sizes_can_be_read() -> None:
    layer = MultiHeadAttention(24, 4, **WIDE, dtype="float64")
    expected = WIDE | {"embed_dim": 24, "num_heads": 4, "bias": True, "dtype": np.dtype("float64")}
    assert {name: getattr(layer, name) for name in expected} == expected
    for name, size in WIDE.items():
        assert f"{name}={size}" in repr(layer)

"""Stacks whose layers have score options of their own: what the layers give one after another, to the last bit."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from element_types import accumulator_of
from matrix import ALL, WIDE, matrix
from random_layers import randomized, rows
from tolerance import assert_same_bits

from mha_native import CausalDecoder, Decoder, Encoder

pytestmark = matrix(dtype=ALL)

SIZES = {"num_layers": 3, "embed_dim": 24, "num_heads": 4, "feedforward_dim": 40}
STACKS: dict[str, type[Any]] = {"encoder": Encoder, "causal decoder": CausalDecoder, "decoder": Decoder}
every_stack = pytest.mark.parametrize("name", STACKS)


def _options(dtype: Any) -> list[dict[str, Any]]:
    slopes, sinks = np.array([0.5, 0.25, 0, -1]), np.array([1, 0, -np.inf, 2])
    table = np.random.default_rng(2).integers(-16, 17, (4, 9)) / 8  # exact in float32
    scores = accumulator_of(np.dtype(dtype))
    return [
        {"window": (2, 1), "sinks": sinks.astype(scores)},
        {},
        {
            "softcap": 0.5,
            "scale": 0.3,
            "alibi_slopes": np.array([slopes, slopes[::-1]], scores),  # one row for each sequence of these tests
            "position_bias": table.astype(scores),
        },
    ]


def _stack(name: str, dtype: Any, layer_options: Any = None, **more: Any) -> Any:
    return randomized(STACKS[name](**SIZES, dtype=dtype, layer_options=layer_options, seed=1, **more))


def _memory(name: str, dtype: Any) -> list[np.ndarray]:
    return [rows((2, 5, 24), dtype, 8)] if name == "decoder" else []


def _one_by_one(stack: Any, x: np.ndarray, *memory: np.ndarray, layer_options: Any, **call: Any) -> np.ndarray:
    if isinstance(stack, CausalDecoder):
        call["is_causal"] = True
    for layer, options in zip(stack.layers, layer_options, strict=True):
        x = layer(x, *memory, **call, **options)
    return x


@matrix(dtype=WIDE, name=STACKS)
def test_each_layer_has_its_own(name: str, isa: str, dtype: Any) -> None:
    options = _options(dtype)
    stack, x, memory = _stack(name, dtype, options), rows((2, 13, 24), dtype), _memory(name, dtype)
    y = stack(x, *memory)
    assert_same_bits(y, _one_by_one(stack, x, *memory, layer_options=options))
    assert not np.array_equal(y, _stack(name, dtype)(x, *memory)), "the options must matter"


@matrix(dtype=WIDE, name=STACKS)
def test_with_options_of_the_call(name: str, dtype: Any) -> None:
    options = _options(dtype)
    stack, x, memory = _stack(name, dtype, options), rows((2, 13, 24), dtype), _memory(name, dtype)
    call = {"key_lengths": np.array([13, 4]), "num_threads": 2}
    expected = _one_by_one(stack, x, *memory, layer_options=options, **call)
    assert_same_bits(stack(x, *memory, **call), expected)


@matrix(dtype=WIDE, name=["encoder", "causal decoder"])
def test_ragged_batches_and_weights(name: str, dtype: Any) -> None:
    options = _options(dtype)
    options[2]["alibi_slopes"] = options[2]["alibi_slopes"][0]
    stack, x = _stack(name, dtype, options), rows((9, 24), dtype)
    offsets = np.array([0, 4, 4, 9])
    expected = _one_by_one(stack, x, layer_options=options, cu_seqlens=offsets)
    assert_same_bits(stack(x, cu_seqlens=offsets), expected)
    _, weights = stack(x, need_weights=True)
    outside = np.abs(np.subtract.outer(np.arange(9), np.arange(9))) > 2
    assert not weights[0][:, outside].any(), "the window of the first layer"
    assert weights[1][:, 8, 0].all(), "and of no other"


@matrix(dtype=WIDE, name=STACKS)
def test_step_by_step(name: str, isa: str, dtype: Any) -> None:
    stack, x, memory = _stack(name, dtype, _options(dtype)), rows((2, 7, 24), dtype), _memory(name, dtype)
    caches, causal = stack.new_caches(2, 7), {"is_causal": True}
    steps = [stack(x[:, t : t + 1], *memory, caches=caches, **causal) for t in range(7)]
    assert_same_bits(np.concatenate(steps, axis=1), stack(x, *memory, **causal))


@every_stack
def test_copies_keep_them(name: str) -> None:
    stack, x, memory = _stack(name, np.float32, _options(np.float32)), rows((2, 6, 24), np.float32), _memory(name, "f4")
    for other in (copy.deepcopy(stack), pickle.loads(pickle.dumps(stack)), stack.astype("float32")):
        assert_same_bits(other(x, *memory), stack(x, *memory))
    assert "layer_options=({'window': (2, 1)" in repr(stack)
    assert stack.quantize("bfloat16").layer_options[2]["softcap"] == 0.5


@every_stack
def test_arrays_follow_the_dtype(name: str) -> None:
    single = _stack(name, np.float32, _options(np.float32))
    x, memory = rows((2, 6, 24), np.float64), _memory(name, np.float64)
    double = single.astype("float64")
    expected = _one_by_one(double, x, *memory, layer_options=_options(np.float64))
    assert_same_bits(double(x, *memory), expected)


@pytest.mark.parametrize(
    ("layer_options", "kind", "words"),
    [
        ([{}], ValueError, ["Encoder: layer_options", "3", "1"]),
        ([{}, {"is_causal": True}, {}], TypeError, ["Encoder: layer_options[1]", "is_causal"]),
        ([{}, {}, {"windows": (1, 1)}], TypeError, ["layer_options[2]", "windows"]),
    ],
)
def test_wrong_options(layer_options: Any, kind: type[Exception], words: list[str]) -> None:
    with pytest.raises(kind) as error:
        Encoder(**SIZES, layer_options=layer_options)
    for word in words:
        assert word in str(error.value), str(error.value)


@every_stack
def test_what_a_call_and_a_layer_both_have(name: str) -> None:
    kind = STACKS[name].__name__
    stack, x, memory = _stack(name, "f4", _options("f4")), rows((2, 6, 24), "f4"), _memory(name, "f4")
    with pytest.raises(ValueError, match=rf"^{kind}: window is given in the call and in layer_options\[0\]"):
        stack(x, *memory, window=(1, 1))
    with pytest.raises(ValueError, match=rf"^{kind}: softcap is given in the call and in layer_options\[2\]"):
        stack(x, *memory, softcap=1.0)


def test_values_are_checked_by_the_call() -> None:
    x = rows((2, 6, 24), "f4")
    with pytest.raises(ValueError, match=r"^Encoder: softcap .*-1"):
        Encoder(**SIZES, layer_options=[{}, {"softcap": -1.0}, {}])(x)
    with pytest.raises(ValueError, match=r"^Encoder: alibi_slopes .*\[H\]"):
        Encoder(**SIZES, layer_options=[{}, {"alibi_slopes": np.ones(3, "f4")}, {}])(x)


def test_a_causal_decoder_is_a_causal_encoder(isa: str, dtype: Any) -> None:
    more = {"norm_first": True, "final_norm": True, "activation": "gelu", "num_kv_heads": 2}
    decoder, encoder = _stack("causal decoder", dtype, **more), _stack("encoder", dtype, **more)
    x = rows((2, 9, 24), dtype)
    assert_same_bits(decoder(x), encoder(x, is_causal=True))
    assert_same_bits(decoder(x, is_causal=False), encoder(x))
    assert list(decoder.state_dict()) == list(encoder.state_dict())


def test_layers_that_read_no_memory() -> None:
    x = rows((2, 6, 24), "f4")
    for module in (_stack("encoder", "f4"), _stack("causal decoder", "f4")):
        with pytest.raises(TypeError, match="positional arguments"):
            module(x, x)
        for name in ("memory", "memory_caches", "memory_lengths"):
            with pytest.raises(
                TypeError, match=f"^{type(module).__name__}: got an unexpected keyword argument '{name}'$"
            ):
                module(x, **{name: x})
        with pytest.raises(TypeError, match=rf"^{type(module).__name__}: memory_dim"):
            type(module)(**SIZES, memory_dim=24)


def test_weights_of_a_decoders_self_attention() -> None:
    stack, x, (memory,) = _stack("decoder", "f4"), rows((2, 6, 24), "f4"), _memory("decoder", "f4")
    y, weights = stack(x, memory, need_weights=True)
    assert_same_bits(y, stack(x, memory))
    _, expected = stack.layers[0].self_attn(x, is_causal=True, need_weights=True)
    assert_same_bits(weights[0], expected)
    _, of_layer = stack.layers[0](x, memory, need_weights=True)
    assert_same_bits(of_layer, expected)

"""Weights in bfloat16, int8 and int4: how they come and go, and what is refused."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from int8_oracle import weights
from tolerance import assert_same_bits

from mha_native import Decoder, Encoder, FeedForward, LayerNorm, MultiHeadAttention

Array = np.ndarray[Any, Any]
F32 = np.float32

WIDE = {"num_kv_heads": 2, "head_dim": 5, "value_head_dim": 3, "kdim": 7, "vdim": 9, "out_dim": 11}
every_format = pytest.mark.parametrize("weight_dtype", ["bfloat16", "int8", "int4"])
MODULES = [
    lambda **more: FeedForward(20, 30, seed=0, **more),
    lambda **more: MultiHeadAttention(24, 4, seed=0, **more),
    lambda **more: MultiHeadAttention(24, 4, **WIDE, add_bias_kv=True, seed=0, **more),
    lambda **more: Encoder(2, 24, 4, 30, final_norm=True, seed=0, **more),
    lambda **more: Decoder(2, 24, 4, 30, memory_dim=10, seed=0, **more),
]
every_module = pytest.mark.parametrize("make", MODULES, ids=["ffn", "mha", "mha-wide", "encoder", "decoder"])


def _run(module: Any) -> Array:
    rng = np.random.default_rng(5)
    if isinstance(module, FeedForward):
        return module(rng.standard_normal((4, module.embed_dim), dtype=F32))
    x = rng.standard_normal((4, module.embed_dim), dtype=F32)
    if isinstance(module, MultiHeadAttention):
        return module(x, *(rng.standard_normal((5, n), dtype=F32) for n in (module.kdim, module.vdim)))
    memory = rng.standard_normal((5, getattr(module, "memory_dim", 1)), dtype=F32)
    return module(x, memory) if isinstance(module, Decoder) else module(x)


@every_format
@every_module
def test_copies_and_states(make: Any, weight_dtype: str) -> None:
    module, plain = make(weight_dtype=weight_dtype), make()
    assert module.weight_dtype == weight_dtype
    assert plain.weight_dtype == "float32"
    quantized = plain.quantize(weight_dtype)
    state, expected = module.state_dict(), _run(module)
    assert not np.array_equal(expected, _run(plain)), "the format has no effect"
    other = make(weight_dtype=weight_dtype)
    other.load_state_dict({name: np.ones_like(x) for name, x in state.items()})
    other.load_state_dict(state)
    from_plain = make(weight_dtype=weight_dtype)
    from_plain.load_state_dict(plain.state_dict())
    copies = quantized, other, from_plain, copy.deepcopy(module), pickle.loads(pickle.dumps(module))
    for each in (*copies, module.quantize(weight_dtype)):
        assert repr(each) == repr(module)
        assert f"weight_dtype='{weight_dtype}'" in repr(each)
        again = each.state_dict()
        assert list(again) == list(state)
        for name, array in state.items():
            assert_same_bits(again[name], array, label=name)
        assert_same_bits(_run(each), expected)


@every_module
def test_a_state_in_int8_holds_integers_and_scales(make: Any) -> None:
    plain, module = make(), make(weight_dtype="int8")
    state, expected = module.state_dict(), plain.state_dict()
    for name, array in expected.items():
        if f"{name}_scale" in state:
            integers, scale = weights(array)
            assert_same_bits(state.pop(name), integers, label=name)
            assert_same_bits(state.pop(f"{name}_scale"), scale, label=name)
        else:
            assert array.ndim != 2, name
            assert_same_bits(state.pop(name), array, label=name)
    assert not state, "nothing else"


@every_module
def test_what_they_stand_for(make: Any) -> None:
    state = make(weight_dtype="int8").state_dict()
    for name, array in make(weight_dtype="int8").quantize("float32").state_dict().items():
        if f"{name}_scale" in state:
            assert_same_bits(array, state[name] * state[f"{name}_scale"][:, None], label=name)


def test_norms_stay_as_they_are(rng: Any) -> None:
    norm = LayerNorm(24)
    x = rng.standard_normal((3, 24), dtype=F32)
    other = norm.quantize("int8")
    assert other is not norm
    assert other.weight_dtype == "float32"
    assert_same_bits(other(x), norm(x))


def test_the_original_stays_as_it_was() -> None:
    encoder = Encoder(1, 24, 4, 30, seed=0)
    before = _run(encoder)
    quantized = encoder.quantize("int8")
    quantized.load_state_dict({name: np.ones_like(x) for name, x in quantized.state_dict().items()})
    assert_same_bits(_run(encoder), before)
    assert encoder.weight_dtype == "float32"


@pytest.mark.parametrize("weight_dtype", [ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16), np.int8, "int8"], ids=str)
def test_formats_go_by_names_and_types(weight_dtype: Any) -> None:
    name = "int8" if weight_dtype in ("int8", np.int8) else "bfloat16"
    assert FeedForward(4, 5, weight_dtype=weight_dtype).weight_dtype == name


@pytest.mark.parametrize("weight_dtype", ["int2", "float64", np.float16, "uint8"], ids=str)
@every_module
def test_other_formats(make: Any, weight_dtype: Any) -> None:
    with pytest.raises(TypeError, match=r"weight_dtype .*float32.*bfloat16.*int8.* got"):
        make(weight_dtype=weight_dtype)
    with pytest.raises(TypeError, match=r"\.quantize: weight_dtype .*float32"):
        make().quantize(weight_dtype)


@every_format
def test_layers_in_float64_have_no_others(weight_dtype: str) -> None:
    with pytest.raises(TypeError, match=r"FeedForward: weight_dtype of a layer in float64 must be 'float64'"):
        FeedForward(4, 5, dtype="float64", weight_dtype=weight_dtype)
    with pytest.raises(TypeError, match=r"Encoder\.quantize: weight_dtype of a layer in float64"):
        Encoder(1, 4, 2, 5, dtype="float64").quantize(weight_dtype)
    assert FeedForward(4, 5, dtype="float64").weight_dtype == "float64"


def _state(**changes: Any) -> dict[str, Array]:
    state = FeedForward(4, 5, weight_dtype="int8").state_dict() | changes
    return {name: x for name, x in state.items() if x is not None}


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"linear1.weight_scale": None}, ValueError, ["missing", "linear1.weight_scale"]),
        ({"linear1.weight": np.ones((5, 4), F32)}, TypeError, ["linear1.weight float32 instead of int8"]),
        ({"linear1.weight_scale": np.ones(5)}, TypeError, ["linear1.weight_scale float64"]),
        ({"linear1.weight_scale": np.ones(4, F32)}, ValueError, ["linear1.weight_scale [4] instead of [5]"]),
        ({"linear1.bias": np.ones(5, np.int8)}, TypeError, ["linear1.bias int8"]),
        ({"linear1.weight_scale": None, "linear2.weight_scale": None}, TypeError, ["float32", "linear1.weight int8"]),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, list) else "",
)
def test_wrong_states(changes: dict[str, Any], kind: type[Exception], words: list[str]) -> None:
    layer = FeedForward(4, 5, seed=0, weight_dtype="int8")
    before = layer.state_dict()
    with pytest.raises(kind) as error:
        layer.load_state_dict(_state(**changes))
    for word in words:
        assert word in str(error.value), str(error.value)
    for name, array in layer.state_dict().items():
        assert_same_bits(array, before[name], label=name)


def test_scales_belong_to_layers_in_int8() -> None:
    with pytest.raises(ValueError, match=r"unexpected: linear1\.weight_scale"):
        FeedForward(4, 5).load_state_dict(_state())

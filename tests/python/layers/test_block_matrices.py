"""Matrices in the blocks of GGUF files: bytes, numbers, and products bit by bit against integers in NumPy."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import numpy as np
import pytest
from block_oracle import FORMATS, numbers_of, product, quantized_rows, random_matrix

import mha_native as mha
from mha_native import _core

F32 = np.float32
every_format = pytest.mark.parametrize("format", FORMATS)


def _normal(rng: Any, *shape: int) -> Any:
    return rng.standard_normal(shape, dtype=F32)


@every_format
def test_numbers_of_any_bytes(format: str, rng: Any) -> None:
    matrix = random_matrix(format, 40, 512, rng, any_scale=True)  # infinities and NaN included
    numbers = matrix.dequantize()
    np.testing.assert_array_equal(numbers, numbers_of(matrix))
    np.testing.assert_array_equal(matrix.dequantize(num_threads=2), numbers)
    np.testing.assert_array_equal(matrix.take(np.array([3, 39, 3])), numbers[[3, 39, 3]])
    for rows, error in (("3", TypeError), (np.array([0.5]), TypeError), (np.array([40]), ValueError)):
        with pytest.raises(error, match=r"BlockMatrix\.take: rows must be "):
            matrix.take(rows)  # type: ignore[arg-type, unused-ignore]
    features, size = _core.block_formats()[format]
    assert matrix.shape == (40, 512)
    assert matrix.nbytes == 40 * 512 // features * size


@every_format
def test_numbers_are_those_of_the_package_gguf(format: str, rng: Any) -> None:
    gguf = pytest.importorskip("gguf")
    matrix = random_matrix(format, 8, 512, rng)
    theirs = gguf.quants.dequantize(matrix.data, gguf.GGMLQuantizationType[format.upper()])
    np.testing.assert_array_equal(matrix.dequantize(), theirs)


@every_format
@pytest.mark.parametrize("out_features", [1, 15, 64, 100])
def test_layers_give_the_bytes_back(format: str, out_features: int, rng: Any) -> None:
    matrix = random_matrix(format, out_features, 512, rng, any_scale=True)
    layer = mha.Linear.from_weights(matrix, _normal(rng, out_features))
    for each in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), layer.astype("float32")):
        returned = each.state_dict()["weight"]
        assert (returned.dtype, returned.in_features, each.weight_dtype) == (format, 512, format)
        np.testing.assert_array_equal(returned.data, matrix.data)
    layer.load_state_dict({"weight": _normal(rng, out_features, 512), "bias": _normal(rng, out_features)})
    assert layer.weight_dtype == "float32"


@every_format
def test_products_have_the_bits_of_integers(format: str, isa: str, rng: Any) -> None:
    matrix, bias = random_matrix(format, 100, 768, rng), _normal(rng, 100)
    x = _normal(rng, 70, 768) * rng.lognormal(0, 2, (70, 1)).astype(F32)
    x[3], x[5, 64] = 0, 1e4
    expected, layer = product(x, matrix, bias), mha.Linear.from_weights(matrix, bias)
    for rows in (1, 2, 3, 5, 8, 30, 70):
        for threads in (1, 2, 3):
            np.testing.assert_array_equal(layer(x[:rows], num_threads=threads), expected[:rows])
    strided = np.repeat(x[:3], 2, axis=1)[:, ::2]
    np.testing.assert_array_equal(layer(strided), expected[:3])


@every_format
def test_products_are_near_those_of_numbers(format: str, rng: Any) -> None:
    matrix, x = random_matrix(format, 64, 1024, rng), _normal(rng, 16, 1024)
    exact = x.astype(float) @ matrix.dequantize().astype(float).T
    error = mha.Linear.from_weights(matrix)(x) - exact
    assert np.linalg.norm(error) < 0.015 * np.linalg.norm(exact)


@every_format
def test_infinities_and_nan_spread(format: str, isa: str, rng: Any) -> None:
    matrix, x = random_matrix(format, 70, 512, rng, any_scale=True), _normal(rng, 9, 512)
    x[2, 7], x[4, 300], x[8] = np.inf, np.nan, -np.inf
    result = mha.Linear.from_weights(matrix)(x)
    tiny = np.finfo(F32).tiny  # sums of subnormal products are 0 in the core
    np.testing.assert_allclose(result, product(x, matrix), rtol=0, atol=1e3 * tiny)
    assert np.isnan(result[[2, 4, 8]]).all()


def test_rows_are_rounded_to_the_nearest_integer() -> None:
    x = np.zeros((1, 64), F32)
    x[0, :5] = [127, 0.5, 1.5, -2.5, -126.5]
    integers, scales = quantized_rows(x, 32)
    assert integers[0, 0, :5].tolist() == [127, 0, 2, -2, -126]
    assert scales[0].tolist() == [1, F32(2.0**-100) / F32(127)]


MIXES = {
    "one": ("q4_k", "q4_k", "q4_k"),
    "k": ("q4_k", "q4_k", "q6_k"),
    "rows of both kinds": ("q4_k", "q8_0", "q5_0"),
    "numbers": ("q6_k", "", "q4_1"),
}


def _matrix(format: str, rows: int, columns: int, rng: Any) -> Any:
    return random_matrix(format, rows, columns, rng) if format else 0.01 * _normal(rng, rows, columns)


def _same(a: Any, b: Any) -> None:
    if isinstance(b, mha.BlockMatrix):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        a, b = a.data, b.data
    np.testing.assert_array_equal(a, b)


def test_a_router_is_in_numbers(rng: Any) -> None:
    part = _matrix("q8_0", 256, 256, rng)
    experts = {f"experts.0.{name}.weight": part for name in ("linear1", "linear2", "gate")}
    router, gate = _matrix("q4_k", 1, 256, rng), _matrix("q6_k", 1, 256, rng)
    shared = {f"shared.{name}.weight": part for name in ("linear1", "linear2", "gate")}
    state = {"router.weight": router, "shared_gate.weight": gate, **experts, **shared}
    layer = mha.Experts.from_weights(state, 1)
    loaded = mha.Experts(256, 256, 1, 1, shared_dim=256, shared_gate=True)
    loaded.load_state_dict(state)
    for each in (layer, loaded):
        formats = each.weight_formats()
        assert formats["router.weight"] == formats["shared_gate.weight"] == "float32"
        assert each.weight_dtype == "q8_0"
        np.testing.assert_array_equal(each.router.state_dict()["weight"], router.dequantize())


def test_each_expert_has_formats_of_its_own(isa: str, num_threads: int, rng: Any) -> None:
    """Each row is the row of its expert. The first expert needs the least scratch memory, and one has numbers."""
    stored = [("float32",) * 3, ("q4_k", "q4_k", "q8_0"), ("q8_0",) * 3, ("q6_k", "float32", "q4_0"), ("q4_k",) * 3]
    state: dict[str, Any] = {"router.weight": rng.standard_normal((len(stored), 256), dtype=np.float32)}
    parts = ("linear1", "linear2", "gate")
    for i, formats in enumerate(stored):
        for part, form in zip(parts, formats, strict=True):
            matrix = _matrix("q8_0" if form == "float32" else form, 256, 256, rng)
            state[f"experts.{i}.{part}.weight"] = matrix.dequantize() if form == "float32" else matrix
    layer = mha.Experts.from_weights(state, 1)
    found = layer.weight_formats()
    assert [tuple(found[f"experts.{i}.{part}.weight"] for part in parts) for i in range(5)] == stored
    x = rng.standard_normal((120, 256), dtype=np.float32)
    chosen = layer.router(x).argmax(-1)
    assert set(chosen) == set(range(5))
    expected = np.stack([layer.experts[i](row) for i, row in zip(chosen, x, strict=True)])
    np.testing.assert_array_equal(layer(x, num_threads=num_threads), expected)
    for row in range(5):
        np.testing.assert_array_equal(layer(x[row], num_threads=num_threads), expected[row])
    loaded = mha.Experts(256, 256, 5, 1)
    loaded.load_state_dict(layer.state_dict())
    for each in (loaded, mha.Experts.from_weights(layer.state_dict(), 1), pickle.loads(pickle.dumps(layer))):
        assert each.weight_formats() == found
        np.testing.assert_array_equal(each(x), expected)


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
@pytest.mark.parametrize("rows", [1, 30])
@pytest.mark.parametrize("activation", ["silu", "swiglu_oai"])  # of which one changes both factors
def test_each_matrix_of_a_feed_forward_has_a_format_of_its_own(
    mix: tuple[str, ...], rows: int, activation: str, isa: str, rng: Any
) -> None:
    gate, up, down = mix
    weights = {
        "linear1.weight": _matrix(up, 512, 256, rng),
        "linear2.weight": _matrix(down, 256, 512, rng),
        "gate.weight": _matrix(gate, 512, 256, rng),
    }
    layer = mha.FeedForward.from_weights(weights, activation=activation)
    assert layer.weight_formats() == {
        "linear1.weight": up or "float32", "linear2.weight": down, "gate.weight": gate
    }  # fmt: skip
    assert layer.weight_dtype == ("q4_k" if len(set(mix)) == 1 else "mixed")
    x = _normal(rng, rows, 256)
    first, second, third = (mha.Linear.from_weights(matrix) for matrix in weights.values())
    hidden = mha.activation(third(x), activation=activation, up=first(x))
    for threads in (1, 2):
        np.testing.assert_array_equal(layer(x, num_threads=threads), second(hidden))
    # As the only expert, with a weight of 1.
    state = {"router.weight": np.ones((1, 256), np.float32)} | {f"experts.0.{k}": v for k, v in weights.items()}
    experts = mha.Experts.from_weights(state, 1, activation=activation)
    np.testing.assert_array_equal(experts(x), second(hidden))
    for name, matrix in pickle.loads(pickle.dumps(layer)).state_dict().items():
        _same(matrix, weights[name])


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
def test_each_projection_of_attention_has_a_format_of_its_own(mix: tuple[str, ...], isa: str, rng: Any) -> None:
    weights: dict[str, Any] = {
        f"{letter}_proj_weight": _matrix(format, 256, 256, rng) for letter, format in zip("qkv", mix, strict=True)
    }
    weights["out_proj.weight"] = random_matrix("q8_0", 256, 256, rng)
    layer = mha.MultiHeadAttention.from_weights(weights, 4)
    x = _normal(rng, 7, 256)
    q, k, v = (
        mha.Linear.from_weights(weights[f"{letter}_proj_weight"])(x).reshape(7, 4, 64).transpose(1, 0, 2)[None]
        for letter in "qkv"
    )
    heads = mha.scaled_dot_product_attention(q, k, v)[0].transpose(1, 0, 2).reshape(7, 256)
    expected = mha.Linear.from_weights(weights["out_proj.weight"])(heads)
    np.testing.assert_array_equal(layer(x), expected)
    cache = layer.new_cache(batch_size=1, capacity=8)
    steps = [layer(x[None, i : i + 1], cache=cache, is_causal=True)[0, 0] for i in range(7)]
    np.testing.assert_array_equal(np.stack(steps), layer(x, is_causal=True))
    other = mha.MultiHeadAttention.from_weights(layer.state_dict(), 4)
    for each in (other, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        np.testing.assert_array_equal(each(x), expected)
        assert each.weight_formats() == layer.weight_formats()
    stacked = len(set(mix)) == 1
    assert ("in_proj_weight" in layer.state_dict()) == ("in_proj_weight" in layer.weight_formats()) == stacked


def test_other_formats_are_made_of_the_numbers(rng: Any) -> None:
    weights = {
        "linear1.weight": random_matrix("q4_k", 256, 256, rng),
        "linear2.weight": random_matrix("q6_k", 256, 256, rng),
    }
    layer = mha.FeedForward.from_weights(weights)
    numbers = {name: matrix.dequantize() for name, matrix in weights.items()}
    x = _normal(rng, 5, 256)
    for target in ("float32", "int8", "bfloat16"):
        expected = mha.FeedForward.from_weights(numbers, weight_dtype=target)
        for each in (layer.quantize(target), mha.FeedForward.from_weights(weights, weight_dtype=target)):
            assert each.weight_dtype == target
            np.testing.assert_array_equal(each(x), expected(x))
    for each in (layer.astype("float64"), mha.FeedForward.from_weights(weights, dtype="float64")):
        wide = mha.FeedForward.from_weights({name: x.astype(float) for name, x in numbers.items()})
        np.testing.assert_array_equal(each(x.astype(float)), wide(x.astype(float)))
    mixed = mha.FeedForward(256, 256, bias=False, weight_dtype="int8", seed=0)
    state = mixed.state_dict()
    mixed.load_state_dict({name: state[name] for name in state if name.startswith("linear1")} | {
        "linear2.weight": weights["linear2.weight"]
    })  # fmt: skip
    assert mixed.weight_formats() == {"linear1.weight": "int8", "linear2.weight": "q6_k"}
    assert set(mixed.state_dict()) == {"linear1.weight", "linear1.weight_scale", "linear2.weight"}


def _block(rows: int = 2, size: int = 18, format: Any = "q4_0", in_features: int = 32) -> mha.BlockMatrix:
    return mha.BlockMatrix(np.zeros((rows, size), np.uint8), format, in_features)


def _core_linear(size: int, format: str) -> Any:
    return _core.Linear(((np.zeros((2, size), np.int8), format), None, None), "")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: _block(format="q9_9"), ValueError, "dtype must be one of 'q4_0', 'q4_1'"),
        (lambda: mha.BlockMatrix(np.zeros((2, 18), np.int8), "q4_0", 32), TypeError, "2 axes; got int8 [2, 18]"),
        (lambda: mha.BlockMatrix([[1]], "q4_0", 32), TypeError, "uint8 with 2 axes; got list"),  # type: ignore[arg-type]
        (lambda: _block(in_features=48), ValueError, "a multiple of 32 in q4_0; got 48"),
        (lambda: _block(2, 144, "q4_k", 128), ValueError, "a multiple of 256 in q4_k; got 128"),
        (lambda: _block(2, 17), ValueError, "row of 18 bytes for 32 features in q4_0; got [2, 17]"),
        (lambda: _block(0), ValueError, "at least 1 row of 18 bytes"),
        (lambda: mha.Linear(32, 2, weight_dtype="q4_0"), TypeError, "must be 'float32' or"),
        (lambda: mha.Linear(32, 2).quantize("q4_0"), TypeError, "must be 'float32' or"),
        (
            lambda: mha.Linear(32, 2, bias=False, dtype="float64").load_state_dict({"weight": _block()}),
            TypeError,
            "a BlockMatrix needs a layer in float32, and the layer is float64: weight",
        ),
        (
            lambda: mha.Linear(64, 2, bias=False).load_state_dict({"weight": _block()}),
            ValueError,
            "weight [2, 32] instead of [2, 64]",
        ),
        (
            lambda: mha.Linear.from_weights(_block()).forward_and_record(np.ones((1, 32), F32)),
            TypeError,
            "got 'q4_0' in the layer",
        ),
        (lambda: _core_linear(17, "q4_0"), ValueError, "whole blocks of 18 bytes"),
        (lambda: _core_linear(18, ""), TypeError, "one floating-point dtype"),
    ],
)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        call()

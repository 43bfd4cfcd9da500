"""What is refused: the kind of error, the words it says, and that nothing was done before it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import mha_native
from mha_native import _core

F32 = np.float32


def _array(*shape: int, dtype: Any = F32) -> np.ndarray:
    return np.ones(shape, dtype)


def _good() -> dict[str, Any]:
    """A call without a fault: B 2, H 4, Hk 2, Tq 5, Tk 7, D 8, Dv 6."""
    return {"query": _array(2, 4, 5, 8), "key": _array(2, 2, 7, 8), "value": _array(2, 2, 7, 6)}


def _read_only() -> np.ndarray:
    out = _array(2, 4, 5, 6)
    out.flags.writeable = False
    return out


SHAPES = [
    # (argument, its value, words of the message)
    ("query", _array(8), "[8]"),
    ("query", _array(1, 2, 4, 5, 8), "[1, 2, 4, 5, 8]"),
    ("key", _array(8), "[8]"),
    ("key", _array(3, 2, 7, 8), "batch"),
    ("key", _array(2, 2, 7, 9), "head_dim"),
    ("key", _array(2, 3, 7, 8), "heads"),
    ("key", _array(2, 0, 7, 8), "heads"),
    ("key", _array(2, 8, 7, 8), "heads"),
    ("value", _array(6), "[6]"),
    ("value", _array(1, 2, 7, 6), "batch"),
    ("value", _array(2, 1, 7, 6), "heads"),
    ("value", _array(2, 4, 7, 6), "heads"),
    ("value", _array(2, 2, 8, 6), "length"),
    ("out", _array(2, 4, 5, 7), "[2, 4, 5, 7]"),
    ("out", _array(1, 4, 5, 6), "[1, 4, 5, 6]"),
    ("out", _array(4, 5, 6), "[4, 5, 6]"),
    ("out", _array(1, 2, 4, 5, 6), "[1, 2, 4, 5, 6]"),
    ("out", _read_only(), "writ"),
]


def _message(error: pytest.ExceptionInfo[Exception], function: str, argument: str) -> str:
    message = str(error.value)
    assert re.match(rf"{function}\b", message), f"names the function first: {message}"
    assert re.search(rf"\b{argument}\b", message), f"names the argument: {message}"
    assert "\n" not in message, "is one sentence"
    return message


def _shape(array: np.ndarray) -> str:
    return str(list(array.shape))


@pytest.mark.parametrize(("argument", "array", "words"), SHAPES, ids=lambda x: getattr(x, "shape", x))
def test_wrong_shapes(argument: str, array: np.ndarray, words: str) -> None:
    arguments = _good() | {argument: array}
    with pytest.raises(ValueError, match=rf"\b{argument}\b") as error:
        mha_native.scaled_dot_product_attention(**arguments)
    message = _message(error, "scaled_dot_product_attention", argument)
    assert words in message, message
    for name in {"query", "key", "value", argument}:
        assert f"{name} {_shape(arguments[name])}" in message, f"the shape of {name}: {message}"


@pytest.mark.parametrize(
    "mask", [_array(6), _array(4, 7), _array(5, 2), _array(3, 1, 5, 7), _array(2, 3, 5, 7)], ids=lambda x: str(x.shape)
)
@pytest.mark.parametrize("function", ["scaled_dot_product_attention", "attention_weights"])
def test_masks_that_do_not_broadcast(function: str, mask: np.ndarray) -> None:
    arguments = _good() | {"attn_mask": mask}
    if function == "attention_weights":
        del arguments["value"]
    with pytest.raises(ValueError, match="broadcast") as error:
        getattr(mha_native, function)(**arguments)
    message = _message(error, function, "attn_mask")
    assert _shape(mask) in message, message
    assert "[2, 4, 5, 7]" in message, message


def test_masks_of_too_many_axes() -> None:
    with pytest.raises(ValueError, match=r"attn_mask.*axes.*attn_mask \[1, 1, 1, 5, 7\]"):
        mha_native.scaled_dot_product_attention(**_good(), attn_mask=_array(1, 1, 1, 5, 7))


WRONG_DTYPES = [
    "int32",
    "int64",
    "uint8",
    "bool",
    "complex64",
    "object",
    "U1",
    "float16",
    "longdouble",
    "datetime64[s]",
]


@pytest.mark.parametrize("scale", [-1e300, 1e300, 1.8e38, -1.8e38])
def test_a_scale_that_scores_cannot_have(scale: float) -> None:
    arrays = _good()
    with pytest.raises(ValueError, match=r"^scaled_dot_product_attention: scale must be .* largest float32") as error:
        mha_native.scaled_dot_product_attention(**arrays, scale=scale)
    assert f"{scale:g}" in str(error.value)
    layer = mha_native.MultiHeadAttention(8, 2, seed=0)
    with pytest.raises(ValueError, match=r"^MultiHeadAttention: scale must be"):
        layer(np.ones((3, 8), np.float32), scale=scale)
    in_double = {name: array.astype(np.float64) for name, array in arrays.items()}
    assert np.isfinite(mha_native.scaled_dot_product_attention(**in_double, scale=scale)).all()


OPTIONAL_SHAPES = {
    "attn_mask": (5, 7),
    "alibi_slopes": (4,),
    "position_bias": (4, 5),
    "sinks": (4,),
    "out": (2, 4, 5, 6),
}


@pytest.mark.parametrize("argument", ["query", "key", "value", *OPTIONAL_SHAPES])
@pytest.mark.parametrize("dtype", [*WRONG_DTYPES, "float64"])
def test_wrong_dtypes(argument: str, dtype: str) -> None:
    if (argument, dtype) == ("attn_mask", "bool"):
        dtype = "int8"  # a boolean mask is right, a byte is not
    shape = OPTIONAL_SHAPES.get(argument) or _good()[argument].shape
    arguments = _good() | {argument: np.zeros(shape, dtype)}
    with pytest.raises(TypeError) as error:
        mha_native.scaled_dot_product_attention(**arguments)
    message = str(error.value)
    assert message.startswith("scaled_dot_product_attention: "), message
    assert "\n" not in message
    for name, array in arguments.items():
        assert f"{name} {array.dtype}" in message, f"the dtype of {name}: {message}"


@pytest.mark.parametrize("argument", ["query", "key", "value", *OPTIONAL_SHAPES])
def test_foreign_byte_order(argument: str) -> None:
    shape = OPTIONAL_SHAPES.get(argument) or _good()[argument].shape
    swapped = np.zeros(shape, np.dtype(F32).newbyteorder())
    with pytest.raises(TypeError) as error:
        mha_native.scaled_dot_product_attention(**(_good() | {argument: swapped}))
    assert str(swapped.dtype) in _message(error, "scaled_dot_product_attention", argument)


@pytest.mark.parametrize("argument", ["query", "key", "value", "key_lengths", *OPTIONAL_SHAPES])
@pytest.mark.parametrize("thing", [[[1.0, 2.0]], "text", 3.5], ids=lambda x: type(x).__name__)
def test_things_that_are_no_arrays(argument: str, thing: object) -> None:
    with pytest.raises(TypeError) as error:
        mha_native.scaled_dot_product_attention(**(_good() | {argument: thing}))
    assert type(thing).__name__ in _message(error, "scaled_dot_product_attention", argument)


VALUES = [
    ("key_lengths", np.array([7, 8]), ValueError),
    ("key_lengths", np.array([-1, 7]), ValueError),
    ("key_lengths", np.array([7]), ValueError),
    ("key_lengths", np.array([7, 7, 7]), ValueError),
    ("key_lengths", np.array([[7, 7]]), ValueError),
    ("key_lengths", np.array(7), ValueError),
    ("key_lengths", np.array([2**63, 7], np.uint64), ValueError),
    ("key_lengths", np.array([7.0, 7.0]), TypeError),
    ("key_lengths", np.array([True, True]), TypeError),
    ("key_lengths", np.array([7, 7], np.dtype(np.int64).newbyteorder()), TypeError),
    ("query_offset", np.array([1]), ValueError),
    ("query_offset", np.array([[1, 2]]), ValueError),
    ("query_offset", np.array([1.0, 2.0]), TypeError),
    ("query_offset", 1.0, TypeError),
    ("query_offset", True, TypeError),
    ("query_offset", "1", TypeError),
    ("query_offset", 2**64, ValueError),
    ("window", (1,), TypeError),
    ("window", (1, 2, 3), TypeError),
    ("window", 3, TypeError),
    ("window", "ab", TypeError),
    ("window", (1.0, 2), TypeError),
    ("window", (-2, 0), ValueError),
    ("window", (0, -5), ValueError),
    ("scale", "1", TypeError),
    ("scale", 1j, TypeError),
    ("scale", np.ones(2), TypeError),
    ("scale", True, TypeError),
    ("scale", np.nan, ValueError),
    ("scale", np.inf, ValueError),
    ("softcap", 0, ValueError),
    ("softcap", 0.0, ValueError),
    ("softcap", -0.0, ValueError),
    ("softcap", -50.0, ValueError),
    ("softcap", np.inf, ValueError),
    ("softcap", -np.inf, ValueError),
    ("softcap", np.nan, ValueError),
    ("softcap", True, TypeError),
    ("softcap", "50", TypeError),
    ("softcap", np.ones(4, F32), TypeError),
    ("is_causal", 1, TypeError),
    ("is_causal", None, TypeError),
    ("return_lse", "yes", TypeError),
    ("num_threads", 0, ValueError),
    ("num_threads", -1, ValueError),
    ("num_threads", 1.5, TypeError),
]


@pytest.mark.parametrize(("argument", "value", "kind"), VALUES, ids=lambda x: re.sub(r"\s+", "", repr(x))[:40])
def test_wrong_values(argument: str, value: object, kind: type[Exception]) -> None:
    out = np.full((2, 4, 5, 6), 3, F32)
    with pytest.raises(kind) as error:
        mha_native.scaled_dot_product_attention(**_good(), **{argument: value}, out=out)
    assert type(error.value) is kind
    _message(error, "scaled_dot_product_attention", argument)
    assert (out == 3).all(), "work was done before the error"
    if argument != "return_lse":
        arguments = {name: array for name, array in _good().items() if name != "value"}
        with pytest.raises(kind) as error:
            mha_native.attention_weights(**arguments, **{argument: value})
        _message(error, "attention_weights", argument)


@pytest.mark.parametrize("function", ["scaled_dot_product_attention", "attention_weights"])
@pytest.mark.parametrize(
    "shape", [(), (5,), (0, 5), (1, 5), (2, 5), (5, 5), (4, 0), (4, 2), (4, 4), (1, 4, 5)], ids=str
)
def test_an_odd_number_of_biases_for_each_query_head(function: str, shape: tuple[int, ...]) -> None:
    arguments = _good() | {"position_bias": np.ones(shape, F32)}
    if function == "attention_weights":
        del arguments["value"]
    with pytest.raises(ValueError, match=r"\bposition_bias must") as error:
        getattr(mha_native, function)(**arguments)
    message = _message(error, function, "position_bias")
    assert f"position_bias {list(shape)}" in message
    if len(shape) == 2:
        assert "position_bias must be [H, 2 R + 1] = [4, an odd number]; got" in message


@pytest.mark.parametrize(
    ("argument", "shape"),
    [(name, shape) for name in ("alibi_slopes", "sinks") for shape in [(), (0,), (1,), (2,), (5,), (4, 1), (3, 4)]]
    + [("sinks", (1, 4)), ("sinks", (2, 4)), ("alibi_slopes", (1, 2, 4)), ("alibi_slopes", (2, 1))],
    ids=str,
)
@pytest.mark.parametrize("function", ["scaled_dot_product_attention", "attention_weights"])
def test_one_number_for_each_query_head(function: str, shape: tuple[int, ...], argument: str) -> None:
    # Not for each key-value head, of which there are 2, and no broadcasting.
    result = np.full((2, 4, 5, 6 if function == "scaled_dot_product_attention" else 7), 3, F32)
    arguments = _good() | {argument: np.ones(shape, F32), "out": result}
    if function == "attention_weights":
        del arguments["value"]
    with pytest.raises(ValueError, match=rf"\b{argument} must") as error:
        getattr(mha_native, function)(**arguments)
    message = _message(error, function, argument)
    assert f"{argument} {list(shape)}" in message
    if len(shape) == 1 and argument == "alibi_slopes":
        assert "alibi_slopes must be [H] = [4] or [B, H] = [2, 4]; got" in message
    assert (result == 3).all()


@pytest.mark.parametrize(
    "fault",
    [
        {"query": _array(2, 4, 5, 9)},
        {"key": _array(2, 2, 7, 8, dtype=np.float64)},
        {"value": _array(2, 2, 6, 6)},
        {"attn_mask": _array(6, 7)},
    ],
    ids=lambda fault: next(iter(fault)),
)
def test_nothing_is_written_before_an_error(fault: dict[str, np.ndarray]) -> None:
    out = np.full((2, 4, 5, 6), 3, F32)
    with pytest.raises((TypeError, ValueError)):
        mha_native.scaled_dot_product_attention(**(_good() | fault), out=out)
    assert (out == 3).all()


@pytest.mark.parametrize("shape", [(2, 4, 5, 6), (2, 4, 7, 7), (4, 5, 7)])
def test_weights_into_a_wrong_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"attention_weights") as error:
        mha_native.attention_weights(_array(2, 4, 5, 8), _array(2, 2, 7, 8), out=_array(*shape))
    assert str(list(shape)) in str(error.value)


def test_a_masked_array_is_refused() -> None:
    # Its mask would be ignored without a word.
    query = np.ma.masked_array(_good()["query"], mask=True)
    with pytest.raises(TypeError, match=r"query .*MaskedArray"):
        mha_native.scaled_dot_product_attention(**(_good() | {"query": query}))


def test_arguments_after_the_mask_are_named() -> None:
    with pytest.raises(TypeError, match="positional"):
        mha_native.scaled_dot_product_attention(*_good().values(), None, True)  # type: ignore[misc]
    with pytest.raises(TypeError, match="softmax"):
        mha_native.scaled_dot_product_attention(**_good(), softmax=True)  # type: ignore[call-arg]


@pytest.mark.parametrize("keyword", ["softmax", "positions"])
@pytest.mark.parametrize("function", ["attention_weights", "attention_statistics"])
def test_unknown_options(function: str, keyword: str) -> None:
    with pytest.raises(TypeError, match=f"^{function}: got an unexpected keyword argument '{keyword}'$"):
        getattr(mha_native, function)(_array(5, 8), _array(7, 8), is_causal=True, **{keyword: None})


def test_an_unknown_option_of_a_ragged_batch() -> None:
    offsets = np.array([0, 5])
    arrays = [_array(5, 4, 8), _array(5, 2, 8), _array(5, 2, 6), offsets, offsets]
    with pytest.raises(TypeError, match=r"^scaled_dot_product_attention_varlen: got an unexpected .* 'softmax'$"):
        mha_native.scaled_dot_product_attention_varlen(*arrays, softmax=True)  # type: ignore[call-arg]


def test_the_core_knows_its_options() -> None:
    query, key = _array(5, 8), _array(7, 8)
    expected = mha_native.attention_weights(query, key, is_causal=True)
    # A name that is made at run time is another object than that in the table of the core.
    for name in ("is_causal", "".join(["is_", "causal"])):
        weights = _core.attention_weights(query, key, {name: True}, "weights", None, None)  # type: ignore[misc]
        np.testing.assert_array_equal(weights, expected)
    for name in ("causal", "query_offsets", "window_left", "num_threads", 3):
        with pytest.raises(TypeError, match=f"attention_weights: '?{name}'? is no score option"):
            _core.attention_weights(query, key, {name: 1}, "weights", None, None)  # type: ignore[misc]


def test_a_result_too_large_for_memory() -> None:
    # A result of 8 EB, from inputs of a few bytes.
    query = np.broadcast_to(_array(1, 1, 1, 1), (2**20, 2**20, 2**10, 1))
    key = np.broadcast_to(_array(1, 1, 1, 1), (2**20, 1, 1, 1))
    value = np.broadcast_to(_array(1, 1, 1, 1), (2**20, 1, 1, 2**11))
    with pytest.raises((MemoryError, ValueError)):
        mha_native.scaled_dot_product_attention(query, key, value)

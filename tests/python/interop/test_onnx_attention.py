"""onnx_attention against the operator as its specification has it, and against ONNX's own cases where it is."""

from __future__ import annotations

import re
import warnings
import zlib
from typing import Any

import numpy as np
import onnx_operator
import pytest
import tolerance
from element_types import BFLOAT16, limits
from matrix import ALL, matrix
from tolerance import assert_close, assert_same_bits

import mha_native
from mha_native.interop.onnx import onnx_attention

pytestmark = matrix(dtype=ALL)

SIZES = {"B": 2, "H": 4, "Hk": 2, "Tq": 5, "Tk": 70, "P": 0, "D": 8, "Dv": 6}

# Name: sizes that differ from SIZES, attributes, and inputs: "mask" as its kind and shape, "lengths" of the batch.
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "one-head-group": {"Hk": 4},
    "one-kv-head": {"Hk": 1},
    "causal": {"is_causal": 1},
    "causal-more-queries": {"is_causal": 1, "Tq": 9, "Tk": 4},
    "scale": {"scale": 0.7},
    "scale-zero": {"scale": 0.0},
    "softcap": {"softcap": 1.5},
    "softcap-mask": {"softcap": 0.5, "mask": ("boolean", "B1QK")},
    "softcap-additive": {"softcap": 0.5, "mask": ("additive", "HQK")},
    "past": {"P": 60, "Tk": 5},
    "past-causal": {"P": 60, "Tk": 5, "is_causal": 1},
    "past-causal-longer-query": {"P": 3, "Tk": 2, "Tq": 9, "is_causal": 1},
    "past-empty": {"P": 0, "Tk": 5, "past": True, "is_causal": 1},
    "past-mask": {"P": 60, "Tk": 5, "mask": ("additive", "QK"), "is_causal": 1},
    "past-window": {"P": 60, "Tk": 5, "left_window_size": 7, "right_window_size": 1},
    "lengths": {"lengths": (31, 70)},
    "lengths-zero": {"lengths": (0, 7)},
    "lengths-causal": {"lengths": (31, 70), "is_causal": 1},
    "lengths-causal-negative-offset": {"lengths": (3, 0), "is_causal": 1},
    "lengths-window": {"lengths": (31, 70), "left_window_size": 9, "right_window_size": 0},
    "lengths-short-mask": {"lengths": (31, 50), "mask": ("boolean", "B1Qk"), "is_causal": 1},
    "window": {"left_window_size": 2, "right_window_size": 1},
    "window-left": {"left_window_size": 0, "Tq": 40},
    "window-right": {"right_window_size": 3, "Tq": 40},
    "window-causal": {"left_window_size": 4, "right_window_size": 4, "is_causal": 1, "Tq": 40},
    "window-everything": {
        "lengths": (31, 66),
        "left_window_size": 30,
        "right_window_size": 2,
        "softcap": 2.0,
        "mask": ("additive", "BHQk"),
        "is_causal": 1,
        "scale": 0.4,
    },
    **{
        f"{kind}-{axes}": {"mask": (kind, axes)}
        for kind in ("boolean", "additive")
        for axes in ("K", "QK", "1K", "HQK", "1QK", "BHQK", "B1QK", "B11K", "1H1K")
    },
    # k: shorter than Tk; 1 at the end: one key, and no broadcast.
    **{
        f"{kind}-short-{axes}": {"mask": (kind, axes)}
        for kind in ("boolean", "additive")
        for axes in ("k", "Qk", "BHQk", "Q1", "B1Q1")
    },
    "nothing-seen": {"mask": ("nothing", "B1QK")},
}


def _make(name: str, dtype: Any, rank: int) -> tuple[list[Any], dict[str, Any]]:
    """Inputs and attributes of a case."""
    row = dict(CASES[name])
    B, H, Hk, Tq, Tk, P, D, Dv = (row.pop(axis, size) for axis, size in SIZES.items())
    rng = np.random.default_rng(zlib.crc32(name.encode()))

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(dtype)

    inputs: list[Any] = [normal(B, H, Tq, D), normal(B, Hk, Tk, D), normal(B, Hk, Tk, Dv), None, None, None, None]
    if "mask" in row:
        kind, axes = row.pop("mask")
        sizes = {"B": B, "H": H, "Q": Tq, "K": P + Tk, "k": 53, "1": 1}
        shape = tuple(sizes[axis] for axis in axes)
        inputs[3] = rng.random(shape) < (0 if kind == "nothing" else 0.6)
        if kind == "additive":
            inputs[3] = np.where(inputs[3], normal(*shape), dtype(-np.inf)).astype(dtype)
    if P or row.pop("past", False):
        inputs[4:6] = normal(B, Hk, P, D), normal(B, Hk, P, Dv)
    if "lengths" in row:
        inputs[6] = np.array(row.pop("lengths"), np.int64)
    if rank == 3:
        inputs[:3] = (x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1) for x in inputs[:3])
        row |= {"q_num_heads": H, "kv_num_heads": Hk}
    return inputs, row


def _bounds(inputs: list[Any], attributes: dict[str, Any], dtype: Any) -> tuple[np.ndarray, list[np.ndarray]]:
    """How far Y and each qk_matmul_output may be off, by tolerance.py, whose bias is the operator's whole bias."""
    query, key, value, bias = onnx_operator.prepared(*inputs, **attributes)
    query, key, value = (x.astype(dtype) for x in (query, key, value))
    options = {name: attributes[name] for name in ("scale", "softcap") if name in attributes} | {"attn_mask": bias}
    expected = tolerance.attention(query, key, value, options)
    scores = [tolerance.scores(query, key, options, stage)[1] for stage in ("scaled", "capped", "masked")]
    out = expected.out_bound
    if inputs[0].ndim == 3:
        out = out.swapaxes(1, 2).reshape(*inputs[0].shape[:2], -1)
    return out, [*scores, expected.weights_bound]


def _check(inputs: list[Any], attributes: dict[str, Any], label: str, computed: Any = None) -> None:
    dtype = inputs[0].dtype
    Y, outputs = onnx_operator.attention(*inputs, **attributes)
    _, key, value, _ = onnx_operator.prepared(*inputs, **attributes)
    y_bound, output_bounds = _bounds(inputs, attributes, dtype if computed is None else computed)
    once = float(limits(dtype).eps) if computed is not None else 0.0  # rounded to the dtype of Q at the end
    for mode, (expected, bound) in enumerate(zip(outputs, output_bounds, strict=True)):
        result = onnx_attention(*inputs, qk_matmul_output_mode=mode, **attributes)
        assert [x.dtype for x in result] == [dtype, dtype, value.dtype, dtype]
        bound = bound + once * np.abs(np.nan_to_num(expected, neginf=0))
        assert_close(result[0], Y, y_bound + once * np.abs(Y), label=f"{label} Y")
        assert_same_bits(result[1], key, label=f"{label} present_key")
        assert_same_bits(result[2], value, label=f"{label} present_value")
        assert_close(result[3], expected, bound, label=f"{label} mode {mode}")


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("name", CASES)
def test_the_operator(name: str, rank: int, dtype: Any) -> None:
    inputs, attributes = _make(name, dtype, rank)
    _check(inputs, attributes, name)


@pytest.mark.parametrize("rank", [3, 4])
def test_every_instruction_set(rank: int, isa: str, dtype: Any) -> None:
    inputs, attributes = _make("window-everything", dtype, rank)
    _check(inputs, attributes, isa)


@pytest.mark.parametrize("name", ["plain", "window-everything", "past-mask"])
def test_softmax_in_double_precision(name: str) -> None:
    inputs, attributes = _make(name, np.float32, 4)
    _check(inputs, attributes | {"softmax_precision": 11}, name, computed=np.float64)
    for precision in (1, 10, 16):
        _check(inputs, attributes | {"softmax_precision": precision}, name)


@pytest.mark.parametrize("rank", [3, 4])
def test_values_of_another_dtype(rank: int) -> None:
    inputs, attributes = _make("past-mask", np.float32, rank)
    inputs[2], inputs[5] = inputs[2].astype(np.float64), inputs[5].astype(np.float64)
    _check(inputs, attributes, "V in float64", computed=np.float64)


def test_a_masked_row_is_zero_whatever_is_behind_the_mask(dtype: Any) -> None:
    inputs, attributes = _make("lengths-causal-negative-offset", dtype, 4)
    for x in inputs[1:3]:
        x[0, :, 3:] = np.nan
        x[1] = np.nan
    for mode in (2, 3):
        Y, _, _, qk = onnx_attention(*inputs, qk_matmul_output_mode=mode, **attributes)
        assert not Y[1].any()
        assert not Y[0, :, :2].any()
        assert np.isfinite(Y).all()
        assert (qk[1] == (0 if mode == 3 else -np.inf)).all()
    for mode in (0, 1):  # not masked yet
        assert np.isnan(onnx_attention(*inputs, qk_matmul_output_mode=mode, **attributes)[3][1]).all()


@pytest.mark.parametrize("rank", [3, 4])
def test_memory_as_it_lies(rank: int, dtype: Any) -> None:
    inputs, attributes = _make("past-mask", dtype, rank)
    expected = onnx_attention(*inputs, **attributes)
    views = [x if x is None else np.repeat(x, 2, -1)[..., ::2] for x in inputs]
    for x in views:
        if x is not None:
            x.flags.writeable = False
    for actual, wanted in zip(onnx_attention(*views, **attributes), expected, strict=True):
        assert_same_bits(actual, wanted)


@pytest.mark.parametrize("empty", ["B", "Tq", "Tk"])
@pytest.mark.parametrize("rank", [3, 4])
def test_empty_sizes(empty: str, rank: int, dtype: Any) -> None:
    B, Tq, Tk = (0 if axis == empty else 3 for axis in ("B", "Tq", "Tk"))
    Q, K, V = np.ones((B, 4, Tq, 8), dtype), np.ones((B, 2, Tk, 8), dtype), np.ones((B, 2, Tk, 6), dtype)
    mask, counts = np.ones((Tq, 1), bool), {"q_num_heads": 4, "kv_num_heads": 2} if rank == 3 else {}
    if rank == 3:
        Q, K, V = (x.swapaxes(1, 2).reshape(*x.shape[::2], x.shape[1] * x.shape[3]) for x in (Q, K, V))
    Y, present_key, present_value, qk = onnx_attention(Q, K, V, mask, is_causal=1, **counts)
    assert Y.shape == ((B, 4, Tq, 6) if rank == 4 else (B, Tq, 24))
    assert not Y.any()
    assert (present_key.shape, present_value.shape, qk.shape) == ((B, 2, Tk, 8), (B, 2, Tk, 6), (B, 4, Tq, Tk))


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"qk_matmul_output_mode": 4}, ValueError, "qk_matmul_output_mode must be 0, 1, 2 or 3; got 4"),
    ({"softmax_precision": 7}, ValueError, "softmax_precision must be"),
    ({"qk_matmul_output_mode": 2**70}, ValueError, "qk_matmul_output_mode must be"),
    ({"qk_matmul_output_mode": 1.0}, TypeError, "qk_matmul_output_mode must be an integer; got 1.0"),
    ({"qk_matmul_output_mode": None}, TypeError, "qk_matmul_output_mode must be an integer; got None"),
    ({"softmax_precision": "float"}, TypeError, "softmax_precision must be an integer; got 'float'"),
    ({"is_causal": 2}, ValueError, "is_causal must be 0 or 1; got 2"),
    ({"is_causal": "no"}, TypeError, "is_causal must be an integer; got 'no'"),
    ({"is_causal": None}, TypeError, "is_causal must be an integer; got None"),
    ({"is_causal": np.array([1, 0])}, TypeError, "is_causal must be an integer; got array"),
    ({"left_window_size": -2}, ValueError, "left_window_size must be at least -1; got -2"),
    ({"right_window_size": -2}, ValueError, "right_window_size must be at least -1; got -2"),
    ({"left_window_size": 1.5}, TypeError, "left_window_size must be an integer; got 1.5"),
    ({"scale": "1"}, TypeError, "scale must be a real number; got '1'"),
    ({"scale": float("nan")}, ValueError, "scale must be finite; got nan"),
    ({"scale": 10**400}, ValueError, "scale must be finite"),
    ({"scale": True}, TypeError, "scale must be a real number; got True"),
    ({"softcap": -1.0}, ValueError, "softcap must be 0 or above; got -1.0"),
    ({"softcap": None}, TypeError, "softcap must be a real number; got None"),
    ({"softcap": float("inf")}, ValueError, "softcap must be finite; got inf"),
    ({"q_num_heads": 4, "kv_num_heads": 2}, ValueError, "must not be given where Q has four axes"),
    ({"past_key": (2, 2, 3, 8)}, ValueError, "must be given together"),
    ({"past_value": (2, 2, 3, 6)}, ValueError, "must be given together"),
    ({"past_key": (2, 3, 8), "past_value": (2, 2, 3, 6)}, ValueError, "past_key must be [2, 2, P, 8]"),
    ({"past_key": (2, 2, 3, 8), "past_value": (2, 2, 3, 7)}, ValueError, "past_value must be [2, 2, P, 6]"),
    ({"past_key": (2, 2, 3, 8), "past_value": (2, 2, 4, 6)}, ValueError, "past_value must have the length of past_key"),
    ({"K": (2, 70, 16)}, ValueError, "must all have three axes, or all four"),
    ({"K": (2, 3, 70, 8), "V": (2, 3, 70, 6)}, ValueError, "the heads of Q must be a multiple of the heads of K"),
    ({"K": (2, 0, 70, 8), "V": (2, 0, 70, 6)}, ValueError, "the heads of Q must be a multiple of the heads of K"),
    ({"K": (1, 2, 70, 8), "V": (1, 2, 70, 6)}, ValueError, "K must have the batch size of Q, 2"),
    ({"V": (1, 2, 70, 6)}, ValueError, "V must have the batch size of Q, 2"),
    ({"V": (2, 4, 70, 6)}, ValueError, "V must have the heads of K, 2"),
    ({"K": (2, 2, 70, 7)}, ValueError, "the heads of K must be as wide as those of Q, 8"),
    ({"V": (2, 2, 69, 6)}, ValueError, "V must have the length of K, 70"),
    ({"attn_mask": (5, 71)}, ValueError, "attn_mask must broadcast"),
    ({"attn_mask": (2, 5, 70)}, ValueError, "attn_mask must broadcast"),
    ({"attn_mask": (1, 2, 4, 5, 70)}, ValueError, "attn_mask must broadcast"),
    ({"nonpad_kv_seqlen": np.array([3, 71])}, ValueError, "nonpad_kv_seqlen must be from 0 to 70; got 71"),
    ({"nonpad_kv_seqlen": np.array([-1, 70])}, ValueError, "nonpad_kv_seqlen must be from 0 to 70; got -1"),
    ({"nonpad_kv_seqlen": np.array([3, 2**64 - 1], np.uint64)}, ValueError, "nonpad_kv_seqlen must be"),
    ({"nonpad_kv_seqlen": np.array([3])}, ValueError, "nonpad_kv_seqlen must be [B], here [2]; got [1]"),
    ({"nonpad_kv_seqlen": np.array([[3, 5]])}, ValueError, "nonpad_kv_seqlen must be [B], here [2]; got [1, 2]"),
    ({"nonpad_kv_seqlen": np.array([3.0, 5.0])}, TypeError, "nonpad_kv_seqlen must be integers"),
    (
        {"nonpad_kv_seqlen": np.array([3, 5], ">i8")},
        TypeError,
        "nonpad_kv_seqlen must be integers, in native byte order",
    ),
    ({"nonpad_kv_seqlen": [3, 5]}, TypeError, "nonpad_kv_seqlen must be a NumPy array; got list"),
]


@pytest.mark.parametrize(("change", "error", "words"), REFUSED, ids=[words for _, _, words in REFUSED])
def test_refused(change: dict[str, Any], error: type[Exception], words: str, dtype: Any) -> None:
    inputs, _ = _make("plain", dtype, 4)
    call = dict(zip(("Q", "K", "V"), inputs, strict=False))
    call |= {name: np.ones(x, dtype) if isinstance(x, tuple) else x for name, x in change.items()}
    with pytest.raises(error, match=f"^onnx_attention: .*{re.escape(words)}"):
        onnx_attention(**call)


WRONG_ARRAYS = {
    "list": lambda x: x.tolist(),
    "None": lambda _: None,
    "str": lambda _: "Q",
    "masked": np.ma.MaskedArray,
}


@pytest.mark.parametrize("name", ["Q", "K", "V", "attn_mask", "past_key", "past_value"])
@pytest.mark.parametrize("wrong", WRONG_ARRAYS)
def test_what_is_no_array(wrong: str, name: str) -> None:
    inputs, attributes = _make("past-mask", np.float32, 4)
    call = dict(zip(("Q", "K", "V", "attn_mask", "past_key", "past_value"), inputs, strict=False))
    call[name] = WRONG_ARRAYS[wrong](call[name])
    if wrong == "None" and name == "attn_mask":
        return  # which may be missing
    rule = "given together" if wrong == "None" and name.startswith("past") else f"{name} must be a NumPy array; got "
    with pytest.raises((TypeError, ValueError), match=rf"^onnx_attention: .*{rule}"):
        onnx_attention(**call, **attributes)


@pytest.mark.parametrize("kind", [">f4", ">f2", ">f8", "i8", "u1", "bool", "complex64", "V2", "V4", "O", "S4"])
@pytest.mark.parametrize("name", ["V", "Q"])
def test_values_of_a_dtype_that_the_operator_lacks(name: str, kind: str) -> None:
    inputs, attributes = _make("plain", np.float32, 4)
    call = dict(zip(("Q", "K", "V"), inputs, strict=False))
    call[name] = np.zeros(call[name].shape, kind)
    expected = rf"^onnx_attention: {name} must be float32, float64, float16 or bfloat16, in native byte order; got "
    with pytest.raises(TypeError, match=expected):
        onnx_attention(**call, **attributes)


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2", "int4", "uint4"])
def test_values_in_fewer_bits(kind: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    inputs, attributes = _make("plain", np.float32, 4)
    inputs[2] = inputs[2].astype(getattr(ml_dtypes, kind))
    with pytest.raises(TypeError, match=rf"^onnx_attention: V must be float32, .*; got {kind}"):
        onnx_attention(*inputs, **attributes)


@pytest.mark.parametrize("kind", [np.uint64, np.uint32, np.uint8, np.int8, np.int32])
@pytest.mark.parametrize("name", ["lengths-causal-negative-offset", "lengths-window"])
def test_lengths_of_any_integers(name: str, kind: Any) -> None:
    # Of unsigned ones a position before the first key is no large number.
    inputs, attributes = _make(name, np.float32, 4)
    expected = onnx_attention(*inputs, **attributes)
    inputs[6] = inputs[6].astype(kind)
    for actual, wanted in zip(onnx_attention(*inputs, **attributes), expected, strict=True):
        assert_same_bits(actual, wanted)


@pytest.mark.parametrize("rank", [3, 4])
def test_flags_of_python(rank: int) -> None:
    inputs, attributes = _make("causal", np.float32, rank)
    expected = onnx_attention(*inputs, **attributes)
    for flag in (True, np.True_, np.int64(1)):
        for actual, wanted in zip(onnx_attention(*inputs, **attributes | {"is_causal": flag}), expected, strict=True):
            assert_same_bits(actual, wanted)


@pytest.mark.parametrize("change", [{"q_num_heads": 3}, {"q_num_heads": 2.0}, {"kv_num_heads": True}], ids=str)
def test_head_counts_of_other_types(change: dict[str, Any]) -> None:
    inputs, attributes = _make("plain", np.float32, 3)
    with pytest.raises((TypeError, ValueError), match=rf"^onnx_attention: {next(iter(change))} must be"):
        onnx_attention(*inputs, **attributes | change)


def test_a_scale_that_scores_cannot_have() -> None:
    inputs, attributes = _make("plain", np.float32, 4)
    with pytest.raises(ValueError, match=r"^onnx_attention: scale must be .*float32.*; got 1e\+300"):
        onnx_attention(*inputs, **attributes, scale=1e300)


def test_flat_inputs_that_do_not_fit() -> None:
    inputs, _ = _make("plain", np.float32, 3)
    with pytest.raises(
        ValueError, match=r"multiple of the heads of K; got q_num_heads 2, kv_num_heads 4, Q \[2, 5, 32\]"
    ):
        onnx_attention(inputs[0], inputs[0], inputs[0], q_num_heads=2, kv_num_heads=4)


def test_no_cache_beside_lengths(dtype: Any) -> None:
    inputs, _ = _make("past", dtype, 4)
    with pytest.raises(ValueError, match="nonpad_kv_seqlen must not be given with past_key"):
        onnx_attention(*inputs[:6], np.array([3, 5]))


@pytest.mark.parametrize("counts", [(None, 2), (4, None), (3, 2), (4, 5), (0, 2)])
def test_head_counts(counts: tuple[int | None, int | None], dtype: Any) -> None:
    inputs, _ = _make("plain", dtype, 3)
    with pytest.raises(ValueError, match="num_heads must be given, at least 1, and divide the last axis of"):
        onnx_attention(*inputs, q_num_heads=counts[0], kv_num_heads=counts[1])


@pytest.mark.parametrize("name", ["Q", "K", "past_key", "past_value", "attn_mask"])
def test_dtypes(name: str, dtype: Any) -> None:
    inputs, attributes = _make("past-mask", dtype, 4)
    names = ("Q", "K", "V", "attn_mask", "past_key", "past_value")
    call = dict(zip(names, inputs, strict=False))
    for other in (np.float64 if dtype != np.float64 else np.float32, np.int64):
        changed = call | {name: np.nan_to_num(call[name].astype(np.float64), neginf=0).astype(other)}
        with pytest.raises(TypeError, match=f"onnx_attention: .*{np.dtype(other)}"):
            onnx_attention(**changed, **attributes)


def _onnx_cases() -> list[Any]:
    """The cases that ONNX comes with, of one operator each; none without it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from onnx.backend.test.case.node import collect_testcases

            cases = collect_testcases("Attention")
    except ImportError:
        return [pytest.param(None, marks=pytest.mark.skip("onnx is not installed"), id="onnx")]
    operators = [case for case in cases if [node.op_type for node in case.model.graph.node] == ["Attention"]]
    return [pytest.param(case, id=case.name) for case in operators]


def _results(onnx_case: Any, convert: Any = lambda x: x) -> Any:
    """Yield the results that each data set of a case asks for, of converted inputs, with the expected ones."""
    from onnx.helper import get_attribute_value

    node = onnx_case.model.graph.node[0]
    attributes = {attribute.name: get_attribute_value(attribute) for attribute in node.attribute}
    names = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
    for given, expected in onnx_case.data_sets:
        values = iter(given)
        inputs = {name: convert(next(values)) for name, used in zip(names, node.input, strict=False) if used}
        results = onnx_attention(**inputs, **attributes)
        yield [x for x, used in zip(results, node.output, strict=False) if used], expected


@pytest.mark.parametrize("onnx_case", _onnx_cases())
def test_cases_of_onnx(onnx_case: Any) -> None:
    for asked, expected in _results(onnx_case):
        for actual, wanted in zip(asked, expected, strict=True):
            assert actual.dtype == wanted.dtype
            once = float(limits(wanted.dtype).eps)  # of bfloat16 more than what ONNX itself allows
            actual, wanted = actual.astype(np.float64), wanted.astype(np.float64)
            np.testing.assert_allclose(actual, wanted, rtol=max(onnx_case.rtol, 2 * once), atol=onnx_case.atol)


def test_cases_of_onnx_in_bfloat16() -> None:
    """Its expected results are rounded at every step, ours once: see "16-bit types" in docs/numerics.md."""
    pytest.importorskip("onnx")
    wide = {str(np.dtype(BFLOAT16)): np.float64}
    differing = {"baseline": 0, mha_native.available_isas()[-1]: 0, "onnx": 0}
    count = 0
    for parameter in _onnx_cases():
        if not parameter.values[0].name.endswith("_bf16"):
            continue
        ((exact,), (expected,)) = next(
            _results(parameter.values[0], lambda x: x.astype(wide.get(str(x.dtype), x.dtype)))
        )
        rounded = exact.astype(np.float32).astype(BFLOAT16).view(np.int16).astype(int)
        count += exact.size
        results = {"onnx": expected}
        for isa in set(differing) - {"onnx"}:
            with mha_native.use_isa(isa):
                ((results[isa],), _) = next(_results(parameter.values[0]))
        for name, result in results.items():
            steps = np.abs(result.view(np.int16).astype(int) - rounded)
            assert steps.max() <= {"onnx": 2, "baseline": 0}.get(name, 1)
            differing[name] += np.count_nonzero(steps)
    assert count == 5 * 192
    assert differing.pop("onnx") > 0.25 * count
    assert max(differing.values()) < 0.1 * count


def test_the_former_module_warns() -> None:
    from mha_native import compat

    assert "compat" not in mha_native.__all__
    with pytest.warns(DeprecationWarning, match=r"^mha_native\.compat is deprecated; use mha_native\.interop\.onnx$"):
        assert compat.onnx_attention is onnx_attention
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = compat.other

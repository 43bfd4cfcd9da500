"""Memory as it lies: any strides in and out, the same bits; inputs untouched; overlap refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import Case, make_call
from element_types import accumulator_of
from matrix import ALL, matrix
from tolerance import assert_same_bits

from mha_native import attention_weights, scaled_dot_product_attention

pytestmark = matrix(dtype=ALL)

CALL = Case(
    "views", "", B=2, H=4, Hk=2, Tq=37, Tk=101, D=20, Dv=12, mask="boolean BHQK", is_causal=True, query_offset=40
)
Array = np.ndarray[Any, np.dtype[Any]]


def _filled(view: Array, source: Array) -> Array:
    view[...] = source
    return view


def _empty(shape: tuple[int, ...], dtype: Any) -> Array:
    """Filled with a value that would show: NaN, or True."""
    return np.full(shape, np.nan, dtype)  # NaN as a boolean is True


def _transposed(shape: tuple[int, ...], dtype: Any) -> Array:
    batch, heads, length, width = shape
    return _empty((batch, length, heads, width), dtype).swapaxes(1, 2)


def _reversed_axes(shape: tuple[int, ...], dtype: Any) -> Array:
    return _empty(shape[::-1], dtype).T


def _backwards(shape: tuple[int, ...], dtype: Any) -> Array:
    return _empty(shape, dtype)[::-1, ::-1, ::-1, ::-1]


def _every_third(shape: tuple[int, ...], dtype: Any) -> Array:
    return _empty((*shape[:3], 3 * shape[3]), dtype)[..., 1::3]


def _inside(shape: tuple[int, ...], dtype: Any) -> Array:
    return _empty(tuple(n + 3 for n in shape), dtype)[1:-2, 2:-1, 1:-2, 2:-1]


def _off_the_cache_line(shape: tuple[int, ...], dtype: Any) -> Array:
    return _empty((int(np.prod(shape)) + 1,), dtype)[1:].reshape(shape)


LAYOUTS: list[Callable[[tuple[int, ...], Any], Array]] = [
    _transposed,
    _reversed_axes,
    _backwards,
    _every_third,
    _inside,
    _off_the_cache_line,
]
every_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__.strip("_"))


@pytest.mark.parametrize("option", ["alibi_slopes", "sinks"])
def test_strided_numbers_of_each_head(option: str, isa: str, dtype: Any) -> None:
    call = make_call(CALL, dtype)
    kind = accumulator_of(dtype)
    numbers = np.array([0.5, -0.25, 2, 0], kind)
    more = call.options | {option: numbers}
    expected = scaled_dot_product_attention(*call.arrays, **more)
    views = [
        np.array([0.5, 9, -0.25, 9, 2, 9, 0, 9], kind)[::2],
        np.array([0, 2, -0.25, 0.5], kind)[::-1],
        np.array([9, 0.5, -0.25, 2, 0, 9], kind)[1:-1],
    ]
    for view in views:
        view.flags.writeable = False
        more[option] = view
        assert_same_bits(scaled_dot_product_attention(*call.arrays, **more), expected, label=str(view.strides))
    same = call.options | {option: np.full(4, 0.5, kind)}
    repeated = call.options | {option: np.broadcast_to(kind(0.5), 4)}
    assert_same_bits(attention_weights(*call.arrays[:2], **repeated), attention_weights(*call.arrays[:2], **same))


@every_layout
def test_strided_position_bias(layout: Any, isa: str, dtype: Any) -> None:
    call = make_call(CALL, dtype)
    table = np.random.default_rng(5).standard_normal((4, 31)).astype(accumulator_of(dtype))
    view = layout((1, 1, *table.shape), table.dtype)[0, 0]
    view[...] = table
    for tokens in (call.query, call.query[:, :, :1]):  # the latter goes to the kernel for few rows
        options = {name: x for name, x in call.options.items() if name != "attn_mask"}
        given, expected = (attention_weights(tokens, call.key, position_bias=x, **options) for x in (view, table))
        assert_same_bits(given, expected)
        given, expected = (
            scaled_dot_product_attention(tokens, *call.arrays[1:], position_bias=x, **options) for x in (view, table)
        )
        assert_same_bits(given, expected)


@every_layout
@pytest.mark.parametrize("which", ["query", "key", "value", "attn_mask", "all"])
def test_strided_inputs(which: str, layout: Any, isa: str, dtype: Any) -> None:
    call = make_call(CALL, dtype)
    arrays = dict(zip(("query", "key", "value"), call.arrays, strict=True)) | call.options
    expected = scaled_dot_product_attention(**arrays)
    expected_weights = attention_weights(call.query, call.key, **call.options)
    for name in ("query", "key", "value", "attn_mask") if which == "all" else (which,):
        arrays[name] = _filled(layout(arrays[name].shape, arrays[name].dtype), arrays[name])
    assert_same_bits(scaled_dot_product_attention(**arrays), expected)
    arrays.pop("value")
    assert_same_bits(attention_weights(**arrays), expected_weights)


@every_layout
def test_strided_additive_mask(layout: Any, isa: str, dtype: Any) -> None:
    call = make_call(Case("views-additive", "", H=2, Tq=40, Tk=101, mask="additive BHQK"), dtype)
    expected = scaled_dot_product_attention(*call.arrays, **call.options)
    mask = call.options["attn_mask"]
    mask = _filled(layout(mask.shape, mask.dtype), mask)
    assert_same_bits(scaled_dot_product_attention(*call.arrays, attn_mask=mask), expected)


@every_layout
def test_strided_out(layout: Any, isa: str, dtype: Any) -> None:
    call = make_call(CALL, dtype)
    expected = scaled_dot_product_attention(*call.arrays, **call.options)
    out = layout(expected.shape, dtype)
    whole = out
    while whole.base is not None:
        whole = whole.base
    inside = np.count_nonzero(np.isnan(whole)) - out.size
    assert scaled_dot_product_attention(*call.arrays, out=out, **call.options) is out
    assert_same_bits(out, expected)
    assert np.count_nonzero(np.isnan(whole)) == inside, "memory between the elements of out was written"


def test_stride_zero_inputs(isa: str, dtype: Any) -> None:
    call = make_call(Case("broadcast", "", B=1, H=1, Tq=20, Tk=70), dtype)
    query, key, value = (np.broadcast_to(x, (3, 4, *x.shape[2:])) for x in call.arrays)
    out = scaled_dot_product_attention(query, key, value)
    expected = scaled_dot_product_attention(*call.arrays)
    assert_same_bits(out, np.broadcast_to(expected, out.shape).copy())
    one_key = np.broadcast_to(call.key[:, :, :1], call.key.shape)
    assert_same_bits(
        scaled_dot_product_attention(call.query, one_key, call.value),
        scaled_dot_product_attention(call.query, one_key.copy(), call.value),
    )


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (3,), (0, 1), (0, 1, 2), (0, 1, 3)])
@pytest.mark.parametrize("kind", ["boolean", "additive"])
def test_stride_zero_masks(kind: str, axes: tuple[int, ...], isa: str, dtype: Any) -> None:
    call = make_call(Case("broadcast-mask", "", B=2, H=3, Tq=20, Tk=99, mask=f"{kind} BHQK"), dtype)
    mask = call.options["attn_mask"]
    small = mask[tuple(slice(1) if axis in axes else slice(None) for axis in range(4))]
    dense = scaled_dot_product_attention(*call.arrays, attn_mask=np.broadcast_to(small, mask.shape).copy())
    for same in (small, np.broadcast_to(small, mask.shape)):
        assert_same_bits(scaled_dot_product_attention(*call.arrays, attn_mask=same), dense)


@pytest.mark.parametrize("integer", [np.int64, np.int32, np.uint8, np.int16], ids=lambda t: t.__name__)
def test_integer_arrays_of_any_kind(integer: Any, isa: str) -> None:
    call = make_call(Case("integers", "", B=3, Tq=5, Tk=100), np.float32)
    expected = scaled_dot_product_attention(
        *call.arrays, key_lengths=np.array([0, 55, 100]), query_offset=np.array([9, 0, 60]), is_causal=True
    )
    lengths = np.array([0, 1, 55, 1, 100, 1], integer)[::2]
    offsets = np.array([60, 0, 9], integer)[::-1]
    out = scaled_dot_product_attention(*call.arrays, key_lengths=lengths, query_offset=offsets, is_causal=True)
    assert_same_bits(out, expected)


def test_inputs_are_not_modified_and_may_be_read_only(isa: str, dtype: Any) -> None:
    call = make_call(Case("read-only", "", B=2, Tq=20, Tk=70, key_lengths=(3, 70), mask="additive QK"), dtype)
    inputs = [*call.arrays, *(x for x in call.options.values() if isinstance(x, np.ndarray))]
    before = [x.copy() for x in inputs]
    for x in inputs:
        x.flags.writeable = False
    scaled_dot_product_attention(*call.arrays, return_lse=True, **call.options)
    attention_weights(call.query, call.key, **call.options)
    for x, same in zip(inputs, before, strict=True):
        assert_same_bits(x, same)
        assert not x.flags.writeable


def test_one_packed_buffer(isa: str, dtype: Any, rng: np.random.Generator) -> None:
    # Query, key, value and out interleaved: their address ranges overlap, their elements do not.
    packed = rng.standard_normal((2, 40, 4, 3, 8)).astype(dtype)  # [B, T, 4, H, D]
    query, key, value, out = (packed[:, :, i].swapaxes(1, 2) for i in range(4))
    expected = scaled_dot_product_attention(query.copy(), key.copy(), value.copy(), is_causal=True)
    before = packed.copy()
    scaled_dot_product_attention(query, key, value, is_causal=True, out=out)
    assert_same_bits(out.copy(), expected)
    assert_same_bits(packed[:, :, :3].copy(), before[:, :, :3].copy())


@pytest.mark.parametrize("which", ["query", "key", "value", "attn_mask"])
@pytest.mark.parametrize("how", ["same", "shifted", "one element", "backwards"])
def test_out_over_an_input(which: str, how: str, dtype: Any, rng: np.random.Generator) -> None:
    shape = (1, 2, 16, 16)
    memory = rng.standard_normal(4 * 512).astype(dtype)
    arrays = {name: rng.standard_normal(shape).astype(dtype) for name in ("query", "key", "value", "attn_mask")}
    arrays[which] = memory[600 : 600 + 512].reshape(shape)
    first = {"same": 600, "shifted": 603, "one element": 600 + 511, "backwards": 600}[how]
    out = memory[first : first + 512].reshape(shape)
    if how == "backwards":
        out = out[:, :, ::-1]
    before = memory.copy()
    with pytest.raises(ValueError, match=f"(?s)(?=.*out)(?=.*{which})(?=.*overlap)"):
        scaled_dot_product_attention(**arrays, out=out)
    assert_same_bits(memory, before)


def test_out_beside_an_input(dtype: Any, rng: np.random.Generator) -> None:
    memory = rng.standard_normal(1024).astype(dtype)
    query, out = memory[:512].reshape(1, 2, 16, 16), memory[512:].reshape(1, 2, 16, 16)
    expected = scaled_dot_product_attention(query, query, query)
    assert_same_bits(scaled_dot_product_attention(query, query, query, out=out).copy(), expected)


def test_out_over_itself(dtype: Any) -> None:
    call = make_call(Case("itself", "", Tq=6, Tk=6, D=4), dtype)
    row = np.zeros((1, 2, 1, 4), dtype)
    out = np.lib.stride_tricks.as_strided(row, (1, 2, 6, 4), (*row.strides[:2], 0, row.strides[3]))
    with pytest.raises(ValueError, match="out"):
        scaled_dot_product_attention(*call.arrays, out=out)
    sliding = np.lib.stride_tricks.as_strided(
        np.zeros(64, dtype), (1, 2, 6, 4), tuple(row.itemsize * n for n in (0, 24, 2, 1))
    )
    with pytest.raises(ValueError, match="out"):
        scaled_dot_product_attention(*call.arrays, out=sliding)


def test_memory_off_its_alignment(dtype: Any) -> None:
    # A field of a packed record: neither the address nor the strides are multiples of the element size.
    call = make_call(Case("records", "", Tq=6, Tk=20, D=4), dtype)
    records = np.zeros(call.query.shape, [("tag", "i1"), ("x", dtype)])
    records["x"] = call.query
    with pytest.raises(TypeError, match=r"query must be aligned"):
        scaled_dot_product_attention(records["x"], call.key, call.value)

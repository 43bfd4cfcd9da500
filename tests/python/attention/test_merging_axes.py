"""Merged shards of any number of axes, on any number of threads: the rows have the bits that they have alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tolerance import assert_same_bits

from mha_native import merge_attention

Array = np.ndarray[Any, np.dtype[Any]]
SHAPE = (2, 3, 4, 5, 6)


def _shards(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...] = SHAPE) -> tuple[list[Array], list[Array]]:
    outs = [rng.standard_normal(shape).astype(dtype) for _ in range(3)]
    lses = [rng.standard_normal(shape[:-1]).astype(dtype) for _ in range(3)]
    lses[1][1] = -np.inf
    outs[1][1] = np.nan
    return outs, lses


def _as_it_lies(x: Array) -> Array:
    return x


def _with_axes_swapped(x: Array) -> Array:
    """The same array in other memory, in which no two leading axes are one."""
    return np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1)


def _every_other(x: Array) -> Array:
    """The same array in other memory, with a neighbour between its elements that is NaN."""
    wide = np.full((*x.shape, 2), np.nan, x.dtype)
    wide[..., 0] = x
    return wide[..., 0]


LAYOUTS = [_as_it_lies, _with_axes_swapped, _every_other]


@pytest.mark.parametrize("where", ["new", "other", "in place"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("out_layout", LAYOUTS)
def test_more_axes_than_the_core_has(
    layout: Any, out_layout: Any, where: str, dtype: Any, rng: np.random.Generator
) -> None:
    outs, lses = _shards(rng, dtype)
    expected = merge_attention([x.reshape(24, 5, 6) for x in outs], [x.reshape(24, 5) for x in lses])
    outs, lses = [out_layout(outs[0]), *map(layout, outs[1:])], list(map(layout, lses))
    target = {"new": None, "other": out_layout(np.full(SHAPE, np.nan, dtype)), "in place": outs[0]}[where]
    for x in outs[1:] + lses if where == "in place" else outs + lses:
        x.flags.writeable = False
    out, lse = merge_attention(outs, lses, out=target)
    assert target is None or out is target
    assert_same_bits(out.copy(), expected[0].reshape(SHAPE))
    assert_same_bits(lse, expected[1].reshape(SHAPE[:-1]))


@pytest.mark.parametrize("shape", [(2, 0, 3, 4, 5, 6), (2, 3, 4, 5, 0), (1, 1, 1, 1, 1, 1, 1)], ids=str)
def test_many_axes_of_few_elements(shape: tuple[int, ...], dtype: Any) -> None:
    out, lse = merge_attention(np.ones((2, *shape), dtype), np.zeros((2, *shape[:-1]), dtype))
    assert_same_bits(out, np.ones(shape, dtype))
    assert_same_bits(lse, np.full(shape[:-1], np.log(2), dtype))


WRONG = [
    # (what is changed, to what shape, words of the message)
    ("outs", (3, 2, 4, 5, 6), r"outs\[2\] must have the shape \[2, 3, 4, 5, 6\].*got outs\[2\] \[3, 2, 4, 5, 6\]"),
    ("outs", (4, 5, 6), r"outs\[2\] .*\[4, 5, 6\]"),
    ("lses", (3, 2, 4, 5), r"lses\[2\] must have the shape \[2, 3, 4, 5\].*\[3, 2, 4, 5\]"),
    ("lses", (2, 3, 4, 5, 1), r"lses\[2\] .*\[2, 3, 4, 5, 1\]"),
    ("out", (3, 2, 4, 5, 6), r"out must have the shape \[2, 3, 4, 5, 6\].*got out \[3, 2, 4, 5, 6\]"),
    ("out", (24, 5, 6), r"out .*\[24, 5, 6\]"),
]


@pytest.mark.parametrize(("name", "shape", "words"), WRONG, ids=range(len(WRONG)))
def test_shapes_that_do_not_match(
    name: str, shape: tuple[int, ...], words: str, dtype: Any, rng: np.random.Generator
) -> None:
    outs, lses = _shards(rng, dtype)
    call: dict[str, Any] = {"outs": outs, "lses": lses, "out": np.full(SHAPE, 3, dtype)}
    wrong = np.full(shape, 3, dtype)
    if name == "out":
        call["out"] = wrong
    else:
        call[name][2] = wrong
    with pytest.raises(ValueError, match=rf"^merge_attention: {words}"):
        merge_attention(**call)
    assert (call["out"] == 3).all(), "work was done before the error"


def test_one_array_of_more_axes_than_the_others(dtype: Any, rng: np.random.Generator) -> None:
    outs, lses = _shards(rng, dtype, (4, 5, 6))
    with pytest.raises(ValueError, match=r"^merge_attention: outs\[1\] .*\[4, 5, 6\].*\[1, 1, 4, 5, 6\]"):
        merge_attention([outs[0], outs[1][None, None]], lses[:2])
    with pytest.raises(ValueError, match=r"^merge_attention: outs must have at least one shard"):
        merge_attention([], [lses[0][None, None]])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_out_that_must_not_be_written(layout: Any, dtype: Any, rng: np.random.Generator) -> None:
    outs, lses = _shards(rng, dtype)
    before = outs[1].copy()
    with pytest.raises(ValueError, match=r"^merge_attention: out must not overlap outs\[1\]"):
        merge_attention(outs, lses, out=outs[1])
    assert_same_bits(outs[1], before)
    read_only = layout(np.zeros(SHAPE, dtype))
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match=r"^merge_attention: out must be writable"):
        merge_attention(outs, lses, out=read_only)


def test_threads_change_nothing(dtype: Any, rng: np.random.Generator) -> None:
    outs, lses = _shards(rng, dtype, (8, 300, 64))
    one = merge_attention(outs, lses, num_threads=1)
    for threads in (None, 2, 3, 7):
        for actual, expected in zip(merge_attention(outs, lses, num_threads=threads), one, strict=True):
            assert_same_bits(actual, expected, label=f"{threads} threads")


@pytest.mark.parametrize(("threads", "kind"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_numbers_of_threads(threads: Any, kind: type[Exception], rng: np.random.Generator) -> None:
    outs, lses = _shards(rng, np.float32, (4, 5, 6))
    with pytest.raises(kind, match=rf"^merge_attention: num_threads must be .*; got {threads}$"):
        merge_attention(outs, lses, num_threads=threads)


def test_a_shard_that_sees_nothing_is_as_if_it_were_not_there(dtype: Any, rng: np.random.Generator) -> None:
    outs, lses = _shards(rng, dtype, (4, 50, 6))
    with_it = merge_attention([x[1] for x in outs], [x[1] for x in lses])
    without = merge_attention([outs[0][1], outs[2][1]], [lses[0][1], lses[2][1]])
    for actual, expected in zip(with_it, without, strict=True):
        assert_same_bits(actual, expected)

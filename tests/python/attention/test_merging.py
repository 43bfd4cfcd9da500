"""Attention over shards of the keys, merged, is attention over all of them."""

from __future__ import annotations

import re
import tracemalloc
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from element_types import accumulator_of, limits
from hypothesis import given
from hypothesis import strategies as st
from matrix import ALL, WIDE, matrix, nightly
from merging_tolerance import Merged, merged
from strategies import PROPERTY, calls, isas, restrictions
from tolerance import Expected, assert_close, assert_same_bits, attention

import mha_native
from mha_native import merge_attention, scaled_dot_product_attention

pytestmark = matrix(dtype=ALL)

Array = np.ndarray[Any, np.dtype[Any]]
Shard = tuple[Array, Array]


def _part(options: dict[str, Any], first: int, last: int) -> dict[str, Any]:
    """The options of a call for its keys [first, last) alone."""
    part = dict(options)
    if "key_lengths" in options:
        part["key_lengths"] = np.clip(options["key_lengths"] - first, 0, last - first)
    mask = options.get("attn_mask")
    if mask is not None and mask.shape[-1] != 1:
        part["attn_mask"] = mask[..., first:last]
    part["query_offset"] = options.get("query_offset", 0) - first
    return part


def _attend(arrays: list[Array], options: dict[str, Any], cuts: list[int]) -> tuple[list[Shard], list[Expected]]:
    """Out and lse of each shard of the keys, and what the oracle says of it."""
    query, key, value = arrays
    shards, expected = [], []
    for first, last in pairwise(cuts):
        part = (query, key[:, :, first:last], value[:, :, first:last])
        of_part = _part(options, first, last)
        if shards:
            of_part.pop("sinks", None)  # they count once
        shards.append(scaled_dot_product_attention(*part, return_lse=True, **of_part))
        expected.append(attention(*part, of_part))
    return shards, expected


def _merge(shards: list[Shard]) -> Shard:
    out, lse = merge_attention([shard[0] for shard in shards], [shard[1] for shard in shards])
    return out, lse


def _assert_merged(actual: Shard, whole: Expected | Merged, bound: Merged) -> None:
    assert_close(actual[0], whole.out, bound.out_bound, label="out")
    assert_close(actual[1], whole.lse, bound.lse_bound, label="lse")


def _random_shards(rng: np.random.Generator, count: int, shape: tuple[int, ...], dtype: Any) -> list[Shard]:
    """Results that shards might have, with weights from equal to one that takes all, and rows that see nothing."""
    outs = rng.standard_normal((count, *shape)).astype(dtype)
    lses = 10.0 ** rng.integers(-2, 3, shape[:-1]) * rng.standard_normal((count, *shape[:-1]))
    lses = lses.astype(accumulator_of(dtype))
    unseen = rng.random(lses.shape) < 0.2
    outs[unseen], lses[unseen] = 0, -np.inf
    return list(zip(outs, lses, strict=True))


def _exactly(shards: list[Shard]) -> list[Merged]:
    """The shards as they are, taken to be without error."""
    wide = [(out.astype(np.float64), lse.astype(np.float64)) for out, lse in shards]
    return [Merged(out, lse, np.zeros_like(out), np.zeros_like(lse)) for out, lse in wide]


@PROPERTY
@given(st.data(), calls(), isas)
def test_any_split_of_the_keys(data: st.DataObject, call: Any, isa: str) -> None:
    *arrays, rng = call
    options = data.draw(restrictions(arrays[0], arrays[1], rng))
    keys = arrays[1].shape[2]
    inner = data.draw(st.lists(st.integers(0, keys), max_size=5))
    with mha_native.use_isa(isa):
        shards, expected = _attend(arrays, options, [0, *sorted(inner), keys])
    whole, dtype = attention(*arrays, options), arrays[0].dtype
    bound = merged(expected, dtype)
    _assert_merged(_merge(shards), whole, bound)

    order = data.draw(st.permutations(range(len(shards))))
    _assert_merged(_merge([shards[s] for s in order]), whole, bound)

    middle = data.draw(st.integers(0, len(shards)))
    halves = [half for half in (slice(0, middle), slice(middle, None)) if shards[half]]
    of_halves = merged([merged(expected[half], dtype) for half in halves], dtype)
    _assert_merged(_merge([_merge(shards[half]) for half in halves]), whole, of_halves)


@pytest.mark.parametrize("cut", [0, 1, 31, 63, 64, 65, 99, 100])
@pytest.mark.parametrize("offset", [0, 30, 100 - 37])
def test_causal_shards(cut: int, offset: int, isa: str, dtype: Any, rng: np.random.Generator) -> None:
    query = 3 * rng.standard_normal((2, 4, 37, 16)).astype(dtype)
    key, value = rng.standard_normal((2, 2, 2, 100, 16)).astype(dtype)
    options = {"is_causal": True, "query_offset": offset}
    shards, expected = _attend([query, key, value], options, [0, cut, 100])
    whole = attention(query, key, value, options)
    _assert_merged(_merge(shards), whole, merged(expected, dtype))
    sees_none = np.isneginf(shards[1][1])
    assert sees_none.any() == (cut > offset), "no row of the second shard is fully masked"
    assert_same_bits(_merge(shards)[0][sees_none], shards[0][0][sees_none])


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 7, 16), (1, 1), (2, 1, 3, 1, 200)], ids=str)
def test_the_merge_itself_rounds_once(count: int, shape: tuple[int, ...], dtype: Any, rng: np.random.Generator) -> None:
    for _ in range(20):
        shards = _random_shards(rng, count, shape, dtype)
        exact = merged(_exactly(shards), dtype)
        out, lse = _merge(shards)
        _assert_merged((out, lse), exact, exact)
        if dtype != np.float64 or count <= 2:  # within 2 units in the last place of the row, whatever was derived
            scale = np.max([np.abs(shard[0]) for shard in shards], axis=(0, -1))[..., None]
            two = 2 * float(limits(dtype).eps) * np.broadcast_to(scale, out.shape)
            assert_close(out, exact.out, two, label="2 ulp")
        assert out.dtype == dtype
        assert lse.dtype == accumulator_of(dtype)


def test_wide_lses(dtype: Any, rng: np.random.Generator) -> None:
    """In float64 they have the result that they have in float32, if they are as short, and lose nothing if not."""
    shards = _random_shards(rng, 5, (4, 50, 6), dtype)
    out, lse = _merge(shards)
    of_wide, wide = _merge([(part, lses.astype(np.float64)) for part, lses in shards])
    assert_same_bits(of_wide, out)
    assert wide.dtype == np.float64
    assert_same_bits(wide.astype(lse.dtype), lse)
    step = np.full((1, 1), 2.0**-40)  # of which float32 has nothing beside 1
    _, of_steps = merge_attention([np.ones((1, 1, 2), dtype)] * 2, [1 + step, 1 - step])
    _, apart = merge_attention([np.ones((1, 1, 2), dtype)] * 2, [1 + step, 1 + step])
    assert 0 < apart - of_steps < 2 * step


def test_one_shard_is_itself(dtype: Any, rng: np.random.Generator) -> None:
    out, lse = _random_shards(rng, 1, (3, 40, 8), dtype)[0]
    out[0, 0] = -0.0
    merged_out, merged_lse = merge_attention([out], [lse])
    assert_same_bits(merged_out, np.where(np.isneginf(lse)[..., None], dtype(0), out))
    assert_same_bits(merged_lse, lse)


@matrix(poison=nightly([np.nan, np.inf, -np.inf], quick=[np.nan]))
@pytest.mark.parametrize("count", [1, 3])
def test_what_a_shard_holds_where_it_sees_nothing(
    count: int, poison: float, dtype: Any, rng: np.random.Generator
) -> None:
    shards = _random_shards(rng, count, (4, 50, 6), dtype)
    clean = _merge(shards)
    for out, lse in shards:
        out[np.isneginf(lse)] = poison
    dirty = _merge(shards)
    assert_same_bits(dirty[0], clean[0])
    assert_same_bits(dirty[1], clean[1])
    nothing = np.isneginf([lse for _, lse in shards]).all(0)
    assert nothing.any(), "no row sees nothing"
    assert_same_bits(dirty[0][nothing], np.zeros((np.count_nonzero(nothing), 6), dtype))
    assert np.isneginf(dirty[1][nothing]).all()


@matrix(poison=nightly([np.nan, np.inf], quick=[np.nan]))
@pytest.mark.parametrize("shard", [0, 2])
def test_an_lse_without_meaning_stays_in_its_row(
    shard: int, poison: float, dtype: Any, rng: np.random.Generator
) -> None:
    shards = _random_shards(rng, 3, (4, 50, 6), dtype)
    out, lse = _merge(shards)
    shards[shard][1][2, 7] = poison
    out[2, 7] = lse[2, 7] = np.nan
    dirty = _merge(shards)
    assert np.array_equal(dirty[0], out, equal_nan=True)
    assert np.array_equal(dirty[1], lse, equal_nan=True)


def test_a_visible_nan_reaches_its_element_only(dtype: Any, rng: np.random.Generator) -> None:
    shards = _random_shards(rng, 2, (4, 50, 6), dtype)
    shards[0][1][2, 7], shards[1][1][2, 7] = -1000, 0  # a weight of exp(-1000) is 0 in float64, but it is visible
    out, lse = _merge(shards)
    shards[0][0][2, 7, 3] = np.nan
    dirty = _merge(shards)
    out[2, 7, 3] = np.nan
    assert np.array_equal(dirty[0], out, equal_nan=True)
    assert_same_bits(dirty[1], lse)


@pytest.mark.parametrize("magnitude", [1e30, 1e-30, -1e4], ids=str)
def test_large_lses_do_not_overflow(magnitude: float, dtype: Any) -> None:
    kind = accumulator_of(dtype)
    out, lse = merge_attention([np.full((1, 2), x, dtype) for x in (1, 3)], [np.full(1, magnitude, kind)] * 2)
    assert np.array_equal(out, np.full((1, 2), 2, dtype))
    assert lse == kind(np.float64(kind(magnitude)) + np.log(2))
    largest = limits(dtype).max
    out, _ = merge_attention([np.full((1, 2), largest, dtype)] * 2, [np.zeros(1, kind)] * 2)
    assert (out == largest).all()


def test_lists_tuples_and_stacked_arrays(dtype: Any, rng: np.random.Generator) -> None:
    shards = _random_shards(rng, 3, (2, 5, 4), dtype)
    expected = _merge(shards)
    outs, lses = ([shard[i] for shard in shards] for i in (0, 1))
    for some_outs in (outs, tuple(outs), np.stack(outs)):
        for some_lses in (lses, tuple(lses), np.stack(lses)):
            for actual, same in zip(merge_attention(some_outs, some_lses), expected, strict=True):
                assert_same_bits(actual, same)


@pytest.mark.parametrize("where", ["new", "other", "in place", "strided"])
def test_where_the_result_goes(where: str, dtype: Any, rng: np.random.Generator) -> None:
    shards = _random_shards(rng, 3, (2, 50, 40), dtype)
    if where == "strided":
        shards = [(np.asfortranarray(out)[:, ::-1], np.asfortranarray(lse)[:, ::-1]) for out, lse in shards]
    expected = _merge([(out.copy(), lse.copy()) for out, lse in shards])
    outs, lses = [shard[0] for shard in shards], [shard[1] for shard in shards]
    inputs = outs[1:] + lses if where in ("in place", "strided") else outs + lses
    before = [x.copy() for x in inputs]
    for x in inputs:
        x.flags.writeable = False
    target = {"new": None, "other": np.full_like(outs[0], np.nan)}.get(where, outs[0])
    out, lse = merge_attention(outs, lses, out=target)
    assert target is None or out is target
    assert_same_bits(out, expected[0])
    assert_same_bits(lse, expected[1])
    for x, same in zip(inputs, before, strict=True):
        assert_same_bits(x, same)


def test_a_running_result(dtype: Any, rng: np.random.Generator) -> None:
    query = rng.standard_normal((2, 4, 9, 16)).astype(dtype)
    key, value = rng.standard_normal((2, 2, 4, 60, 16)).astype(dtype)
    shards, expected = _attend([query, key, value], {}, [0, 20, 20, 45, 60])
    (out, lse), bound = shards[0], merged(expected[:1], dtype)
    for shard, of_shard in zip(shards[1:], expected[1:], strict=True):
        _, lse = merge_attention([out, shard[0]], [lse, shard[1]], out=out)
        bound = merged([bound, of_shard], dtype)
    _assert_merged((out, lse), attention(query, key, value, {}), bound)


def test_interleaved_memory_is_no_overlap(dtype: Any, rng: np.random.Generator) -> None:
    packed = rng.standard_normal((2, 50, 3, 4, 8)).astype(dtype)  # [B, T, 3, H, D]
    first, second, out = (packed[:, :, i].swapaxes(1, 2) for i in range(3))
    lses = rng.standard_normal((2, *first.shape[:-1])).astype(accumulator_of(dtype))
    expected = merge_attention([first.copy(), second.copy()], lses)
    merge_attention([first, second], lses, out=out)
    assert_same_bits(out.copy(), expected[0])
    merge_attention([first, second], lses, out=first)
    assert_same_bits(first.copy(), expected[0])


@pytest.mark.parametrize(
    "shape", [(2, 3, 700, 64), (3, 1200, 1, 64), (100_000, 3), (1, 2, 3, 70_000), (3000, 1)], ids=str
)
def test_a_row_is_the_same_alone(shape: tuple[int, ...], dtype: Any, rng: np.random.Generator) -> None:
    # Larger than a block of rows; and 11 shards, which NumPy's own sum would add up in another order for a single row.
    outs = rng.standard_normal((11, 1, 1, shape[-1])).astype(dtype)
    outs = np.broadcast_to(outs.reshape(11, *[1] * (len(shape) - 1), -1), (11, *shape))
    lses = rng.standard_normal((11, *shape[:-1])).astype(accumulator_of(dtype))
    out, lse = merge_attention(outs, lses)
    for _ in range(30):
        row = tuple(int(rng.integers(n)) for n in shape[:-1])
        alone = merge_attention([x[row][None] for x in outs], [x[row][None] for x in lses])
        assert_same_bits(alone[0][0], out[row])
        assert_same_bits(alone[1], lse[row][None])


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 4), (3, 0), (0, 0)], ids=str)
def test_empty_sizes(shape: tuple[int, ...], dtype: Any) -> None:
    lses = np.zeros((2, *shape[:-1]), accumulator_of(dtype))
    out, lse = merge_attention(np.zeros((2, *shape), dtype), lses)
    assert out.shape == shape
    assert np.array_equal(lse, np.log(np.full(shape[:-1], 2.0)).astype(lse.dtype))


def test_temporaries_are_small(dtype: Any) -> None:
    outs, lses = np.ones((4, 8, 2000, 64), dtype), np.zeros((4, 8, 2000), accumulator_of(dtype))
    out = np.empty_like(outs[0])
    tracemalloc.start()
    try:
        merge_attention(outs, lses, out=out)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - lses[0].nbytes < 1.25 * 2**20, f"{peak / 2**20:.2f} MiB, of a result of {out.nbytes / 2**20:.0f} MiB"


def _good(dtype: Any = np.float32) -> dict[str, Any]:
    return {"outs": [np.ones((2, 5, 4), dtype) for _ in range(3)], "lses": [np.ones((2, 5), dtype) for _ in range(3)]}


def _with(name: str, x: Any) -> dict[str, Any]:
    """A call whose last shard is wrong."""
    call = _good()
    call[name][2] = x
    return call


def _read_only() -> Array:
    out = np.ones((2, 5, 4), np.float32)
    out.flags.writeable = False
    return out


WRONG = [
    # (arguments, kind of error, words of the message)
    (
        _with("outs", np.ones((2, 5, 3), np.float32)),
        ValueError,
        r"outs\[2\] .*outs \(\[2, 5, 4\], .*\[2, 5, 3\]\), lses",
    ),
    (_with("outs", np.ones((5, 4), np.float32)), ValueError, r"outs\[2\] .*\[5, 4\]"),
    (_with("lses", np.ones((2, 4), np.float32)), ValueError, r"lses\[2\] .*outs 3 x \[2, 5, 4\].*\[2, 4\]"),
    (_with("lses", np.ones((2, 5, 1), np.float32)), ValueError, r"lses\[2\] .*\[2, 5, 1\]"),
    (_with("lses", np.ones((), np.float32)), ValueError, r"lses\[2\] .*\[\]"),
    (_good() | {"outs": []}, ValueError, "outs must have at least one shard"),
    (_good() | {"outs": np.ones((0, 5, 4), np.float32)}, ValueError, "outs must have at least one shard"),
    (_good() | {"lses": _good()["lses"][:2]}, ValueError, r"lses .*as many .*3; got 2$"),
    (_good() | {"outs": np.ones((3, 4), np.float32)}, ValueError, r"outs\[0\] must have two axes.*outs 3 x \[4\]"),
    (_good() | {"outs": np.ones(3, np.float32)}, ValueError, r"outs\[0\] must have two axes.*outs 3 x \[\]"),
    (_good() | {"outs": np.ones((), np.float32)}, ValueError, r"outs .*first axis"),
    (_good() | {"outs": 3.5}, TypeError, r"outs .*float"),
    (_good() | {"lses": None}, TypeError, r"lses .*NoneType"),
    (_good() | {"lses": iter([])}, TypeError, r"lses .*list_iterator"),
    (_with("outs", [[1.0]]), TypeError, r"outs\[2\] .*list"),
    (_with("lses", 1.0), TypeError, r"lses\[2\] .*float"),
    (_with("outs", np.ma.masked_array(np.ones((2, 5, 4), np.float32))), TypeError, r"outs\[2\] .*MaskedArray"),
    (_with("outs", np.ones((2, 5, 4))), TypeError, r"outs\[2\] .*outs \(float32, float32, float64\), lses 3 x float32"),
    (_with("lses", np.ones((2, 5))), TypeError, r"lses\[2\] .*lses \(float32, float32, float64\)"),
    (
        _good() | {"lses": [np.ones((2, 5)), np.ones((2, 5), np.float32), np.ones((2, 5))]},
        TypeError,
        r"lses\[1\] must be of the dtype of lses\[0\], float64; got .*lses \(float64, float32, float64\)",
    ),
    (_good(np.float64) | {"lses": _good()["lses"]}, TypeError, r"lses\[0\] must be of the dtype of scores, float64"),
    (_with("lses", np.ones((2, 5), ">f4")), TypeError, r"lses\[2\] .*byte order.*>f4"),
    (_with("lses", np.ones((2, 5), bool)), TypeError, r"lses\[2\] .*bool"),
    (_good(np.float16), TypeError, r"lses\[0\] must be of the dtype of scores, float32; got outs 3 x float16"),
    (_good(np.int64), TypeError, r"outs\[0\] .*int64"),
    (_good() | {"out": np.ones((2, 5, 3), np.float32)}, ValueError, r"out must .*out \[2, 5, 3\]"),
    (_good() | {"out": np.ones((1, 2, 5, 4), np.float32)}, ValueError, r"out must .*out \[1, 2, 5, 4\]"),
    (_good() | {"out": np.ones((2, 5, 4))}, TypeError, r"out must .*out float64"),
    (_good() | {"out": [1.0]}, TypeError, r"out must .*list"),
    (_good() | {"out": _read_only()}, ValueError, "out must be writable"),
    (
        _good() | {"out": np.lib.stride_tricks.as_strided(np.ones(9, np.float32), (2, 5, 4), (16, 0, 4))},
        ValueError,
        "out must not have two indices",
    ),
]


@pytest.mark.parametrize(("call", "kind", "words"), WRONG, ids=range(len(WRONG)))
def test_what_is_refused(call: dict[str, Any], kind: type[Exception], words: str) -> None:
    out = np.full((2, 5, 4), 3, np.float32)
    with pytest.raises(kind, match=rf"^merge_attention: {words}") as error:
        merge_attention(**({"out": out} | call))
    assert type(error.value) is kind
    assert not re.search(r"\n|\. ", str(error.value)), "is one sentence"
    assert (out == 3).all(), "work was done before the error"


@matrix(dtype=WIDE)
@pytest.mark.parametrize(
    ("first", "shape", "words"),
    [
        (40, (2, 5, 4), r"outs\[1\]"),
        (1, (2, 5, 4), r"outs\[0\]"),
        (79, (2, 5, 4), r"outs\[1\]"),
        (119, (2, 5, 4), r"outs\[2\]"),
        (120, (2, 5, 4), r"lses\[0\]"),
        (0, "transposed", r"outs\[0\]"),
    ],
)
def test_out_over_an_input(first: int, shape: Any, words: str, dtype: Any, rng: np.random.Generator) -> None:
    memory = rng.standard_normal(200).astype(dtype)
    outs, lses = memory[:120].reshape(3, 2, 5, 4), memory[120:150].reshape(3, 2, 5)
    out = memory[first : first + 40].reshape(2, 5, 4)
    if shape == "transposed":
        out = memory[:40].reshape(4, 5, 2).T
    before = memory.copy()
    with pytest.raises(ValueError, match=rf"^merge_attention: out must not overlap {words} .*out \[2, 5, 4\]"):
        merge_attention(outs, lses, out=out)
    assert_same_bits(memory, before)


def test_one_array_as_two_shards_is_not_in_place(dtype: Any) -> None:
    out, lse = np.ones((2, 5, 4), dtype), np.zeros((2, 5), accumulator_of(dtype))
    with pytest.raises(ValueError, match=r"out must not overlap outs\[1\]"):
        merge_attention([out, out], [lse, lse], out=out)


@matrix(dtype=WIDE)
def test_torch_tensors(dtype: Any, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    shards = _random_shards(rng, 3, (2, 5, 4), dtype)
    expected = _merge(shards)
    outs, lses = (np.stack([shard[i] for shard in shards]) for i in (0, 1))
    of_torch = torch.from_numpy(outs.copy()), torch.from_numpy(lses.copy())
    for some_outs, some_lses in (of_torch, (list(of_torch[0]), list(of_torch[1])), (of_torch[0], lses)):
        for actual, same in zip(merge_attention(some_outs, some_lses), expected, strict=True):
            assert type(actual) is torch.Tensor
            assert_same_bits(actual.numpy(), same)
    assert type(merge_attention(list(outs), of_torch[1])[1]) is np.ndarray

    running = of_torch[0][0]
    out, lse = merge_attention(list(of_torch[0]), list(of_torch[1]), out=running)
    assert out is running
    assert_same_bits(running.numpy(), expected[0])
    assert_same_bits(lse.numpy(), expected[1])

    with pytest.raises(TypeError, match=r"outs\[1\] .*gradient"):
        merge_attention([of_torch[0][0], of_torch[0][1].requires_grad_()], list(of_torch[1][:2]))

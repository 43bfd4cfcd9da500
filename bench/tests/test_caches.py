"""Attention over caches, and block masks: what lies in memory, what is counted, and that each form is what runs."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from mha_native import PagedKVCache
from mha_native_bench.cases.case import Case
from mha_native_bench.cases.inputs import copies, in_dtype, make_inputs
from mha_native_bench.cases.load import load_cases, plain_case
from mha_native_bench.cases.oracle import oracle
from mha_native_bench.contenders import Ours, make_contender
from mha_native_bench.contenders.contender import CannotCompute, of_arrays
from mha_native_bench.contenders.ours import filled_cache
from mha_native_bench.machine import last_cache_bytes
from mha_native_bench.measure.rounds import check

CACHED = Case("cached", "cached", "f32", B=3, H=4, Hk=2, Tq=1, Tk=200, D=8, E=0, causal=False)
PREFIX = dataclasses.replace(CACHED, prefix=150, pages="in order")
SHARED = dataclasses.replace(PREFIX, pages="shared")
BLOCKS = Case("blocks", "sdpa", "f32", B=2, H=2, Hk=1, Tq=130, Tk=520, D=8, E=0, causal=False, blocks=4)


def table_of(case: Case) -> list[list[int]]:
    cache = filled_cache(case, make_inputs(case))
    assert isinstance(cache, PagedKVCache)
    table: list[list[int]] = cache.page_table.tolist()
    return table


def test_pages_lie_as_the_case_says() -> None:
    assert table_of(dataclasses.replace(CACHED, pages="in order")) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    shared = np.array(table_of(SHARED))
    assert shared[:, :2].tolist() == [[0, 1]] * 3
    assert len(set(shared[:, 2:].ravel())) == 6
    shuffled = table_of(dataclasses.replace(CACHED, pages="shuffled", Tk=640))
    assert sorted(page for row in shuffled for page in row) == list(range(30))
    assert np.count_nonzero(np.diff(shuffled) == 1) < 9  # of 27


def test_a_shared_prefix_takes_the_memory_of_one() -> None:
    many = {"B": 16, "Tk": 2005, "prefix": 2000}
    used = {}
    for case in (dataclasses.replace(PREFIX, **many), dataclasses.replace(SHARED, **many)):
        cache = filled_cache(case, make_inputs(case))
        assert isinstance(cache, PagedKVCache)
        used[case.pages] = cache.num_pages - cache.free_pages
    assert 10 * used["shared"] <= used["in order"]


@pytest.mark.parametrize("queries", [1, 200])
@pytest.mark.parametrize("cache", ["", "int8"])
def test_all_forms_are_one_computation(queries: int, cache: str) -> None:
    dense = dataclasses.replace(CACHED, Tq=queries, prefix=150, cache=cache)
    inputs = make_inputs(dense)
    expected = oracle(dense, inputs)
    results = []
    for pages in ("", "in order", "shuffled", "shared"):
        case = dataclasses.replace(dense, pages=pages)
        programs = Ours([1]).programs(case, inputs, 1)
        assert len(check(case, programs, expected).timed) == 1
        results.append(programs[0].run())
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
    exact = np.abs(results[0] - expected).max() < 1e-5
    assert exact == (cache == "")  # the format was not lost on the way


def test_queries_are_the_last_tokens_and_causal() -> None:
    inputs = make_inputs(dataclasses.replace(CACHED, Tq=200))
    last = dataclasses.replace(inputs, arrays=(inputs.arrays[0][:, :, -1:], *inputs.arrays[1:]))
    prompt = oracle(dataclasses.replace(CACHED, Tq=200), inputs)
    np.testing.assert_allclose(oracle(CACHED, last), prompt[:, :, -1:], atol=1e-12)
    first = dataclasses.replace(CACHED, Tq=200, Tk=200, B=3)
    np.testing.assert_array_equal(oracle(of_arrays(first), inputs), prompt)


@pytest.mark.parametrize(("changes", "row"), [({}, 4 * 8), ({"dtype": "bf16"}, 2 * 8), ({"cache": "int8"}, 8 + 4)])
def test_bytes_are_those_of_the_cache(changes: dict[str, Any], row: int) -> None:
    case = dataclasses.replace(CACHED, **changes)
    assert case.key_value_bytes == 2 * 3 * 200 * 2 * row
    assert case.least_bytes - case.key_value_bytes == 2 * 3 * 4 * 8 * case.itemsize
    shared = dataclasses.replace(SHARED, **changes)
    assert shared.key_value_bytes == 2 * (150 + 3 * 50) * 2 * row
    if not changes:
        cache = filled_cache(case, make_inputs(case))
        assert cache.nbytes == case.key_value_bytes


def test_pairs_are_those_of_a_decoder() -> None:
    assert CACHED.visible_pairs == 3 * 200
    assert dataclasses.replace(CACHED, Tq=200).visible_pairs == 3 * 200 * 201 // 2


def test_sequences_begin_alike_as_far_as_the_prefix() -> None:
    _, key, value = make_inputs(PREFIX).arrays
    for rows in (key, value):
        np.testing.assert_array_equal(rows[1:, :, :150], np.broadcast_to(rows[:1, :, :150], rows[1:, :, :150].shape))
        assert np.all(rows[1:, :, 150:] != rows[:1, :, 150:])


def test_cold_caches_are_copies_that_fill_the_last_cache_as_they_are_kept() -> None:
    case = dataclasses.replace(CACHED, B=1, Hk=4, Tk=8192, D=64, cold=True)
    for one in (case, dataclasses.replace(case, cache="int8")):
        count = len(copies(one, make_inputs(one)))
        assert count * one.key_value_bytes >= 4 * last_cache_bytes()
        assert (count - 1) * one.key_value_bytes < max(4 * last_cache_bytes(), 2 * one.key_value_bytes)


def test_a_cold_case_goes_against_a_cold_one() -> None:
    pytest.importorskip("ml_dtypes")
    case = next(case for case in load_cases() if case.name == "cached-S4096-D128-G4-int8-cold")
    plain = plain_case(case)
    assert plain.cold
    assert plain.dtype == "bf16"
    inputs = make_inputs(case)
    [program] = make_contender("against", [1]).programs(case, inputs, 1)
    expected = Ours([1]).programs(plain, in_dtype(inputs, plain), 1)[0].run()
    np.testing.assert_array_equal(program.run(), expected)
    hot = dataclasses.replace(plain, name="hot", cold=True, against="cached-S4096-D128-G4")
    assert make_contender("against", [1]).programs(hot, inputs, 1) == []


def test_decoding_over_a_cache_is_held_against_reading_it() -> None:
    [program] = make_contender("read", [1]).programs(CACHED, make_inputs(CACHED), 1)
    program.run()
    prompt = dataclasses.replace(CACHED, Tq=200)
    assert make_contender("read", [1]).programs(prompt, make_inputs(prompt), 1) == []


def test_contenders_without_caches_get_arrays() -> None:
    dense = of_arrays(dataclasses.replace(SHARED, Tq=200))
    assert (dense.kind, dense.causal, dense.pages, dense.prefix) == ("sdpa", True, "", 0)
    assert not of_arrays(CACHED).causal
    assert of_arrays(BLOCKS) is BLOCKS
    with pytest.raises(CannotCompute, match="no int8 keys and values"):
        of_arrays(dataclasses.replace(CACHED, cache="int8"))


def test_a_block_mask_shows_one_in_so_many_blocks() -> None:
    assert BLOCKS.block_mask.shape == (3, 9)
    assert BLOCKS.block_mask.sum(axis=1).tolist() == [2, 2, 2]
    seen = BLOCKS.visible(130, 520)
    for i, j in ((0, 0), (63, 519), (64, 511), (129, 512)):
        assert seen[i, j] == BLOCKS.block_mask[i // 64, j // 64]
    assert BLOCKS.visible_pairs == 2 * np.count_nonzero(seen)
    inputs = make_inputs(BLOCKS)
    assert len(check(BLOCKS, Ours([1]).programs(BLOCKS, inputs, 1), oracle(BLOCKS, inputs)).timed) == 1


def test_rows_that_make_no_sense_are_refused() -> None:
    for case, changes in (
        (CACHED, {"Tq": 2}),
        (CACHED, {"causal": True}),
        (CACHED, {"pages": "reversed"}),
        (CACHED, {"pages": "shuffled", "B": 1}),
        (CACHED, {"pages": "shared"}),
        (CACHED, {"prefix": 201}),
        (CACHED, {"cache": "bf16"}),
        (CACHED, {"cache": "int8", "dtype": "bf16"}),
        (CACHED, {"softcap": 1.0}),
        (BLOCKS, {"pages": "in order"}),
        (BLOCKS, {"prefix": 1}),
        (BLOCKS, {"cache": "int8"}),
        (BLOCKS, {"blocks": 10}),
        (BLOCKS, {"blocks": -1}),
        (BLOCKS, {"causal": True}),
        (BLOCKS, {"window": (1, 1)}),
        (BLOCKS, {"admitted": 1}),
        (CACHED, {"blocks": 2}),
    ):
        with pytest.raises(ValueError, match=case.name):
            dataclasses.replace(case, **changes)

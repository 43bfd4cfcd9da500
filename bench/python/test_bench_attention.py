"""The benchmark itself: exact counts, wrong programs refused, and the whole of it once in a few seconds."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import report
from contenders import Ours, Program
from contenders.numpy_unfused import attention
from measure import Effort, Measurement, Timed, Turn, WrongResult, measure
from shapes import Array, Case, load_cases, make_inputs, oracle, padded, unpadded

SMALL = Case("small", "sdpa", "f32", B=1, H=4, Hk=2, Tq=5, Tk=7, D=8, E=0, causal=True)
NO_TIME = Effort(rounds=3, turn_seconds=0, rest_seconds=0)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 5), (3, 7), (7, 3), (1, 9)])
def test_visible_pairs_are_counted_one_by_one(queries: int, keys: int) -> None:
    causal = dataclasses.replace(SMALL, Tq=queries, Tk=keys)
    assert causal.visible_pairs == np.tri(queries, keys).sum()
    assert dataclasses.replace(causal, causal=False).visible_pairs == queries * keys


def test_a_ragged_batch_has_the_pairs_of_its_sequences() -> None:
    ragged = dataclasses.replace(SMALL, kind="ragged", B=3, Tk=5, shortest=1)
    assert sorted(ragged.lengths) == [1, 3, 5]
    assert ragged.visible_pairs == sum(np.tri(n).sum() for n in (1, 3, 5))
    assert dataclasses.replace(ragged, causal=False).flops == 4 * 4 * 8 * (1 + 9 + 25)
    assert ragged.least_bytes == 4 * 2 * 9 * 8 * (4 + 2)


def test_padding_and_back() -> None:
    ragged = dataclasses.replace(SMALL, kind="ragged", B=3, Tk=5, shortest=1)
    rows = make_inputs(ragged).arrays[0]
    dense = padded(ragged, rows)
    assert dense.shape == (3, 4, 5, 8)
    assert np.count_nonzero(dense) == rows.size
    np.testing.assert_array_equal(unpadded(ragged, dense), rows)


def test_flops() -> None:
    cases = {case.name: case for case in load_cases()}
    assert cases["sdpa-T2048-D64"].flops == 2 * 2 * 8 * 2048 * 2048 * 64
    assert cases["sdpa-T512-D64-causal"].flops == 2 * 2 * 8 * (512 * 513 // 2) * 64
    assert cases["mha-T128-E512"].flops == 2 * 128 * 512 * (4 * 512) + 2 * 2 * 8 * 128 * 128 * 64


def test_rows_that_make_no_sense_are_refused() -> None:
    for changes in (
        {"kind": "mhsa"},
        {"dtype": "f8"},
        {"Hk": 3},
        {"Tq": 0},
        {"kind": "mha", "E": 24},
        {"kind": "ragged", "Tk": 5},
    ):
        with pytest.raises(ValueError, match="small"):
            dataclasses.replace(SMALL, **changes)


@pytest.mark.parametrize("wrong", [np.nan, 1e-3])
def test_a_wrong_result_is_refused_before_any_timing(wrong: float) -> None:
    inputs = make_inputs(SMALL)
    expected = oracle(SMALL, inputs)
    calls = []

    def run() -> Array:
        calls.append(1)
        result = expected.astype(np.float32)
        result[0, 1, 2, 3] += wrong
        return result

    right = Ours([1]).programs(SMALL, inputs, 1)
    with pytest.raises(WrongResult, match="small: other with 1 threads"):
        measure(SMALL, [*right, Program("other", 1, run)], expected, NO_TIME)
    assert len(calls) == 1


def test_programs_take_turns() -> None:
    inputs = make_inputs(SMALL)
    expected = oracle(SMALL, inputs)
    order: list[str] = []

    def program(name: str) -> Program:
        def run() -> Array:
            if order[-1:] != [name]:
                order.append(name)
            return expected

        return Program(name, 1, run)

    measurement = measure(SMALL, [program(name) for name in "abc"], expected, NO_TIME)
    assert "".join(order) == "abc" + "abc" + "bca" + "cab"  # the check, then three rounds
    assert [len(timed.turns) for timed in measurement.timed] == [3, 3, 3]
    assert len(measurement.peaks) == 3


def test_the_yardstick_reads_grouped_heads() -> None:
    inputs = make_inputs(SMALL)
    query, key, value = inputs.arrays
    out = attention(query, key, value, ~np.tri(SMALL.Tq, SMALL.Tk, dtype=bool))
    np.testing.assert_allclose(out, oracle(SMALL, inputs), atol=1e-5)


def test_the_fastest_program_stands_for_its_contender() -> None:
    def timed(contender: str, variant: str, *medians: float) -> Timed:
        turns = [Turn(median, median / 2) for median in medians]
        return Timed(Program(contender, 1, lambda: None, variant=variant), 1e-7, turns)

    ours = timed("mha_native", "", 1.0, 2.0, 1.0)
    fast = timed("torch", "fast", 3.0, 4.0, 1.0)
    measurement = Measurement(SMALL, 1e-6, [1.0, 2.0, 1.0], [ours, timed("torch", "slow", 4.0, 4.0, 4.0), fast])
    assert report.fastest_of(measurement, "torch", 1) is fast
    assert report.fastest_of(measurement, "torch", 2) is None
    assert report.ratio(fast, ours) == "2.00 [1.50 2.50] 1.00"
    rows = report.speed_table([measurement], ["torch"], [1])
    assert dict(zip(*rows, strict=True))["torch / ours"] == "2.00 [1.50 2.50] 1.00 fast"


def test_smoke(tmp_path: Path) -> None:
    script, written = Path(__file__).with_name("bench_attention.py"), tmp_path / "out.json"
    command = [sys.executable, str(script), "--smoke", "--markdown", "--json", str(written)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(written.read_text(encoding="utf-8"))
    assert {case["kind"] for case in document["cases"]} == {"sdpa", "ragged", "mha"}
    for case in document["cases"]:
        assert f"| {case['name']} " in done.stdout
        for program in case["programs"]:
            assert min(program["best_seconds"]) > 0
            assert program["largest_error"] <= case["tolerance"]
    assert document["overheads"]["scratch_bytes"]["1"] > 0


def test_what_the_user_can_mend_is_said() -> None:
    script = Path(__file__).with_name("bench_attention.py")
    for arguments in (["--cases", "no-such"], ["--isa", "no-such"], ["--peers", "no-such"]):
        done = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "no-such" in done.stderr
        assert "Traceback" not in done.stderr

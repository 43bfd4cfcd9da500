"""The benchmark itself: exact counts, wrong programs refused, and the whole of it once in a few seconds."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import report
from contenders import Ours, Program, in_rotation, make_peer
from contenders.numpy_unfused import attention
from encoder_inputs import Models, padded_texts
from machine import last_cache_bytes
from measure import Effort, Measurement, Timed, Turn, WrongResult, measure
from shapes import (
    Array,
    Case,
    copies,
    in_dtype,
    load_cases,
    make_inputs,
    oracle,
    padded,
    padded_pairs,
    plain_case,
    unpadded,
)

SENTENCES = Case(
    "sentences", "sentences", "f32", B=3, H=2, Hk=2, Tq=6, Tk=6, D=8, E=16, causal=False,
    F=24, activation="gelu", layers=2, shortest=2,
)  # fmt: skip
SMALL = Case("small", "sdpa", "f32", B=1, H=4, Hk=2, Tq=5, Tk=7, D=8, E=0, causal=True)
NO_TIME = Effort(rounds=3, turn_seconds=0, rest_seconds=0)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 5), (3, 7), (7, 3), (1, 9)])
def test_visible_pairs_are_counted_one_by_one(queries: int, keys: int) -> None:
    causal = dataclasses.replace(SMALL, Tq=queries, Tk=keys)
    assert causal.visible_pairs == np.tri(queries, keys).sum()
    assert dataclasses.replace(causal, causal=False).visible_pairs == queries * keys


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, (2, 0), (-1, 1), (1, -1)])
@pytest.mark.parametrize("admitted", [None, 4, 7])
def test_masked_pairs_are_counted_one_by_one(
    causal: bool, window: tuple[int, int] | None, admitted: int | None
) -> None:
    case = dataclasses.replace(SMALL, B=2, causal=causal, window=window, admitted=admitted)
    left, right = (case.Tk if side < 0 else side for side in window or (-1, -1))
    pairs = [
        (i, j)
        for i in range(case.Tq)
        for j in range(case.Tk)
        if i - left <= j <= i + right and (j <= i or not causal) and (admitted is None or j < admitted)
    ]
    assert case.visible_pairs == 2 * len(pairs)
    assert [*zip(*np.nonzero(case.visible(case.Tq, case.Tk)), strict=True)] == pairs


def test_a_ragged_batch_has_the_pairs_of_its_sequences() -> None:
    ragged = dataclasses.replace(SMALL, kind="ragged", B=3, Tk=5, shortest=1)
    assert sorted(ragged.lengths) == [1, 3, 5]
    assert ragged.visible_pairs == sum(np.tri(n).sum() for n in (1, 3, 5))
    assert dataclasses.replace(ragged, causal=False).flops == 4 * 4 * 8 * (1 + 9 + 25)
    assert ragged.least_bytes == 4 * 2 * 9 * 8 * (4 + 2)
    assert padded_pairs(dataclasses.replace(ragged, causal=False)) == 5 * (1 + 3 + 5)


def test_padding_and_back() -> None:
    ragged = dataclasses.replace(SMALL, kind="ragged", B=3, Tk=5, shortest=1)
    rows = make_inputs(ragged).arrays[0]
    dense = padded(ragged, rows)
    assert dense.shape == (3, 4, 5, 8)
    assert np.count_nonzero(dense) == rows.size
    np.testing.assert_array_equal(unpadded(ragged, dense), rows)


def test_an_encoder_has_the_work_of_its_layers() -> None:
    sequences = SENTENCES.lengths.tolist()
    assert sorted(sequences) == [2, 4, 6]
    products = 12 * 2 * (4 * 16 * 16 + 2 * 16 * 24)  # of 12 tokens
    assert SENTENCES.flops == 2 * (products + 4 * 2 * 8 * (4 + 16 + 36))
    layer = dataclasses.replace(SENTENCES, kind="encoder_layer", layers=1, B=2)
    assert layer.flops == products + 2 * 4 * 2 * 8 * 36
    state = make_inputs(layer).state
    assert layer.matrices_of_layer + layer.vectors_of_layer == sum(array.size for array in state.values())
    assert layer.matrices_of_layer == sum(array.size for array in state.values() if array.ndim == 2)
    assert layer.least_bytes == 4 * (2 * 12 * 16 + layer.matrices_of_layer + layer.vectors_of_layer)


def test_flops() -> None:
    cases = {case.name: case for case in load_cases()}
    assert cases["sdpa-T2048-D64"].flops == 2 * 2 * 8 * 2048 * 2048 * 64
    assert cases["sdpa-T512-D64-causal"].flops == 2 * 2 * 8 * (512 * 513 // 2) * 64
    assert cases["mha-T128-E512"].flops == 2 * 128 * 512 * (4 * 512) + 2 * 2 * 8 * 128 * 128 * 64


def test_rows_that_make_no_sense_are_refused() -> None:
    for changes in (
        {"kind": "mhsa"},
        {"dtype": "f8"},
        {"weights": "int8"},
        {"cache": "bf16"},
        {"kind": "step", "E": 32, "Hk": 4},
        {"kind": "step", "E": 32, "Hk": 4, "Tq": 1, "causal": False, "dtype": "bf16", "cache": "f16"},
        {"kind": "mha", "E": 32, "Hk": 4, "Tk": 5, "weights": "int4"},
        {"kind": "mha", "E": 32, "Hk": 4, "Tk": 5, "dtype": "bf16", "weights": "int8"},
        {"Hk": 3},
        {"Tq": 0},
        {"kind": "mha", "E": 24},
        {"kind": "ragged", "Tk": 5},
        {"kind": "ragged", "Tk": 5, "shortest": 1, "softcap": 1.0},
        {"kind": "mha", "E": 32, "Hk": 4, "Tk": 5, "cold": True},
        {"F": 8},
        {"layers": 2},
        {"kind": "encoder_layer", "E": 32, "Hk": 4, "Tk": 5},
        {"kind": "encoder_layer", "E": 32, "Hk": 4, "Tk": 5, "F": 8, "activation": "tanh"},
        {"admitted": 0},
        {"admitted": 8},
    ):
        with pytest.raises(ValueError, match="small"):
            dataclasses.replace(SMALL, **changes)


def test_a_case_goes_against_one_above_of_its_sizes(tmp_path: Path) -> None:
    file = tmp_path / "cases.toml"

    def load(*rows: str) -> list[Case]:
        file.write_text("case = [" + ", ".join(f"{{ {row} }}" for row in rows) + "]", encoding="utf-8")
        return load_cases(file)

    plain = 'name = "plain", kind = "sdpa", dtype = "f32", B = 1, H = 1, Tq = 3, D = 8, causal = true'
    capped = 'name = "capped", against = "plain", softcap = 2.0'
    first, second = load(plain, capped)
    assert second == dataclasses.replace(first, name="capped", against="plain", softcap=2.0)
    for rows in ([capped, plain], [capped], [plain, plain], [plain, capped + ", Tq = 4"]):
        with pytest.raises(ValueError, match="must"):
            load(*rows)
    for case in load_cases():
        if case.against and not case.cold:
            plain = plain_case(case)
            assert dataclasses.replace(plain, name=case.name, against=plain.name, quick=case.quick) != case


def test_cold_arrays_are_the_same_in_other_memory() -> None:
    inputs = make_inputs(SMALL)
    assert copies(SMALL, inputs) == [inputs]
    large = dataclasses.replace(SMALL, Tk=4096, D=64, cold=True)
    inputs = make_inputs(large)
    cold = copies(large, inputs)
    keys = {one.arrays[1].ctypes.data: one.arrays[1] for one in cold}
    assert len(keys) == len(cold)
    assert sum(array.nbytes for one in cold for array in one.arrays) >= 4 * last_cache_bytes()
    for key in keys.values():
        np.testing.assert_array_equal(key, inputs.arrays[1])


def test_a_rotation_runs_one_after_another() -> None:
    programs = [Program("a", 1, n.__int__) for n in range(3)]
    rotation = in_rotation(programs)
    assert [rotation.run() for _ in range(5)] == [0, 1, 2, 0, 1]
    assert in_rotation(programs[:1]) is programs[0]


@pytest.fixture
def models() -> Iterator[Models]:
    pytest.importorskip("safetensors")
    pytest.importorskip("tokenizers")
    with Models(None) as written:
        yield written


def test_a_model_is_written_once_and_checked(models: Models) -> None:
    directory = models.directory(SENTENCES)
    assert directory is not None
    assert models.directory(dataclasses.replace(SENTENCES, B=1)) == directory
    assert models.directory(SMALL) is None
    given = Models(directory)
    assert given.directory(SENTENCES) == directory
    with pytest.raises(ValueError, match="'num_hidden_layers': 3"):
        given.directory(dataclasses.replace(SENTENCES, layers=3))


def test_this_library_embeds_sentences(models: Models) -> None:
    inputs = make_inputs(SENTENCES, models.directory(SENTENCES))
    programs = Ours([1, 2]).programs(SENTENCES, inputs, 1) + Ours([1, 2]).programs(SENTENCES, inputs, 2)
    assert len(measure(SENTENCES, programs, oracle(SENTENCES, inputs), NO_TIME).timed) == 2


def test_padding_of_texts() -> None:
    ids, mask = padded_texts([np.array([7, 8, 9]), np.array([5])])
    assert ids.tolist() == [[7, 8, 9], [5, 0, 0]]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0]]


def test_a_case_is_timed_beside_the_one_it_goes_against() -> None:
    case = next(case for case in load_cases() if case.name == "mask-T512-half")
    plain = plain_case(case)
    inputs = make_inputs(case)
    [program] = make_peer("against", [1]).programs(case, inputs, 1)
    np.testing.assert_allclose(program.run(), oracle(plain, inputs), atol=1e-5)
    assert make_peer("against", [1]).programs(plain, inputs, 1) == []
    turns = [Turn(2.0, 1.0)]
    ours = Timed(Program("mha_native", 1, lambda: None), 0.0, [Turn(1.0, 0.25)])
    measurement = Measurement(case, 1e-6, [1.0], [ours, Timed(program, None, turns)])
    expected = "mask-T512-half against sdpa-T512-D64, 1 thread: 0.50 [0.50 0.50] 0.25 x as long, 0.50 x the pairs"
    assert report.against_lines([measurement]) == [expected]
    assert report.error_table([measurement], ["mha_native", "against"])[0] == ["case", "mha_native", "allowed"]


def test_decoding_is_held_against_reading() -> None:
    case = dataclasses.replace(SMALL, Tq=1, causal=False)
    inputs = make_inputs(case)
    [program] = make_peer("read", [1]).programs(case, inputs, 1)
    bits = [array.view(np.uint64).ravel() for array in inputs.arrays[1:]]
    assert program.run() == np.bitwise_xor.reduce(np.concatenate(bits))
    if find_spec("ml_dtypes"):  # whose arrays have no buffer of their type
        narrow = in_dtype(inputs, dataclasses.replace(case, dtype="bf16"))
        bits = [array.view(np.uint64).ravel() for array in narrow.arrays[1:]]
        assert make_peer("read", [1]).programs(case, narrow, 1)[0].run() == np.bitwise_xor.reduce(np.concatenate(bits))
    assert make_peer("read", [1]).programs(SMALL, make_inputs(SMALL), 1) == []
    ours = Timed(Program("mha_native", 1, lambda: None), 0.0, [Turn(2e-6, 1e-6)])
    measurement = Measurement(case, 1e-6, [1.0], [ours, Timed(program, None, [Turn(1e-6, 5e-7)])])
    rows = report.speed_table([measurement], ["read", "torch"], [1])
    assert dict(zip(*rows, strict=True))["of bandwidth"] == "0.50 [0.50 0.50] 0.50"
    assert "torch / ours" not in rows[0]
    # 2 Hk Tk D elements of 4 bytes
    expected = "Read bandwidth, small, 1 thread: median 0.9 GB/s [0.9 0.9], best 1.8"
    assert case.key_value_bytes == 2 * 2 * 7 * 8 * 4
    assert report.bandwidth_lines([measurement]) == [expected]


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
    kinds = {"sdpa", "ragged", "mha", "encoder_layer"}
    if find_spec("safetensors") and find_spec("tokenizers"):
        kinds.add("sentences")
    assert {case["kind"] for case in document["cases"]} == kinds
    for case in document["cases"]:
        assert f"| {case['name']} " in done.stdout
        for program in case["programs"]:
            assert min(program["best_seconds"]) > 0
            assert program["largest_error"] is None or program["largest_error"] <= case["tolerance"]
    assert document["overheads"]["scratch_bytes"]["1"] > 0
    assert min(document["overheads"]["import_seconds"]["mha_native.models"]) > 0
    for memory in document["overheads"]["models"]:
        assert memory["of_call"] > 0


def test_what_the_user_can_mend_is_said() -> None:
    script = Path(__file__).with_name("bench_attention.py")
    for arguments in (["--cases", "no-such"], ["--isa", "no-such"], ["--peers", "no-such"]):
        done = subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "no-such" in done.stderr
        assert "Traceback" not in done.stderr

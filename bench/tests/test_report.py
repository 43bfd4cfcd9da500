"""The report: the fastest program of each contender, ratios, the lines that it must have, JSON and pictures."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from mha_native_bench.cases.case import KINDS, Case
from mha_native_bench.cases.load import load_cases, plain_case
from mha_native_bench.contenders import Program
from mha_native_bench.measure.cells import Cell, ratio
from mha_native_bench.measure.results import Results
from mha_native_bench.measure.rounds import Measurement, Timed, Turn
from mha_native_bench.report.document import as_json
from mha_native_bench.report.text import against_lines, bandwidth_lines, layout, speed_table, text

SMALL = Case("small", "sdpa", "f32", B=1, H=4, Hk=2, Tq=5, Tk=7, D=8, E=0, causal=True)


def timed(contender: str, *medians: float, variant: str = "", threads: int = 1, error: float | None = 1e-7) -> Timed:
    turns = [Turn(median, median / 2) for median in medians]
    return Timed(Program(contender, threads, lambda: None, variant=variant), error, turns)


OURS = timed("mha_native", 1.0, 2.0, 1.0)


def measured(*programs: Timed, case: Case = SMALL, cannot: dict[str, str] | None = None) -> Measurement:
    return Measurement(case, 1e-6, [OURS, *programs], cannot or {}, peaks=[1e-9, 2e-9, 1e-9], cpus_of_others=0.25)


def results(*measurements: Measurement) -> Results:
    return Results({"cpu": "of paper"}, [1], {"openvino": "not installed"}, list(measurements))


def test_the_fastest_form_stands_for_its_contender() -> None:
    fast, slow = timed("torch", 3.0, 4.0, 1.0, variant="fast"), timed("torch", 4.0, 4.0, 4.0, variant="slow")
    cell = Cell(measured(slow, fast), 1)
    assert cell.peers == {"torch": fast}
    assert str(ratio(fast, OURS)) == "2.00 [1.50 2.50]"
    row = dict(zip(*speed_table([cell]), strict=True))
    assert (row["best peer"], row["best / ours"], row["torch"]) == ("torch fast", "2.00 [1.50 2.50]", "2.00")
    assert (row["us"], row["of peak"], row["busy"]) == ("1000000", f"{SMALL.flops:.0%}", "0.2")


def test_the_table_stays_narrow() -> None:
    quiet = dataclasses.replace(measured(timed("onnxruntime", 2.0, variant="a form of many words")), cpus_of_others=0.0)
    header, row = speed_table([Cell(quiet, 1)])
    assert "busy" not in header
    assert dict(zip(header, row, strict=True))["best peer"] == "onnxrt a form of many .."


def test_a_program_that_did_not_go_on_is_never_the_best() -> None:
    dropped, stayed = timed("numpy", 0.5), timed("torch", 3.0, 3.0, 3.0)
    cell = Cell(measured(dropped, stayed), 1)
    assert cell.best_peer is stayed
    assert ratio(cell.peers["numpy"], OURS).median == 0.5


def test_yardsticks_are_no_peers() -> None:
    assert Cell(measured(timed("read", 0.1, 0.1, 0.1), timed("padded", 0.1, 0.1, 0.1)), 1).best_peer is None


def test_cells_without_a_number_of_threads_have_no_peer_of_another() -> None:
    both = measured(timed("mha_native", 1.0, 1.0, 1.0, threads=2), timed("torch", 2.0, 2.0, 2.0))
    cells = [Cell(both, threads) for threads in (1, 2)]
    assert [cell.best_peer is None for cell in cells] == [False, True]
    table = speed_table(cells)
    assert [row[table[0].index("1/2 thr.")] for row in table[1:]] == ["", "1.00"]


def test_cells_with_a_faster_peer_are_listed() -> None:
    ahead = measured(timed("torch", 4.0, 8.0, 4.0))
    level = measured(timed("onnxruntime", 0.98, 1.96, 0.98), case=dataclasses.replace(SMALL, name="level"))
    behind = measured(
        timed("torch", 1.0, 2.0, 1.0),
        timed("onnxruntime", 0.5, 1.0, 0.5, variant="GQA"),
        case=dataclasses.replace(SMALL, name="lost"),
    )
    alone = measured(case=dataclasses.replace(SMALL, name="alone"))
    said = text(results(ahead, level, behind, alone), markdown=False)
    mean = (4 * 0.98 * 0.5) ** (1 / 3)
    assert (
        f"3 cells, not slower than the best peer (>= 0.98) 2; geometric mean against the best peer {mean:.2f}, "
        "against torch 2.00 (2 cells); 1 more without a peer" in said
    )
    assert (
        "Slower than the best peer:\n"
        "  lost, 1 thread: 0.50 [0.50 0.50], 1000000 us against 500000 us of onnxruntime (GQA)\n" in said
    )
    assert "nowhere" in text(results(ahead), markdown=False)
    assert "1 cell, without a peer" in text(results(alone), markdown=False)


def test_busy_cells_are_to_be_measured_again() -> None:
    quiet = dataclasses.replace(measured(), cpus_of_others=0.05)
    assert "measure again" in text(results(measured(), quiet), markdown=False)
    assert "measure again" not in text(results(quiet), markdown=False)


def test_who_cannot_says_why() -> None:
    some = [measured(case=dataclasses.replace(SMALL, name=f"c{i}"), cannot={"torch": "no softcap"}) for i in range(5)]
    said = text(results(*some, measured(cannot={"numpy": "no float16"})), markdown=False)
    for line in ("torch: no softcap (5 cases)", "numpy: no float16 (small)", "openvino: not installed"):
        assert f"\n  {line}\n" in said


def test_errors_are_shares_of_what_is_allowed() -> None:
    worse = measured(timed("torch", 1.0, error=5e-7), case=dataclasses.replace(SMALL, name="worse"))
    said = text(results(measured(timed("torch", 1.0, error=2e-7)), worse), markdown=False)
    assert "mha_native 0.10 (" in said
    assert "torch 0.50 (worse)" in said


def test_what_an_option_costs() -> None:
    case = next(case for case in load_cases() if case.name == "mask-T512-half")
    plain = plain_case(case)
    other = Timed(Program("against", 1, lambda: None, variant=plain.name, is_checked=False, pairs=plain.visible_pairs))
    other.turns.extend([Turn(2.0, 1.0)] * 3)
    expected = "mask-T512-half, 1 thread, over sdpa-T512-D64: 0.50 [0.50 0.75], of the pairs 0.50"
    assert against_lines([Cell(measured(other, case=case), 1)]) == [expected]


def test_decoding_is_held_against_reading() -> None:
    case = dataclasses.replace(SMALL, Tq=1, causal=False)
    ours, read = timed("mha_native", 2e-6), timed("read", 1e-6)
    cell = Cell(Measurement(case, 1e-6, [ours, read], peaks=[1.0]), 1)
    row = dict(zip(*speed_table([cell]), strict=True))
    assert row["of peak"] == "50% bw"
    assert row["best peer"] == "-"
    assert case.key_value_bytes == 2 * 2 * 7 * 8 * 4  # 2 Hk Tk D elements of 4 bytes
    assert bandwidth_lines([cell]) == ["reading keys and values, 1 thread: 0.9 GB/s (small)"]


def test_markdown_is_a_table() -> None:
    lines = layout([["case", "us"], ["a", "1"], ["bcdef", "10"]], markdown=True).splitlines()
    assert lines == ["| case  | us |", "|-------|---:|", "| a     |  1 |", "| bcdef | 10 |"]


def test_json_has_every_turn_and_every_reason() -> None:
    dropped = timed("numpy", 9.0)
    found = json.loads(
        json.dumps(as_json(results(measured(timed("torch", 2.0, 2.0, 2.0), dropped, cannot={"x": "no"}))))
    )
    [case] = found["cases"]
    assert [program["median_seconds"] for program in case["programs"]] == [[1.0, 2.0, 1.0], [2.0, 2.0, 2.0], [9.0]]
    assert (case["cannot"], found["absent"]) == ({"x": "no"}, {"openvino": "not installed"})
    [cell] = case["cells"]
    assert (cell["best_peer"], cell["best_over_ours"]["median"]) == ("torch", 2.0)


def test_pictures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from mha_native_bench.report.pictures import TITLES, draw

    mha = dataclasses.replace(SMALL, name="layer", kind="mha", Hk=4, Tq=7, E=32, dtype="bf16")
    reading = dataclasses.replace(SMALL, name="decode", Tq=1, causal=False)
    run = results(
        measured(timed("torch", 0.5, 0.5, 0.5)),
        measured(timed("torch", 9.0, 9.0, 9.0), case=mha),
        measured(timed("read", 0.5, 0.5, 0.5), case=reading),
    )
    assert set(TITLES) == set(KINDS)
    written = draw(run.cells, tmp_path / "out.png")
    assert [path.name for path in written] == ["out.png", "out-roofline.png"]
    for path in written:
        assert path.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in draw(results(measured()).cells, tmp_path / "no-peer.png")] == ["no-peer-roofline.png"]

"""The comparison of runs of mha_bench: ratios, their spread, and which differences are clear."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mha_native_bench import compare


def write(
    path: Path, times: dict[str, list[float]], peaks: dict[str, list[float]] | None = None, **context: Any
) -> Path:
    """Each benchmark's repetitions, in microseconds, and an aggregate that must be skipped."""
    runs = []
    for name, values in times.items():
        for i, value in enumerate(values):
            run = {"name": name, "run_name": f"{name}/real_time", "run_type": "iteration", "real_time": value * 1e3}
            run["time_unit"] = "ns"
            if peaks:
                run["of_peak"] = peaks[name][i]
            runs.append(run)
        runs.append({"run_name": name, "run_type": "aggregate", "real_time": 1e9, "time_unit": "us"})
    path.write_text(json.dumps({"context": {"isa": "avx2", **context}, "benchmarks": runs}))
    return path


def test_ratio_and_spread(tmp_path: Path) -> None:
    before = write(tmp_path / "a.json", {"layer": [10, 20, 30]})
    after = write(tmp_path / "b.json", {"layer": [5, 10, 15]})
    (row,) = compare.compare(compare.read([before]), compare.read([after]))
    quotients = sorted([1 / 2, 1, 3 / 2, 1 / 4, 1 / 2, 3 / 4, 1 / 6, 1 / 3, 1 / 2])
    assert (row.before, row.after, row.best) == (20, 10, 0.5)
    assert row.times == pytest.approx((quotients[2], quotients[4], quotients[6]))


def test_several_files_are_one_side(tmp_path: Path) -> None:
    files = [write(tmp_path / f"{i}.json", {"layer": [float(i)]}) for i in (1, 2, 3)]
    assert [one.microseconds for one in compare.read(files)["layer"]] == [1, 2, 3]


@pytest.mark.parametrize(
    ("after", "of_peak", "clear"),
    [
        ([5.0, 5.1, 5.2], [0.8, 0.82, 0.81], True),  # faster, and by its share of the peak
        ([5.0, 5.1, 5.2], [0.4, 0.42, 0.41], False),  # faster, because the machine was
        ([9.0, 10.1, 11.0], [0.8, 0.82, 0.81], False),  # within the spread
        ([20.0, 20.1, 20.2], [0.2, 0.21, 0.2], True),  # slower
    ],
)
def test_a_star_needs_both_ratios(tmp_path: Path, after: list[float], of_peak: list[float], clear: bool) -> None:
    old = write(tmp_path / "a.json", {"x": [10, 10.1, 10.2]}, {"x": [0.4, 0.41, 0.42]})
    new = write(tmp_path / "b.json", {"x": after}, {"x": of_peak})
    (row,) = compare.compare(compare.read([old]), compare.read([new]))
    assert row.is_clear is clear


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = write(tmp_path / "a.json", {"x": [10, 10], "gone": [1]})
    new = write(tmp_path / "b.json", {"x": [20, 20], "new": [1]}, isa="avx512")
    assert compare.main([str(old), "--to", str(new)]) == 0
    assert compare.main([str(old), "--to", str(new), "--fail-above", "1.5"]) == 1
    assert compare.main([str(old), "--to", str(new), "--fail-above", "2.5"]) == 0
    printed = capsys.readouterr()
    assert "2.000 [2.000 2.000]" in printed.out
    assert "only before: gone" in printed.out
    assert "only after: new" in printed.out
    assert "isa differs" in printed.err


def test_what_cannot_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write(tmp_path / "a.json", {"x": [10]})
    other = write(tmp_path / "b.json", {"y": [10]})
    assert compare.main([str(one), "--to", str(other)]) == 2
    (tmp_path / "list.json").write_text("[]")
    assert compare.main([str(one), "--to", str(tmp_path / "list.json")]) == 2
    document = json.loads(one.read_text())
    document["benchmarks"][0].update(error_occurred=True, error_message="off by 1")
    one.write_text(json.dumps(document))
    assert compare.main([str(one), "--to", str(other)]) == 2
    assert "off by 1" in capsys.readouterr().err

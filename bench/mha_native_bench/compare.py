"""Compares runs of `mha_bench`, the benchmark in C++, before a change and after it.

    python -m mha_native_bench.compare before-1.json before-2.json --to after-1.json after-2.json

The files are those of `--benchmark_out`. "after / before" is the time after over the time before, so that below 1 the
change made it faster: the median, with its quartiles, over all pairs of a repetition before and one after. "by peak" is
the fraction of peak before over that after, which does not change if the whole machine was slower during one of the
runs. A star marks a benchmark whose two ratios are on the same side of 1 with all their quartiles. "best" is the ratio
of the fastest repetitions, which other users of the machine disturb least.

Exit code: 0; 2 if the files cannot be compared, or 1 with --fail-above if a starred ratio is above that.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

# What two runs must share, or their times say nothing about the code.
SAME_CONTEXT = ("isa", "host_name", "num_cpus")


class Repetition(NamedTuple):
    """Microseconds of a call in one repetition of a benchmark, and its fraction of peak if it has one."""

    microseconds: float
    of_peak: float | None


class Ratio(NamedTuple):
    low: float
    median: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f} {self.high:.3f}]"


class Row(NamedTuple):
    name: str
    before: float  # median microseconds
    after: float
    times: Ratio
    best: float  # of the fastest repetitions
    by_peak: Ratio | None

    @property
    def is_clear(self) -> bool:
        ratios = [ratio for ratio in (self.times, self.by_peak) if ratio is not None]
        return all(ratio.high < 1 for ratio in ratios) or all(ratio.low > 1 for ratio in ratios)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Times after a change over times before it, with their spread.")
    parser.add_argument("before", nargs="+", type=Path, metavar="BEFORE", help="JSON of mha_bench")
    parser.add_argument("--to", nargs="+", type=Path, metavar="AFTER", required=True, help="likewise")
    parser.add_argument(
        "--fail-above", type=float, metavar="RATIO", help="exit with 1 if a starred ratio is above this"
    )
    options = parser.parse_args(arguments)
    try:
        before, after = read(options.before), read(options.to)
        warn_of_other_machine(options.before + options.to)
    except (OSError, ValueError) as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    rows = compare(before, after)
    if not rows:
        print("compare: the files share no benchmark", file=sys.stderr)
        return 2
    print(table(rows))
    for name in sorted(before.keys() ^ after.keys()):
        print(f"only {'before' if name in before else 'after'}: {name}")
    limit = options.fail_above
    return int(limit is not None and any(row.is_clear and row.times.median > limit for row in rows))


def read(paths: Sequence[Path]) -> dict[str, list[Repetition]]:
    """The repetitions of each benchmark from all files, in the order of the files."""
    repetitions: dict[str, list[Repetition]] = {}
    for path in paths:
        for run in load(path)["benchmarks"]:
            if run.get("run_type") != "iteration":
                continue  # an aggregate
            if run.get("error_occurred"):
                raise ValueError(f"{path}: {run['name']} failed: {run.get('error_message', '')}")
            scale = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}[run["time_unit"]]
            repetition = Repetition(run["real_time"] * scale, run.get("of_peak"))
            repetitions.setdefault(run["run_name"].replace("/real_time", ""), []).append(repetition)
    return repetitions


def load(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict) or not {"context", "benchmarks"} <= document.keys():
        raise ValueError(f"{path}: not the JSON of a benchmark")
    return document


def warn_of_other_machine(paths: Sequence[Path]) -> None:
    contexts = [load(path)["context"] for path in paths]
    for key in SAME_CONTEXT:
        if len({str(context.get(key)) for context in contexts}) > 1:
            print(f"compare: {key} differs: {[context.get(key) for context in contexts]}", file=sys.stderr)


def compare(before: dict[str, list[Repetition]], after: dict[str, list[Repetition]]) -> list[Row]:
    rows = []
    for name in before:
        if name not in after:
            continue
        old, new = ([one.microseconds for one in side[name]] for side in (before, after))
        old_peak, new_peak = ([one.of_peak for one in side[name] if one.of_peak] for side in (before, after))
        by_peak = ratio_of(old_peak, new_peak) if old_peak and new_peak else None
        medians = statistics.median(old), statistics.median(new)
        rows.append(Row(name, *medians, ratio_of(new, old), min(new) / min(old), by_peak))
    return rows


def ratio_of(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Median and quartiles of the quotients of all pairs, as repetitions of two processes have no order in common."""
    quotients = [a / b for a in numerators for b in denominators]
    if len(quotients) == 1:
        return Ratio(quotients[0], quotients[0], quotients[0])
    return Ratio(*statistics.quantiles(quotients, n=4, method="inclusive"))


def table(rows: Sequence[Row]) -> str:
    header = ("benchmark", "before us", "after us", "after / before", "best", "by peak", "")
    lines = [header]
    for row in rows:
        by_peak = "-" if row.by_peak is None else str(row.by_peak)
        star = "*" if row.is_clear else ""
        lines.append(
            (row.name, f"{row.before:.4g}", f"{row.after:.4g}", str(row.times), f"{row.best:.3f}", by_peak, star)
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        ).rstrip()
        for line in lines
    )


if __name__ == "__main__":
    sys.exit(main())

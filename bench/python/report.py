"""What is said about measurements: medians, quartiles and ratios, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from measure import Measurement, Timed

READ = "read"  # the contender whose time over ours is a fraction of bandwidth


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    low, median, high = np.percentile(values, [25, 50, 75])
    return float(low), float(median), float(high)


def fastest_of(measurement: Measurement, contender: str, threads: int) -> Timed | None:
    """The program that stands for `contender`: of the least median."""
    timed = [t for t in measurement.timed if (t.program.contender, t.program.threads) == (contender, threads)]
    return min(timed, key=lambda t: quartiles(t.medians)[1], default=None)


def ratio(of: Timed, to: Timed) -> str:
    """How many times as long `of` takes as `to`: the median of the rounds [quartiles], and best to best."""
    low, median, high = quartiles([a / b for a, b in zip(of.medians, to.medians, strict=True)])
    return f"{median:.2f} [{low:.2f} {high:.2f}] {of.best / to.best:.2f}"


def speed_table(measurements: list[Measurement], peers: list[str], thread_counts: list[int]) -> list[list[str]]:
    """One row for each case and number of threads. "Best" is the fastest call against the highest peak of its dtype."""
    few, many = thread_counts[0], thread_counts[-1]
    ran = {t.program.contender for m in measurements for t in m.timed}
    peers = [peer for peer in peers if peer in ran]
    header = ["case", "threads", "us", "best us", "GFLOP/s", "GB/s", "of peak", "best"]
    header += ["of bandwidth" if peer == READ else f"{peer} / ours" for peer in peers]
    if many > few:
        header.append(f"{few} / {many} threads")
    header.append("others")
    highest_peak: dict[str, float] = {}
    for m in measurements:
        highest_peak[m.case.dtype] = max(highest_peak.get(m.case.dtype, 0), *m.peaks)

    rows = [header]
    for m in measurements:
        single = fastest_of(m, "mha_native", few)
        for threads in thread_counts:
            ours = fastest_of(m, "mha_native", threads)
            if single is None or ours is None:
                raise ValueError(f"{m.case.name}: mha_native was not measured with {threads} threads")
            low, median, high = quartiles(ours.medians)
            gflops = m.case.flops * 1e-9 / np.array(ours.medians)
            best_gflops = m.case.flops * 1e-9 / ours.best
            row = [
                m.case.name,
                str(threads),
                f"{number(median * 1e6)} [{number(low * 1e6)} {number(high * 1e6)}]",
                number(ours.best * 1e6),
                number(m.case.flops * 1e-9 / median),
                number(m.case.least_bytes * 1e-9 / median),
                f"{np.median(gflops / (threads * np.array(m.peaks))):.2f}",
                f"{best_gflops / (threads * highest_peak[m.case.dtype]):.2f}",
            ]
            for peer in peers:
                other = fastest_of(m, peer, threads)
                row.append(f"{ratio(other, ours)} {other.program.variant}".rstrip() if other else "-")
            if many > few:
                row.append(ratio(single, ours) if threads > few else "")
            row.append("" if m.cpus_of_others is None else f"{m.cpus_of_others:.1f}")
            rows.append(row)
    return rows


def error_table(measurements: list[Measurement], contenders: list[str]) -> list[list[str]]:
    """Largest errors against float64, one row for each case, over all thread counts and programs of a contender."""
    checked = {t.program.contender for m in measurements for t in m.timed if t.error is not None}
    contenders = [name for name in contenders if name in checked]
    rows = [["case", *contenders, "allowed", *(["ours / numpy"] if "numpy" in contenders else [])]]
    for m in measurements:
        largest: dict[str, float] = {}
        for t in m.timed:
            if t.error is not None:
                largest[t.program.contender] = max(t.error, largest.get(t.program.contender, 0))
        row = [m.case.name, *(f"{largest[name]:.1e}" if name in largest else "-" for name in contenders)]
        row.append(f"{m.tolerance:.1e}")
        if "numpy" in contenders:
            unfused = largest.get("numpy", 0)
            row.append(f"{largest['mha_native'] / unfused:.2f}" if unfused else "-")
        rows.append(row)
    return rows


def against_lines(measurements: list[Measurement]) -> list[str]:
    """What an option costs or saves: time and pairs of the case, over those of what it is timed beside."""
    lines = []
    for m in measurements:
        for other in m.timed:
            ours = fastest_of(m, "mha_native", other.program.threads)
            if other.program.pairs and ours is not None:
                name = other.program.variant or other.program.contender
                times, pairs = ratio(ours, other), m.case.visible_pairs / other.program.pairs
                against = f"{m.case.name} against {name}, {threads_of(other)}"
                lines.append(f"{against}: {times} x as long, {pairs:.2f} x the pairs")
    return lines


def variant_lines(measurements: list[Measurement]) -> list[str]:
    """All forms in which peers embed sentences, not only the fastest: padding is a choice of their users."""
    lines = []
    for m in measurements:
        for other in m.timed:
            ours = fastest_of(m, "mha_native", other.program.threads)
            is_peer = not other.program.pairs  # those have a line of their own
            if m.case.kind == "sentences" and other.program.variant and is_peer and ours is not None:
                median = number(quartiles(other.medians)[1] * 1e6)
                name = f"{m.case.name}, {other.program.label}, {threads_of(other)}"
                lines.append(f"{name}: {median} us, {ratio(other, ours)} x ours")
    return lines


def bandwidth_lines(measurements: list[Measurement]) -> list[str]:
    """What "of bandwidth" divides by."""
    lines = []
    for m in measurements:
        for read in m.timed:
            if read.program.contender == READ:
                gigabytes = m.case.key_value_bytes * 1e-9
                low, median, high = quartiles([gigabytes / seconds for seconds in read.medians])
                rates = f"median {median:.1f} GB/s [{low:.1f} {high:.1f}], best {gigabytes / read.best:.1f}"
                lines.append(f"Read bandwidth, {m.case.name}, {threads_of(read)}: {rates}")
    return lines


def threads_of(timed: Timed) -> str:
    return f"{timed.program.threads} thread{'s' * (timed.program.threads > 1)}"


def peak_lines(measurements: list[Measurement]) -> list[str]:
    """The multiply-add peak of one thread, over all rounds of all cases, by dtype."""
    lines = []
    for dtype in sorted({m.case.dtype for m in measurements}):
        peaks = [peak for m in measurements if m.case.dtype == dtype for peak in m.peaks]
        low, median, high = quartiles(peaks)
        lines.append(
            f"FMA peak {dtype}, one thread: median {median:.1f} GFLOP/s [{low:.1f} {high:.1f}], best {max(peaks):.1f}; "
            "of n threads: n times that"
        )
    return lines


def number(value: float) -> str:
    """Three significant digits, or all of an integer part."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def layout(rows: list[list[str]], markdown: bool) -> str:
    """Rows as text, the first of them the header; the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[0] = row[0].ljust(widths[0])
        lines.append(f"| {' | '.join(cells)} |" if markdown else "  ".join(cells).rstrip())
    if markdown:
        rule = [("-" * (width + 1) + ":") if i else "-" * (width + 2) for i, width in enumerate(widths)]
        lines.insert(1, f"|{'|'.join(rule)}|")
    return "\n".join(lines)


def as_json(measurements: list[Measurement]) -> list[dict[str, Any]]:
    """Every turn of every program: what the tables are made from."""
    return [
        {
            **asdict(m.case),
            "flops": m.case.flops,
            "least_bytes": m.case.least_bytes,
            "tolerance": m.tolerance,
            "peak_gflops": m.peaks,
            "cpus_of_others": m.cpus_of_others,
            "programs": [
                {
                    "contender": t.program.contender,
                    "variant": t.program.variant,
                    "threads": t.program.threads,
                    "largest_error": t.error,
                    "median_seconds": t.medians,
                    "best_seconds": [turn.best for turn in t.turns],
                }
                for t in m.timed
            ],
        }
        for m in measurements
    ]

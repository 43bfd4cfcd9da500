"""The report as text: a table, its summary, and the lines below it."""

from __future__ import annotations

from collections.abc import Sequence

from mha_native_bench.contenders import PEERS
from mha_native_bench.measure.cells import LEVEL, READ, Cell, geometric_mean, ratio, spread
from mha_native_bench.measure.results import Results
from mha_native_bench.measure.rounds import Measurement, Timed
from mha_native_bench.wording import counted, ratio_text, three_digits

MOST_NAMES = 3  # of cases that a line lists; of more it gives the number, as the table has a dash in each of them

BUSY = 0.1  # CPUs that other processes may keep busy before a time counts as disturbed

WIDEST_LABEL = 24  # characters of the best peer in the table

SHORT_NAMES = {"onnxruntime": "onnxrt", "transformers": "transf."}  # at the head of a column

Section = tuple[str, list[str]]


def text(results: Results, markdown: bool) -> str:
    """The whole report."""
    cells, measurements = results.cells, results.measurements
    sections: list[Section] = [
        ("Against the best peer", summary(cells)),
        ("Slower than the best peer", slower_lines(cells)),
        ("Wrong, and not timed", results.wrong),
        (
            "Without a result",
            [*(f"{name}: {why}" for name, why in results.absent.items()), *cannot_lines(measurements)],
        ),
        ("Cost of options: time of the case over the time of another case", against_lines(cells)),
        ("Largest error against the float64 oracle, over what rounding allows", [error_line(measurements)]),
        ("The machine", [*peak_lines(measurements), *bandwidth_lines(cells)]),
        ("Overheads", results.overheads.lines() if results.overheads else []),
    ]
    width = 0 if markdown else max(map(len, results.facts)) + 2
    parts = ["\n".join(f"{'- ' * markdown}{name:<{width}} {fact}" for name, fact in results.facts.items())]
    parts.append("Times of peers are multiples of ours, medians over rounds [quartiles]; above 1, ours is faster.")
    parts.append(layout(speed_table(cells), markdown))
    for title, lines in sections:
        if lines:
            bullet = "- " if markdown else "  "
            parts.append("\n".join([f"{title}:", *[""] * markdown, *(f"{bullet}{line}" for line in lines)]))
    return "\n\n".join(parts)


def speed_table(cells: list[Cell]) -> list[list[str]]:
    """The header, then one row for each cell. Columns without an entry are left out."""
    peers = [name for name in PEERS if any(name in cell.peers for cell in cells)]
    few, many = min(cell.threads for cell in cells), max(cell.threads for cell in cells)
    single = {cell.case.name: cell for cell in cells if cell.threads == few}
    has_busy = any(is_busy(cell) for cell in cells)
    header = ["case", "thr.", "us", "of peak", "best peer", "best / ours"]
    header += [SHORT_NAMES.get(peer, peer) for peer in peers]
    header += [f"{few}/{many} thr."] * (many > few) + ["busy"] * has_busy
    rows = [header]
    for cell in cells:
        read, busy = cell.of_bandwidth, cell.measurement.cpus_of_others
        row = [
            cell.case.name,
            str(cell.threads),
            three_digits(spread(cell.ours.medians).median * 1e6),
            f"{cell.of_peak:.0%}" if read is None else f"{read.median:.0%} bw",
            short_label(cell.best_peer) if cell.best_peer else "-",
            str(cell.lead or "-"),
            *(ratio_text(ratio(cell.peers[peer], cell.ours).median) if peer in cell.peers else "-" for peer in peers),
        ]
        if many > few:
            speedup = ratio(single[cell.case.name].ours, cell.ours).median
            row.append(ratio_text(speedup) if cell.threads > few else "")
        if has_busy:
            row.append("" if busy is None else f"{busy:.1f}")
        rows.append(row)
    return rows


def short_label(timed: Timed) -> str:
    """Contender and variant, cut to the width of the column; the whole label is in the JSON."""
    program = timed.program
    label = f"{SHORT_NAMES.get(program.contender, program.contender)} {program.variant}".rstrip()
    return label if len(label) <= WIDEST_LABEL else f"{label[: WIDEST_LABEL - 2]}.."


def is_busy(cell: Cell) -> bool:
    return (cell.measurement.cpus_of_others or 0) > BUSY


def summary(cells: list[Cell]) -> list[str]:
    leads = [lead.median for lead in (cell.lead for cell in cells) if lead is not None]
    without = len(cells) - len(leads)
    lines = []
    if leads:
        level = sum(lead >= LEVEL for lead in leads)
        line = (
            f"{counted(len(leads), 'cell')}, not slower than the best peer (>= {LEVEL}) {level}; "
            f"geometric mean against the best peer {geometric_mean(leads):.2f}"
        )
        of_torch = [ratio(cell.peers["torch"], cell.ours).median for cell in cells if "torch" in cell.peers]
        if of_torch:
            line += f", against torch {geometric_mean(of_torch):.2f} ({counted(len(of_torch), 'cell')})"
        lines.append(line + f"; {without} more without a peer" * (without > 0))
    else:
        lines.append(f"{counted(without, 'cell')}, without a peer")
    busy = sum(map(is_busy, cells))
    if busy:
        lines.append(f"in {counted(busy, 'cell')} other processes kept more than {BUSY} CPUs busy: measure again")
    return lines


def slower_lines(cells: list[Cell]) -> list[str]:
    """One line for each cell in which a peer is faster, the largest difference first."""
    slower = [(cell.lead.median, cell) for cell in cells if cell.lead is not None and cell.lead.median < LEVEL]
    lines = []
    for _, cell in sorted(slower, key=lambda pair: pair[0]):
        best = cell.best_peer
        if best is not None:
            ours, theirs = (three_digits(spread(one.medians).median * 1e6) for one in (cell.ours, best))
            lines.append(f"{cell.label}: {cell.lead}, {ours} us against {theirs} us of {best.program.label}")
    return lines or ["nowhere"] * any(cell.peers for cell in cells)


def cannot_lines(measurements: list[Measurement]) -> list[str]:
    """Which contenders cannot compute which cases, and why."""
    names: dict[tuple[str, str], list[str]] = {}
    for m in measurements:
        for contender, why in m.cannot.items():
            names.setdefault((contender, why), []).append(m.case.name)
    lines = []
    for (contender, why), cases in sorted(names.items()):
        which = f"{len(cases)} cases" if len(cases) > MOST_NAMES else ", ".join(cases)
        lines.append(f"{contender}: {why} ({which})")
    return lines


def against_lines(cells: list[Cell]) -> list[str]:
    """Time and query-key pairs of each case over those of the yardsticks that have a number of pairs."""
    lines = []
    for cell in cells:
        for other in cell.measurement.timed:
            program = other.program
            if program.pairs and program.threads == cell.threads:
                pairs = cell.case.visible_pairs / program.pairs
                name = program.variant or program.contender
                lines.append(f"{cell.label}, over {name}: {ratio(cell.ours, other)}, of the pairs {pairs:.2f}")
    return lines


def error_line(measurements: list[Measurement]) -> str:
    """The largest error of each contender over the bound of its case, and the name of the case."""
    largest: dict[str, tuple[float, str]] = {}
    for m in measurements:
        for one in m.timed:
            if one.error is not None:
                found = one.error / m.tolerance, m.case.name
                largest[one.program.contender] = max(found, largest.get(one.program.contender, found))
    return ", ".join(f"{contender} {share:.2f} ({case})" for contender, (share, case) in largest.items())


def bandwidth_lines(cells: list[Cell]) -> list[str]:
    """The least and the most GB/s of the yardstick `read`, by number of threads."""
    rates: dict[int, list[tuple[float, str]]] = {}
    for cell in cells:
        for read in cell.programs_of(READ):
            rate = cell.case.streamed_bytes * 1e-9 / spread(read.medians).median
            rates.setdefault(cell.threads, []).append((rate, cell.case.name))
    lines = []
    for threads, found in rates.items():
        ends = " to ".join(f"{rate:.1f} GB/s ({name})" for rate, name in sorted({min(found), max(found)}))
        lines.append(f"reading keys and values, {counted(threads, 'thread')}: {ends}")
    return lines


def peak_lines(measurements: list[Measurement]) -> list[str]:
    """The multiply-add peak of one thread over all rounds of all cases, by dtype."""
    lines = []
    for dtype in sorted({m.case.dtype for m in measurements}):
        peaks = [peak for m in measurements if m.case.dtype == dtype for peak in m.peaks]
        at = spread(peaks)
        rates = f"median {at.median:.0f} GFLOP/s [{at.low:.0f} {at.high:.0f}], best {max(peaks):.0f}"
        lines.append(f"FMA peak {dtype}, one thread: {rates}; of n threads: n times that")
    return lines


def layout(rows: Sequence[Sequence[str]], markdown: bool) -> str:
    """A table, its header first: the first column aligned to the left, the others to the right."""
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

"""Two pictures: times of the best peer over ours, and our FLOP/s below the roofline of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import ticker
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from mha_native_bench.cases.case import KINDS
from mha_native_bench.measure.cells import LEVEL, READ, Cell, spread
from mha_native_bench.measure.rounds import Timed
from mha_native_bench.wording import counted

INCHES_OF_BAR = 0.15
ROOM_FOR_NAMES = 0.25  # of the width, right of the longest bar
SAME_ROOF = 0.1  # relative difference of peaks that are drawn as one line
LEAST_DRAWN = 0.2  # the axis begins here at the least; a lower ratio is cut off, and its number is printed

AHEAD = ("tab:blue", "lightskyblue", "tab:cyan")  # by number of threads, the fewest first
BEHIND = ("tab:red", "lightcoral", "tab:pink")
COLOURS = {"f32": "tab:blue", "bf16": "tab:orange", "f16": "tab:green", "f64": "tab:purple", "int8": "tab:red"}

TITLES = {
    "sdpa": "attention",
    "cached": "attention over a cache",
    "ragged": "attention, ragged batches",
    "mha": "layers of attention",
    "step": "steps of a decoder",
    "encoder_layer": "layers of an encoder",
    "attention_backward": "gradients of attention",
    "linear_backward": "gradients of linear maps",
    "training": "training of encoders",
    "sentences": "sentence models",
    "images": "image models",
    "decoder": "language models",
    "experts": "experts",
    "linear": "linear maps",
    "maxsim": "late interaction",
}


def draw(cells: list[Cell], path: Path) -> list[Path]:
    """Writes the bars to `path` and the roofline beside it, and returns the paths of both."""
    written = []
    for suffix, figure in (("", bars(cells)), ("-roofline", roofline(cells))):
        if figure is not None:
            FigureCanvasAgg(figure)
            written.append(path.with_stem(path.stem + suffix))
            figure.savefig(written[-1], dpi=110)
    return written


def bars(cells: list[Cell]) -> Figure | None:
    """Time of the best peer over ours on a logarithmic axis: a panel for each kind, a group of bars for each case."""
    with_peer = [cell for cell in cells if cell.lead is not None]
    kinds = [kind for kind in KINDS if any(cell.case.kind == kind for cell in with_peer)]
    if not kinds:
        return None
    groups = {kind: [cell for cell in with_peer if cell.case.kind == kind] for kind in kinds}
    threads = sorted({cell.threads for cell in with_peer})
    rows = {kind: list(dict.fromkeys(cell.case.name for cell in group)) for kind, group in groups.items()}
    step = INCHES_OF_BAR * (len(threads) + 0.8)  # height of a case
    heights = [0.5 * INCHES_OF_BAR + step * len(rows[kind]) for kind in kinds]
    figure = Figure(figsize=(12, sum(heights) + 0.5 * len(kinds) + 1.2), layout="constrained")
    panels = figure.subplots(len(kinds), 1, squeeze=False, sharex=True, gridspec_kw={"height_ratios": heights})[:, 0]
    for panel, kind in zip(panels, kinds, strict=True):
        for cell in groups[kind]:
            lead, best, which = cell.lead, cell.best_peer, threads.index(cell.threads)
            if lead is None or best is None:
                continue
            at = rows[kind].index(cell.case.name) + (which - (len(threads) - 1) / 2) / (len(threads) + 0.8)
            colours = BEHIND if lead.median < LEVEL else AHEAD
            panel.barh(
                at,
                lead.median - 1,
                left=1,
                height=0.9 / (len(threads) + 0.8),
                color=colours[which % len(colours)],
                xerr=[[lead.median - lead.low], [lead.high - lead.median]],
                error_kw={"elinewidth": 0.8, "ecolor": "black"},
            )
            panel.annotate(
                f"{lead.median:.2f}  {best.program.label}",
                (max(lead.high, 1), at),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=6.5,
            )
        panel.axvline(1, color="black", linewidth=1)
        panel.set_yticks(range(len(rows[kind])), rows[kind], fontsize=8)
        panel.set_ylim(len(rows[kind]) - 0.4, -0.6)
        panel.set_title(TITLES[kind], fontsize=10, loc="left")
        on_log_axis(panel.xaxis, panel.set_xscale, (1, 1.5, 2, 3, 5))
        panel.tick_params(axis="x", labelbottom=True, labelsize=8)
        panel.grid(axis="x", which="both", linewidth=0.4)
        panel.set_axisbelow(True)
    low = max(LEAST_DRAWN, min(0.9, *(cell.lead.low for cell in with_peer if cell.lead)) / 1.05)
    high = max(2, *(cell.lead.high for cell in with_peer if cell.lead))
    panels[0].set_xlim(low, low * (high / low) ** (1 / (1 - ROOM_FOR_NAMES)))
    of_threads = ", ".join(f"{counted(n, 'thread')} {'above' if i == 0 else 'below'}" for i, n in enumerate(threads))
    figure.suptitle(
        f"Time of the best peer over ours, median and quartiles ({of_threads}); red: ours is slower", fontsize=11
    )
    return figure


def roofline(cells: list[Cell]) -> Figure | None:
    """GFLOP/s of ours and of the best peer over FLOP per byte that must be moved, with the fewest threads."""
    few = min((cell.threads for cell in cells), default=0)
    cells = [cell for cell in cells if cell.threads == few]
    if not cells:
        return None
    figure = Figure(figsize=(12, 8), layout="constrained")
    panel = figure.subplots()
    for cell in cells:
        colour = COLOURS[cell.case.precision]
        intensity, ours = cell.case.flops / cell.case.least_bytes, gflops(cell, cell.ours)
        if cell.best_peer is not None:
            theirs = gflops(cell, cell.best_peer)
            panel.plot([intensity] * 2, [theirs, ours], color=colour, linewidth=0.6, alpha=0.6)
            panel.plot(intensity, theirs, "o", color=colour, fillstyle="none", markersize=6)
        panel.plot(intensity, ours, "o", color=colour, markersize=6)
    draw_roofs(panel, cells, few)
    for precision in dict.fromkeys(cell.case.precision for cell in cells):
        panel.plot([], [], "o", color=COLOURS[precision], label=f"{precision}, ours")
    panel.plot([], [], "o", color="black", fillstyle="none", label="the best peer in the same case")
    panel.set_xlabel("FLOP for each byte of inputs, weights and result")
    panel.set_ylabel("GFLOP/s")
    on_log_axis(panel.xaxis, panel.set_xscale)
    on_log_axis(panel.yaxis, panel.set_yscale)
    panel.grid(which="both", linewidth=0.3)
    panel.legend(loc="lower right", fontsize=9)
    panel.set_title(f"Roofline, {counted(few, 'thread')}: the roofs are measured in the same run")
    return figure


def draw_roofs(panel: Any, cells: Sequence[Cell], threads: int) -> None:
    """Draws the peaks of multiply-adds, and the bandwidth of reading from caches and from memory."""
    intensities = [cell.case.flops / cell.case.least_bytes for cell in cells]
    left, right = min(intensities) / 1.5, max(intensities) * 1.5
    peaks: dict[float, list[str]] = {}  # the dtypes of each peak
    for dtype in dict.fromkeys(cell.case.dtype for cell in cells):
        peak = (
            threads * spread([p for cell in cells if cell.case.dtype == dtype for p in cell.measurement.peaks]).median
        )
        shared = next((other for other in peaks if abs(peak / other - 1) < SAME_ROOF), peak)
        peaks.setdefault(shared, []).append(dtype)
    for peak, dtypes in peaks.items():
        panel.plot([left, right], [peak, peak], color=COLOURS[dtypes[0]], linewidth=1.5)
        annotate(panel, f"multiply-adds in {', '.join(dtypes)}: {peak:.0f} GFLOP/s", left, peak)
    for cold, where in ((False, "hot"), (True, "cold")):
        rates = [
            cell.case.streamed_bytes * 1e-9 / spread(read.medians).median
            for cell in cells
            if cell.case.cold == cold
            for read in cell.programs_of(READ)
        ]
        if rates:
            rate = max(rates)
            end = min(right, max(peaks) / rate)
            panel.plot([left, end], [left * rate, end * rate], color="dimgray", linewidth=1.5)
            annotate(panel, f"reading, {where}: {rate:.0f} GB/s", left, left * rate)
    panel.set_xlim(left, right)


def annotate(panel: Any, words: str, x: float, y: float) -> None:
    panel.annotate(words, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=9)


def gflops(cell: Cell, timed: Timed) -> float:
    return cell.case.flops * 1e-9 / spread(timed.medians).median


def on_log_axis(axis: Any, set_scale: Any, labelled: Sequence[float] = (1, 2, 5)) -> None:
    """A logarithmic axis with plain numbers instead of powers of ten."""
    set_scale("log")
    axis.set_major_locator(ticker.LogLocator(subs=labelled))
    axis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axis.set_minor_formatter(ticker.NullFormatter())

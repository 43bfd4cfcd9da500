"""Draw the numbers of bench/RESULTS.md, read from the tables of its summary and from its report."""

import re
from pathlib import Path

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

OURS, BEST, TORCH = "#1f6f8b", "#d98e04", "#8a8f98"
KINDS = ("f32", "bf16", "int8 weights")  # headers of the tables, and names of the pictures


def summary(text: str, kind: str) -> list[tuple[str, float, float | None]]:
    """Return (name, ratio of the best peer, ratio of torch) for each row of a table of the summary, on one thread."""
    table = text.partition(f"| {kind} |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return [(row[0], float(row[4].split(",")[0]), float(row[6].split(",")[0]) if row[6] else None) for row in rows]


def report(text: str) -> list[tuple[str, int, float]]:
    """Return (case, number of threads, ratio of the best peer) for each cell of the report."""
    lines = text.partition("\ncase ")[2].splitlines()
    cells = (re.match(r"(\S+) +(\d+) +[\d.]+ .*? ([\d.]+) \[[\d. ]+\]", line) for line in lines)
    return [(cell[1], int(cell[2]), float(cell[3])) for cell in cells if cell]


def draw_speed(results: Path, folder: Path) -> None:
    """Write speed-*.svg to `folder`."""
    text = results.read_text(encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        _save(_bars(summary(text, kind)), folder / f"speed-{kind.split()[0]}.svg")
    _save(_all_cells(report(text)), folder / "speed-all.svg")


def _bars(rows: list[tuple[str, float, float | None]]) -> Figure:
    """Return bars of the times of the best peer and of torch for each case, as multiples of our time."""
    names = [_full(rows, i) for i in range(len(rows))]
    figure = Figure(figsize=(7.2, 0.42 * len(rows) + 1.1), layout="constrained")
    panel = figure.subplots()
    for i, (_, best, torch) in enumerate(rows):
        for offset, ratio, color in ((-0.2, best, BEST), (0.2, torch, TORCH)):
            if ratio is not None:
                panel.barh(i + offset, ratio, height=0.38, color=color)
                panel.text(ratio + 0.05, i + offset, f"{ratio:.2f}", va="center", fontsize=7)
    panel.axvline(1, color=OURS, linewidth=2)
    panel.set_yticks(range(len(rows)), names, fontsize=8)
    panel.invert_yaxis()
    panel.margins(x=0.08, y=0.02)
    panel.set_xlabel("time relative to mha_native, one thread")
    _legend(figure, {"mha_native (1.0)": OURS, "best other library": BEST, "torch": TORCH})
    return figure


def _full(rows: list[tuple[str, float, float | None]], i: int) -> str:
    """Return the name of a row, with "the same" replaced by the name of the row above."""
    name = rows[i][0]
    if not name.startswith("the same"):
        return name
    above = next(rows[j][0] for j in range(i, -1, -1) if not rows[j][0].startswith("the same"))
    kind = above.split(",")[0]
    return f"{kind},{name.removeprefix('the same').lstrip(',')}" if "sentence" in kind else f"{above}{name[8:]}"


def _all_cells(cells: list[tuple[str, int, float]]) -> Figure:
    """Return a plot of all cells, sorted by the ratio of the best peer."""
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    panel = figure.subplots()
    for threads, color in ((1, BEST), (2, TORCH)):
        ratios = sorted(ratio for _, count, ratio in cells if count == threads)
        panel.plot(range(1, len(ratios) + 1), ratios, ".", color=color, markersize=5)
    panel.axhline(1, color=OURS, linewidth=2)
    panel.set_yscale("log")
    ticks = [1, 1.5, 2, 3, 5, 10]
    panel.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()
    panel.set_xlabel("cases, sorted")
    panel.set_ylabel("best other library takes")
    _legend(figure, {"mha_native (1.0)": OURS, "on one thread": BEST, "on two threads": TORCH})
    return figure


def _legend(figure: Figure, colors: dict[str, str]) -> None:
    panel = figure.axes[0]
    marks = [panel.plot([], [], color=color, linewidth=5)[0] for color in colors.values()]
    figure.legend(marks, list(colors), loc="outside upper center", ncols=len(colors), fontsize=8, frameon=False)


def _save(figure: Figure, path: Path) -> None:
    FigureCanvasSVG(figure)
    figure.savefig(path, metadata={"Date": None})

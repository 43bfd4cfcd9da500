"""Draw the numbers of bench/RESULTS.md, read from the tables of its summary and from its report.

As a program it draws speed.svg of this folder, the picture of the README: python docs/site/draw_speed.py
"""

import re
from pathlib import Path

from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "bench" / "RESULTS.md"

OURS, BEST, TORCH = "#1f6f8b", "#d98e04", "#8a8f98"
KINDS = ("f32", "bf16", "int8 weights")  # headers of the tables, and names of the pictures
WIDTH = 4.8  # inches: a picture fits a phone, and its letters stay readable

# Rows of the picture of the README: a row of the table in float32, and its name in words.
FIRST = {
    "sentence model, 1 text of 11 tokens": "all-MiniLM-L6-v2, one text of 11 tokens",
    "sentence model, 32 texts of 137 tokens": "all-MiniLM-L6-v2, 32 texts of 137 tokens",
    "32 sequences of 10 to 500, H8 D64": "attention, 32 sequences of 10 to 500 tokens",
    "attention, B1 H8 T2048 D64, causal": "causal attention, 2048 tokens",
    "one query, H32 Hk8, 4096 keys, D128": "one new token over a cache of 4096",
    "layer, B1 T512 E768 H12": "attention layer, 512 tokens, width 768",
}

Rows = list[tuple[str, float, float | None]]


def summary(text: str, kind: str) -> Rows:
    """Return (name, ratio of the best peer, ratio of torch) for each row of a table of the summary, on one thread."""
    table = text.partition(f"| {kind} |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return [(row[0], float(row[4].split(",")[0]), float(row[6].split(",")[0]) if row[6] else None) for row in rows]


def first_rows(text: str) -> Rows:
    """Return the rows of FIRST, by their names in words."""
    rows = summary(text, "f32")
    by_name = {_full(rows, i): row for i, row in enumerate(rows)}
    return [(words, *by_name[name][1:]) for name, words in FIRST.items()]


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
        rows = summary(text, kind)
        named = [(_full(rows, i), *row[1:]) for i, row in enumerate(rows)]
        _save(_bars(named), folder / f"speed-{kind.split()[0]}.svg")
    _save(_all_cells(report(text)), folder / "speed-all.svg")


def _bars(rows: Rows) -> Figure:
    """Return bars of the times of the best peer and of torch below the name of each case, as multiples of our time."""
    figure = Figure(figsize=(WIDTH, 0.58 * len(rows) + 0.9), layout="constrained")
    panel = figure.subplots()
    for i, (name, best, torch) in enumerate(rows):
        panel.text(0, i - 0.36, name, va="center", fontsize=9)
        for offset, ratio, color in ((-0.06, best, BEST), (0.22, torch, TORCH)):
            if ratio is not None:
                panel.barh(i + offset, ratio, height=0.26, color=color)
                panel.text(ratio + 0.05, i + offset, f"{ratio:.2f}", va="center", fontsize=8)
        panel.vlines(1, i - 0.2, i + 0.36, color=OURS, linewidth=2)
    panel.set_yticks([])
    panel.set_ylim(len(rows) - 0.5, -0.6)
    panel.margins(x=0.1)
    panel.spines[["left", "right", "top"]].set_visible(False)
    panel.set_xlabel("time relative to mha_native, one thread", fontsize=9)
    _legend(figure, {"mha_native": OURS, "best other library": BEST, "torch": TORCH})
    return figure


def _full(rows: Rows, i: int) -> str:
    """Return the name of a row, with "the same" replaced by the name of the row above."""
    name = rows[i][0]
    if not name.startswith("the same"):
        return name
    above = next(rows[j][0] for j in range(i, -1, -1) if not rows[j][0].startswith("the same"))
    kind = above.split(",")[0]
    return f"{kind},{name.removeprefix('the same').lstrip(',')}" if "sentence" in kind else f"{above}{name[8:]}"


def _all_cells(cells: list[tuple[str, int, float]]) -> Figure:
    """Return a plot of all cells, sorted by the ratio of the best peer."""
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    panel = figure.subplots()
    for threads, color in ((1, BEST), (2, TORCH)):
        ratios = sorted(ratio for _, count, ratio in cells if count == threads)
        panel.plot(range(1, len(ratios) + 1), ratios, ".", color=color, markersize=5)
    panel.axhline(1, color=OURS, linewidth=2)
    panel.set_yscale("log")
    ticks = [1, 1.5, 2, 3, 5, 10]
    panel.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()
    panel.set_xlabel("cases, sorted", fontsize=9)
    panel.set_ylabel("best other library takes", fontsize=9)
    _legend(figure, {"mha_native": OURS, "on one thread": BEST, "on two threads": TORCH})
    return figure


def _legend(figure: Figure, colors: dict[str, str]) -> None:
    panel = figure.axes[0]
    marks = [panel.plot([], [], color=color, linewidth=5)[0] for color in colors.values()]
    figure.legend(
        marks, list(colors), loc="outside upper left", ncols=len(colors), fontsize=9, frameon=False, handlelength=1.2
    )


def _save(figure: Figure, path: Path) -> None:
    FigureCanvasSVG(figure)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "mha_native"}):
        figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    _save(_bars(first_rows(RESULTS.read_text(encoding="utf-8"))), HERE / "speed.svg")

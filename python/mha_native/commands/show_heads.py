"""Attention weights of words in each head, as a table for the terminal and as a picture."""

import io
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..functions.needed_packages import pip_install
from .errors import UserError
from .output import written

MAX_ROWS = 24  # rows of the table: one screen
MAX_DRAWN = 40  # words in the picture: more labels do not fit
MAX_WIDTH = 12  # characters of a word in the table

Array = NDArray[np.float32]


def print_heads(words: Sequence[str], weights: Array) -> None:
    """Print the key with the largest weight for each word, with as many heads side by side as fit the terminal.

    weights : [H, T, T]
    """
    num_heads = len(weights)
    encoding = sys.stdout.encoding or "utf-8"
    names = [shorten(word).encode(encoding, "replace").decode(encoding) for word in words]
    best = weights.argmax(axis=-1)  # [H, T]
    shown = range(min(len(words), MAX_ROWS))

    def cell(head: int, row: int) -> str:
        weight = weights[head, row, best[head, row]]
        return f"{names[best[head, row]]} {weight:.{0 if weight >= 0.0995 else 1}%}"

    cells = [[cell(head, row) for row in shown] for head in range(num_heads)]
    label_width = max(len(names[row]) for row in shown)
    cell_width = max(len(text) for column in cells for text in column)
    room = shutil.get_terminal_size((80, 24)).columns - label_width
    divisors = (n for n in range(num_heads, 1, -1) if num_heads % n == 0)
    side_by_side = next((n for n in divisors if n * (cell_width + 2) <= room), 1)
    for first in range(0, num_heads, side_by_side):
        heads = range(first, first + side_by_side)
        print()
        print(" " * label_width + "".join(f"  {f'head {head + 1}':<{cell_width}}" for head in heads).rstrip())
        for row in shown:
            line = "".join(f"  {cells[head][row]:<{cell_width}}" for head in heads)
            print(f"{names[row]:<{label_width}}{line}".rstrip())
    if len(words) > len(shown):
        print(f"... and {len(words) - len(shown):,} more; the first {len(shown)} are shown")


def shorten(word: str) -> str:
    return word if len(word) <= MAX_WIDTH else word[: MAX_WIDTH - 2] + ".."


def draw_heads(words: Sequence[str], weights: Array, titles: Sequence[str], path: str) -> None:
    """Draw weights [rows, columns, T, T] to a file: a panel with a title for each matrix."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError(f"--plot needs matplotlib: {pip_install('matplotlib', extra='plot')}") from error
    rows, columns, length = weights.shape[:3]
    side = 0.6 + 0.12 * length  # inches: room for a label of each word
    figure = Figure(figsize=(columns * side + 1.5, rows * side + 1), layout="constrained")
    FigureCanvasAgg(figure)
    labels = [shorten(word) for word in words[:length]]
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for panel, matrix, title in zip(panels.flat, weights.reshape(-1, length, length), titles, strict=True):
        picture = panel.imshow(matrix, cmap="viridis", vmin=0, vmax=weights.max())
        panel.set_xticks(range(length), labels, rotation=90, fontsize=7)
        panel.set_yticks(range(length), labels, fontsize=7)
        panel.set_title(title, fontsize=9)
    figure.colorbar(picture, ax=panels, label="weight", shrink=0.8, fraction=0.02)
    figure.supxlabel("attends to")
    picture_file = io.BytesIO()
    try:
        figure.savefig(picture_file, dpi=120, format=Path(path).suffix[1:] or "png")
    except ValueError as error:  # a file name extension that matplotlib does not know
        raise UserError(f"cannot write {path}: {str(error).splitlines()[0]}") from error
    with written(path) as file:
        file.write(picture_file.getbuffer())

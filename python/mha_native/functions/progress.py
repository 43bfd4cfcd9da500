"""Progress bars on standard error: tqdm where it is installed, else a bar of this library."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from numpy.typing import NDArray

CLEAR_LINE = "\r\x1b[K"  # to the start of the line, and erase to its end (ANSI)

PATIENCE = 0.5  # seconds before the bar appears
PAUSE = 0.1  # seconds between two updates


def tqdm_class() -> Any:
    """Return the bar of tqdm for a terminal or a notebook; None without tqdm."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    return tqdm


class Progress:
    """A bar on a terminal for a number of texts or other units that may be unknown, after PATIENCE seconds."""

    def __init__(self, is_wanted: bool = True, unit: str = "texts") -> None:
        self._unit = unit
        self._is_wanted = is_wanted and sys.stderr is not None and sys.stderr.isatty()
        self._started = self._drawn = time.monotonic()
        self._visible = False
        self._theirs: Any = None  # of tqdm

    def show(self, share: float | None, count: int) -> None:
        """Draw the share of the input, if its size is known, and the `count` of units that are done."""
        now = time.monotonic()
        if not self._is_wanted or now - self._started < PATIENCE or now - self._drawn < PAUSE:
            return
        self._drawn = now
        if not self._visible and (tqdm := tqdm_class()) is not None:
            self._theirs = tqdm(unit=f" {self._unit}", leave=False, file=sys.stderr)
            self._theirs.start_t -= time.monotonic() - self._started  # rates count from the start
        self._visible = True
        if self._theirs is not None:
            self._theirs.n, self._theirs.total = count, round(count / share) if share else None
            with contextlib.suppress(OSError):  # the terminal is gone
                self._theirs.refresh()
            return
        rate = count / (now - self._started)
        words = f"{count:,} {self._unit}, {rate:,.0f} a second"
        if share:
            left = round((now - self._started) * (1 - share) / share)
            done = round(30 * share)
            words = f"[{'#' * done}{'-' * (30 - done)}] {share:4.0%}  {words}, {left // 60}:{left % 60:02} left"
        self._draw(words)

    def clear(self) -> None:
        """Remove the bar."""
        if self._theirs is not None:
            with contextlib.suppress(OSError):
                self._theirs.close()
        elif self._visible:
            self._draw("")

    def _draw(self, words: str) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            sys.stderr.write(f"{CLEAR_LINE}{words}")
            sys.stderr.flush()


def is_wanted(show_progress_bar: bool | None, logger: logging.Logger) -> bool:
    """Return whether a call shows a bar; None asks for one if messages of the level INFO or DEBUG are logged."""
    if show_progress_bar is None:
        return logger.getEffectiveLevel() in (logging.INFO, logging.DEBUG)
    return bool(show_progress_bar)


@contextlib.contextmanager
def progress_bar(total: int, unit: str) -> Iterator[Callable[[int], object]]:
    """Open a bar, and give the function that adds to the count of finished units."""
    if (tqdm := tqdm_class()) is None:
        bar, done = Progress(), 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            bar.show(done / total, done)

        try:
            yield advance
        finally:
            bar.clear()
    else:
        with tqdm(total=total, desc=unit.capitalize(), unit=f" {unit}") as theirs:
            yield theirs.update


def fill_rows(rows: NDArray[Any], batches: Iterable[NDArray[Any]], unit: str, shows_progress: bool) -> NDArray[Any]:
    """Fill an array with batches of rows, under a bar if `shows_progress`, and return it."""
    first = 0
    bar = progress_bar(len(rows), unit) if shows_progress else contextlib.nullcontext(lambda count: None)
    with bar as advance:
        for batch in batches:
            rows[first : first + len(batch)] = batch
            first += len(batch)
            advance(len(batch))
    return rows

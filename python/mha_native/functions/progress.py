"""A progress bar on the terminal, on standard error."""

from __future__ import annotations

import contextlib
import sys
import time

CLEAR_LINE = "\r\x1b[K"  # to the start of the line, and erase to its end (ANSI)

PATIENCE = 0.5  # seconds before the bar appears
PAUSE = 0.1  # seconds between two updates


class Progress:
    """A progress bar on the terminal, which appears after PATIENCE seconds."""

    def __init__(self, is_wanted: bool = True) -> None:
        self._is_wanted = is_wanted and sys.stderr is not None and sys.stderr.isatty()
        self._started = self._drawn = time.monotonic()
        self._visible = False

    def show(self, share: float | None, count: int) -> None:
        """Draw the share of the input that is done, and `count` texts. `share` is None if the size is not known."""
        now = time.monotonic()
        if not self._is_wanted or now - self._started < PATIENCE or now - self._drawn < PAUSE:
            return
        self._drawn, self._visible = now, True
        rate = count / (now - self._started)
        words = f"{count:,} texts, {rate:,.0f} a second"
        if share:
            left = round((now - self._started) * (1 - share) / share)
            done = round(30 * share)
            words = f"[{'#' * done}{'-' * (30 - done)}] {share:4.0%}  {words}, {left // 60}:{left % 60:02} left"
        self._draw(words)

    def clear(self) -> None:
        """Remove the bar."""
        if self._visible:
            self._draw("")

    def _draw(self, words: str) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone
            sys.stderr.write(f"{CLEAR_LINE}{words}")
            sys.stderr.flush()

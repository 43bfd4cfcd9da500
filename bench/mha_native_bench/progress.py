"""Progress on the error output: the case that runs and the time that is left. The report goes to standard output."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any


class Progress:
    """A bar of tqdm on a terminal, else a line for each case. A context manager, which removes the bar at its end."""

    def __init__(self, cases: int) -> None:
        self._cases = cases
        self._begun = 0  # cases that have begun
        self._done = 0.0  # cases that are done, and the fraction of the one that runs
        self._started = time.monotonic()
        self._bar = bar_of(cases) if sys.stderr.isatty() else None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()

    def begin(self, name: str) -> None:
        """Starts the next case."""
        self._done, self._begun = self._begun, self._begun + 1
        if self._bar is not None:
            self._bar.n = self._done
            self._bar.set_description_str(name)
        else:
            print(f"[{self._begun}/{self._cases}] {name}{self._left()}", file=sys.stderr, flush=True)

    def advance(self, share: float) -> None:
        """Sets the fraction of the running case that is done."""
        self._done = self._begun - 1 + share
        if self._bar is not None:
            self._bar.n = self._done
            self._bar.refresh()

    def say(self, sentence: str) -> None:
        """Prints a line that stays above the bar."""
        if self._bar is not None:
            self._bar.clear()
        print(sentence, file=sys.stderr, flush=True)

    def _left(self) -> str:
        if not self._done:
            return ""
        seconds = round((time.monotonic() - self._started) * (self._cases - self._done) / self._done)
        return f", {seconds // 60}:{seconds % 60:02} left"


def bar_of(cases: int) -> Any:
    """A bar for so many cases; None without tqdm."""
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    tqdm.monitor_interval = 0  # else its monitor is a thread that runs beside what is timed
    return tqdm(total=cases, bar_format="{percentage:3.0f}%|{bar:30}| {elapsed}, {remaining} left  {desc}", leave=False)

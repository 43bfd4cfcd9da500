"""The progress bar of a call: that of tqdm if it is installed, else that of this library."""

import contextlib
import logging
from collections.abc import Callable, Iterator

from ..functions.progress import Progress


def is_wanted(show_progress_bar: bool | None, logger: logging.Logger) -> bool:
    """Whether a call shows one: by default if messages of the level INFO or DEBUG are logged."""
    if show_progress_bar is None:
        return logger.getEffectiveLevel() in (logging.INFO, logging.DEBUG)
    return bool(show_progress_bar)


@contextlib.contextmanager
def progress_bar(total: int, unit: str) -> Iterator[Callable[[int], object]]:
    """A bar on standard error, and the function that says to it how many more of `total` are done."""
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
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

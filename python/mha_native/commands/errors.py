"""Errors that the user of a command can correct, and messages on standard error."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from ..functions.progress import CLEAR_LINE


class UserError(Exception):
    """A mistake that the user can correct, in one sentence without the name of the program."""


def complain(sentence: str) -> None:
    """Print a sentence to standard error, over a progress bar."""
    if sys.stderr is None:  # closed, as by 2>&-
        return
    try:
        print(f"{CLEAR_LINE if sys.stderr.isatty() else ''}mha_native: {sentence}", file=sys.stderr, flush=True)
    except OSError:  # full or closed
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Discard the buffer of standard output or standard error: writing it at exit would fail or block."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def reason(error: OSError) -> str:
    """Return the reason that the operating system, or a file object of Python, gives."""
    return error.strerror or str(error)


@contextlib.contextmanager
def errors_of_files(verb: str, path: object) -> Iterator[None]:
    """Raise an OSError as a UserError, such as "cannot read FILE: Permission denied"."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot {verb} {path}: {reason(error)}") from error

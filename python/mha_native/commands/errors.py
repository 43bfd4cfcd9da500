"""What a command says on standard error: one sentence for what its user can mend."""

import contextlib
import sys

from ..functions.progress import CLEAR_LINE


class UserError(Exception):
    """A mistake that the user can correct. Its text is one sentence, without the name of the program."""


def complain(sentence: str) -> None:
    """Print a sentence to standard error, in place of a progress bar if there is one."""
    if sys.stderr is None:  # closed, as by 2>&-
        return
    with contextlib.suppress(OSError):  # full or gone, and there is no other place to say so
        print(f"{CLEAR_LINE if sys.stderr.isatty() else ''}mha_native: {sentence}", file=sys.stderr, flush=True)


def reason(error: OSError) -> str:
    """Why the operating system, or a file object of Python, refused."""
    return error.strerror or str(error)

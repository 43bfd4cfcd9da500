"""Where commands write, and how: a file that is whole or not there, or a stream; JSON lines or .npy."""

import contextlib
import json
import math
import os
import secrets
import stat
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from .errors import UserError, reason

Array = NDArray[np.float32]

PARTIAL_FILES = ".mha_native.*.partial"  # the names of files that are not whole yet


@contextlib.contextmanager
def written(path: str) -> Iterator[BinaryIO]:
    """A file to write to.

    A regular file replaces `path` in one step at the end, and if anything fails before that, it is removed. A pipe, a
    device, or the file that is standard output or standard error, is written to.

    Raises
    ------
    UserError
        If the operating system refuses, here or where it is written to.
    """
    try:
        with (_opened_stream if is_stream(path) else _replacement)(path) as file:
            yield file
    except OSError as error:
        raise UserError(f"cannot write {path}: {reason(error)}") from error


def is_stream(path: str) -> bool:
    """Whether `path` is there, and must not be replaced by a file: a pipe, a device, or where output goes already."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UserError(f"cannot write {path}: {reason(error)}") from error
    is_file = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    return not is_file or any(_is_open_as(status, stream) for stream in (sys.stdout, sys.stderr))


def refuse_to_replace(source: str | int, path: str, option: str) -> None:
    """UserError if the file `path` is the one that is read: `source`, a path or a file descriptor."""
    with contextlib.suppress(OSError):  # one of them is not there
        of_source, of_path = os.stat(source), os.stat(path)
        if stat.S_ISREG(of_path.st_mode) and os.path.samestat(of_source, of_path):
            raise UserError(f"{option} must be another file than the one that is read; got {path}")


def _is_open_as(status: os.stat_result, stream: object) -> bool:
    try:
        return os.path.samestat(status, os.fstat(stream.fileno()))  # type: ignore[attr-defined]
    except (OSError, ValueError, AttributeError):  # no file of the operating system
        return False


@contextlib.contextmanager
def _opened_stream(path: str) -> Iterator[BinaryIO]:
    # Neither created nor cut to length 0: standard output may be a file that others append to.
    with open(os.open(path, os.O_WRONLY | os.O_APPEND), "wb") as file:
        yield file


@contextlib.contextmanager
def _replacement(path: str) -> Iterator[BinaryIO]:
    target = Path(os.path.realpath(path))  # follow a link to its file
    if target.is_dir():
        raise IsADirectoryError(None, "it is a directory")
    partial = target.with_name(PARTIAL_FILES.replace("*", secrets.token_hex(8)))  # as no other process calls its own
    try:
        with open(partial, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def number(value: float) -> float | None:
    """A float32 for JSON, with enough digits that reading gives the same bits; None, which is null, if not finite."""
    return float(f"{value:.9g}") if math.isfinite(value) else None


class Sink(Protocol):
    """What embeddings are written to."""

    def write(self, texts: Iterable[str], rows: Array) -> None:
        """Write one row for each text."""

    def finish(self, count: int) -> None:
        """Called when all `count` rows have been written."""


class JsonLines:
    """A JSON object per line: the text and its embedding, with enough digits that reading gives the same bits.

    JSON has no NaN and no infinity: ``null`` stands for them.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write

    def write(self, texts: Iterable[str], rows: Array) -> None:
        """Write one row for each text."""
        template = ", ".join(["%.9g"] * rows.shape[1])
        for text, row in zip(texts, rows, strict=True):
            numbers = template % tuple(row)
            if not np.isfinite(row).all():
                numbers = ", ".join(f"{number:.9g}" if math.isfinite(number) else "null" for number in row.tolist())
            self._write(f'{{"text": {json.dumps(text)}, "embedding": [{numbers}]}}\n')

    def finish(self, count: int) -> None:
        """Nothing to do."""


class Npy:
    """A file of NumPy that holds an array [N, E]. N is written into its header at the end."""

    def __init__(self, file: BinaryIO, width: int) -> None:
        self._file, self._width = file, width
        self._write_header(0)

    def write(self, texts: Iterable[str], rows: Array) -> None:
        """Write one row for each text."""
        self._file.write(rows.astype("<f4", copy=False).tobytes())

    def finish(self, count: int) -> None:
        """Write N into the header."""
        self._file.seek(0)
        self._write_header(count)

    def _write_header(self, count: int) -> None:
        # Version 1.0 of the format, padded to 128 bytes, so that any N has room.
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({count}, {self._width}), }}"
        self._file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + header.ljust(117).encode() + b"\n")

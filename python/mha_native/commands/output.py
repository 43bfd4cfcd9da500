"""Output of commands: files that appear when they are complete, or streams; JSON lines or .npy."""

import contextlib
import json
import math
import os
import secrets
import shutil
import stat
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..functions.progress import Progress
from .errors import UserError, errors_of_files

Array = NDArray[np.float32]

Write: TypeAlias = Callable[[str], object]

_SHOWN = 8  # numbers of an embedding on a terminal

PARTIAL_FILES = ".mha_native.*.partial"  # the names of incomplete files


@contextlib.contextmanager
def written(path: str) -> Iterator[BinaryIO]:
    """Open a file to write to; UserError if it cannot be opened or written.

    A new file replaces a regular file `path` in one step at the end, and is removed after a failure. A pipe, a device,
    or the file that is standard output or standard error, is written directly.
    """
    with errors_of_files("write", path), (_opened_stream if is_stream(path) else _replacement)(path) as file:
        yield file


def is_stream(path: str) -> bool:
    """Return whether `path` is a pipe, a device, or open as standard output or error, and so must not be replaced."""
    with errors_of_files("write", path), contextlib.suppress(FileNotFoundError):
        status = os.stat(path)
        is_file = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
        return not is_file or any(_is_open_as(status, stream) for stream in (sys.stdout, sys.stderr))
    return False


def refuse_to_replace(source: str | int, path: str, option: str) -> None:
    """Raise UserError if the file `path` is the input: `source`, a path or a file descriptor."""
    with contextlib.suppress(OSError):  # one of them does not exist
        of_source, of_path = os.stat(source), os.stat(path)
        if stat.S_ISREG(of_path.st_mode) and os.path.samestat(of_source, of_path):
            raise UserError(f"{option} must be another file than the one that is read; got {path}")


def _is_open_as(status: os.stat_result, stream: Any) -> bool:
    try:
        return os.path.samestat(status, os.fstat(stream.fileno()))
    except (OSError, ValueError, AttributeError):  # not a file of the operating system
        return False


@contextlib.contextmanager
def _opened_stream(path: str) -> Iterator[BinaryIO]:
    # Neither created nor truncated: standard output may be a file to which others append.
    with open(os.open(path, os.O_WRONLY | os.O_APPEND), "wb") as file:
        yield file


@contextlib.contextmanager
def _replacement(path: str) -> Iterator[BinaryIO]:
    target = Path(os.path.realpath(path))  # follow a link to its file
    if target.is_dir():
        raise IsADirectoryError(None, "it is a directory")
    partial = target.with_name(PARTIAL_FILES.replace("*", secrets.token_hex(8)))  # unique to this process
    try:
        with open(partial, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def refuse_to_replace_source(path: str | None, output: str | None) -> None:
    """Raise UserError if `output` is the input file."""
    if path is not None and output is not None:
        refuse_to_replace(0 if path == "-" else path, output, "--output")


def check_lines_output(output: str | None) -> None:
    """Raise UserError unless JSON lines can be written to `output`."""
    if output is not None and not output.endswith(".jsonl") and not is_stream(output):
        raise UserError(f"--output must end in .jsonl; got {output}")


@contextlib.contextmanager
def lines_to(output: str | None) -> Iterator[tuple[Write, Progress]]:
    """Open `output`, or standard output: a function that writes a line, and a progress bar that does not disturb it."""
    if output is None:
        yield sys.stdout.write, Progress(is_wanted=not sys.stdout.isatty())
    else:
        with written(output) as target:
            yield lambda line: target.write(line.encode()), Progress()


def is_terminal(output: str | None) -> bool:
    """Return whether results go to a terminal, in a form for people."""
    return output is None and sys.stdout.isatty()


def write_at_once(text: str) -> None:
    """Write to standard output without a delay, with question marks for characters that it cannot encode."""
    sys.stdout.write(_encodable(text))
    sys.stdout.flush()


def row_of_terminal(start: str, text: str) -> str:
    """Return a line for a terminal: `start`, and as much of a text as there is room, in characters that it shows."""
    shown = "".join(character if character.isprintable() else "?" for character in " ".join(text.split()))
    row, width = start + shown, shutil.get_terminal_size().columns
    return f"{_encodable(row if len(row) <= width else f'{row[: width - 2]}..')}\n"


def _encodable(text: str) -> str:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def report(output: str | None, summary: str) -> None:
    """Print a summary of the file `output`, unless it is a stream, which may be standard output."""
    if output is not None and not is_stream(output):
        print(f"{summary}: {output}")


def number(value: float) -> float | None:
    """Round a float32 for JSON to digits that give the same bits when read; None, which is null, if not finite."""
    return float(f"{value:.9g}") if math.isfinite(value) else None


class Sink:
    """A file format of embeddings."""

    def write(self, texts: Iterable[str], rows: Array) -> None:
        """Write one row for each text."""
        raise NotImplementedError

    def finish(self, count: int) -> None:
        """Complete the file after all `count` rows."""


class JsonLines(Sink):
    """A JSON object per line: the text or image and its embedding, with enough digits that reading gives the same bits.

    NaN and infinity become ``null``, since JSON does not have them.
    """

    def __init__(self, write: Callable[[str], object], name: str = "text") -> None:
        self._write, self._name = write, name

    def write(self, texts: Iterable[str], rows: Array) -> None:
        template = ", ".join(["%.9g"] * rows.shape[1])
        for text, row in zip(texts, rows, strict=True):
            numbers = template % tuple(row)
            if not np.isfinite(row).all():
                numbers = ", ".join(f"{number:.9g}" if math.isfinite(number) else "null" for number in row.tolist())
            self._write(f'{{"{self._name}": {json.dumps(text)}, "embedding": [{numbers}]}}\n')


class Terminal(Sink):
    """Two lines for people: the text, then the first numbers of its embedding and its length."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write

    def write(self, texts: Iterable[str], rows: Array) -> None:
        for text, row in zip(texts, rows, strict=True):
            numbers = " ".join(f"{number:7.4f}" for number in row[:_SHOWN])
            more = f" ... {len(row):,} features," if len(row) > _SHOWN else ","
            self._write(row_of_terminal("", text))
            self._write(f"  {numbers}{more} norm {np.linalg.norm(row.astype(np.float64)):.4f}\n")


class Npy(Sink):
    """A .npy file with an array [N, E]. N is written into its header at the end."""

    def __init__(self, file: BinaryIO, width: int) -> None:
        self._file, self._width = file, width
        self._write_header(0)

    def write(self, texts: Iterable[str], rows: Array) -> None:
        self._file.write(rows.astype("<f4", copy=False).tobytes())

    def finish(self, count: int) -> None:
        self._file.seek(0)
        self._write_header(count)

    def _write_header(self, count: int) -> None:
        # Version 1.0 of the format, padded to 128 bytes, which suffice for any N.
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({count}, {self._width}), }}"
        self._file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + header.ljust(117).encode() + b"\n")

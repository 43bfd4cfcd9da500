"""Texts for a command: arguments, or the lines of a file, read one at a time."""

import codecs
import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from .errors import UserError, complain, errors_of_files, reason

MAX_COMPLAINTS = 10  # messages about lines that are not UTF-8; further lines are only counted

Input = TypeVar("Input")


class Texts:
    """Texts decoded from bytes: the lines of a file, or arguments. Iterable once.

    A text that is not valid UTF-8 is reported by its number and decoded with U+FFFD, so that each line has a result.
    An empty line is a text, too. A NUL byte in the first line of a file is a UserError: the file is binary, or UTF-16.
    """

    entry = "text"  # of a JSON object with its result

    def __init__(self, source: Iterable[bytes], place: str, size: int | None) -> None:
        self._source, self.place, self._size = source, place, size
        self._has_lines = hasattr(source, "read")
        self._bytes = self._damaged = 0
        self.count = 0

    def __iter__(self) -> Iterator[str]:
        try:
            for raw in self._source:
                self.count += 1
                self._bytes += len(raw)
                if self._has_lines and self.count == 1 and b"\0" in raw:
                    raise UserError(f"{self.place} 1: the file must be text in UTF-8; it has a NUL byte")
                yield self._decoded(without_ending(raw, self.count == 1) if self._has_lines else raw)
        except OSError as error:
            raise UserError(f"cannot read {self.place} {self.count + 1}: {reason(error)}") from error
        if self._damaged > MAX_COMPLAINTS:
            complain(f"{self._damaged - MAX_COMPLAINTS:,} more are not UTF-8")

    @property
    def share_read(self) -> float | None:
        """The share of the input read so far, from 0 to 1; None if the size of the input is unknown."""
        done = self._bytes if self._has_lines else self.count
        return min(done / self._size, 1) if self._size else None

    def _decoded(self, raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            self._damaged += 1
            if self._damaged <= MAX_COMPLAINTS:
                complain(
                    f"{self.place} {self.count}: not UTF-8 at byte {error.start + 1} (0x{raw[error.start]:02x}); "
                    "U+FFFD stands in for what cannot be read"
                )
            return raw.decode(errors="replace")


def without_ending(raw: bytes, is_first: bool) -> bytes:
    """Return a line without its line ending, and the first line of a file without a byte order mark."""
    start = codecs.BOM_UTF8 if is_first else b""
    return raw.removeprefix(start).removesuffix(b"\n").removesuffix(b"\r")


@contextlib.contextmanager
def opened(texts: list[str], path: str | None) -> Iterator[Texts]:
    """Open the lines of the file `path`, or of standard input for "-"; without a `path` give the `texts`."""
    if path is None:
        yield texts_given(texts)
    elif path == "-":
        if sys.stdin is None:
            raise UserError("cannot read standard input: it is closed")
        yield Texts(sys.stdin.buffer, f"{path}, line", _size_of(sys.stdin.buffer))
    else:
        with contextlib.ExitStack() as stack:
            with errors_of_files("read", path):
                file = stack.enter_context(Path(path).open("rb"))
            yield Texts(file, f"{path}, line", _size_of(file))


def text_given(text: str) -> str:
    """Return an argument of the command line; for "-" all of standard input, without the line ending at its end."""
    if text == "-":
        with opened([], text) as lines:
            return "\n".join(lines)
    (given,) = texts_given([text])
    return given


def texts_given(texts: list[str]) -> Texts:
    """Return arguments of the command line, where bytes that are not UTF-8 are halves of surrogate pairs."""
    return Texts([_as_typed(text) for text in texts], "text", len(texts))


def _as_typed(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a half that is not such a byte
        return text.encode("utf-8", "surrogatepass")


def objects(source: Texts, make: Callable[[dict[str, Any]], Input]) -> Iterator[Input]:
    """Apply `make` to the JSON object in each line; a UserError names the line."""
    for line in source:
        try:
            item = make(object_in(line))
        except UserError as error:
            raise UserError(f"{source.place} {source.count}: {error}") from error
        yield item


def object_in(line: str) -> dict[str, Any]:
    """Parse the JSON object in a line; UserError for anything else."""
    try:
        value = json.loads(line, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise UserError(f"no valid JSON: {str(error) or 'nested too deeply'}") from error
    if not isinstance(value, dict):
        raise UserError(f"it must be a JSON object; got {type(value).__name__}")
    return value


def _finite(number: str) -> float:
    """Refuse numbers that Python reads but JSON does not have, by a ValueError."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number[:20]} is no finite number")
    return value


def text_in(value: dict[str, Any], name: str) -> str:
    """Return the text that a JSON object has by this name."""
    text = value.get(name)
    if not isinstance(text, str):
        raise UserError(f"{name} must be a text; got {type(text).__name__ if name in value else 'nothing'}")
    return with_characters(name, text)


def with_characters(name: str, text: str) -> str:
    """Return the text; UserError if it has half of a surrogate pair, which JSON can express."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"half of a surrogate pair, {text[error.start]!r}, at character {error.start}"
        raise UserError(f"{name} must consist of characters; got {half}") from None
    return text


def _size_of(file: BinaryIO) -> int | None:
    """Return the size in bytes; None for a pipe."""
    try:
        return os.fstat(file.fileno()).st_size or None
    except (OSError, ValueError):
        return None

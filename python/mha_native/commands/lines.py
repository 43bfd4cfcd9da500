"""What commands on texts have in common: the lines of a file as they come, the model, and where results are written."""

import codecs
import contextlib
import json
import math
import os
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, TypeVar

from .. import _core
from ..functions.progress import Progress
from .errors import UserError, complain, reason
from .output import is_stream, refuse_to_replace, written

MAX_COMPLAINTS = 10  # messages about lines that are not UTF-8; further lines are only counted

Write: TypeAlias = Callable[[str], object]

Model = TypeVar("Model")
Input = TypeVar("Input")
Results = TypeVar("Results", bound=Collection[Any])


class Texts:
    """Texts from their bytes: the lines of a file, or what was typed. Iterable once.

    What is not UTF-8 is said with its number, and read with U+FFFD in its place, so that results still stand line by
    line. An empty line is a text, too.
    """

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
                yield self._decoded(without_ending(raw, self.count == 1) if self._has_lines else raw)
        except OSError as error:
            raise UserError(f"cannot read {self.place} {self.count + 1}: {reason(error)}") from error
        if self._damaged > MAX_COMPLAINTS:
            complain(f"{self._damaged - MAX_COMPLAINTS:,} more are not UTF-8")

    @property
    def share_read(self) -> float | None:
        """The part of the input that has been read, in 0 ... 1; None if the size of the input is not known."""
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
    """A line without the mark that ends it, and the first of a file without a byte order mark."""
    start = codecs.BOM_UTF8 if is_first else b""
    return raw.removeprefix(start).removesuffix(b"\n").removesuffix(b"\r")


@contextlib.contextmanager
def opened(texts: list[str], path: str | None) -> Iterator[Texts]:
    """The `texts`; or if there is a `path`, the lines of that file, or with "-" of standard input."""
    if path is None:
        yield texts_given(texts)
    elif path == "-":
        file = _standard_input()
        yield Texts(file, f"{path}, line", _size_of(file))
    else:
        with _opened_file(path) as file:
            yield Texts(file, f"{path}, line", _size_of(file))


def texts_given(texts: list[str]) -> Texts:
    """What was typed. Bytes that are not UTF-8 come from the command line as halves of surrogate pairs."""
    return Texts([_as_typed(text) for text in texts], "text", len(texts))


def _as_typed(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a half that stands for no byte
        return text.encode("utf-8", "surrogatepass")


def objects(source: Texts, make: Callable[[dict[str, Any]], Input]) -> Iterator[Input]:
    """What `make` reads from the JSON object in each line; UserError for a line that is none, or if `make` has one."""
    for line in source:
        try:
            item = make(object_in(line))
        except UserError as error:
            raise UserError(f"{source.place} {source.count}: {error}") from error
        yield item


def object_in(line: str) -> dict[str, Any]:
    """The JSON object in a line; UserError for what is none."""
    try:
        value = json.loads(line, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise UserError(f"no valid JSON: {str(error) or 'nested too deeply'}") from error
    if not isinstance(value, dict):
        raise UserError(f"it must be a JSON object; got {type(value).__name__}")
    return value


def _finite(number: str) -> float:
    """ValueError for what Python reads, and would write again as no JSON."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number[:20]} is no finite number")
    return value


def text_in(value: dict[str, Any], name: str) -> str:
    """The text that a JSON object has by this name."""
    text = value.get(name)
    if not isinstance(text, str):
        raise UserError(f"{name} must be a text; got {type(text).__name__ if name in value else 'nothing'}")
    return with_characters(name, text)


def with_characters(name: str, text: str) -> str:
    """The text; UserError if it holds what is no character, which JSON can say."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"half of a surrogate pair, {text[error.start]!r}, at character {error.start}"
        raise UserError(f"{name} must consist of characters; got {half}") from None
    return text


def refuse_to_replace_source(path: str | None, output: str | None) -> None:
    """UserError if `output` is the file that is read."""
    if path is not None and output is not None:
        refuse_to_replace(0 if path == "-" else path, output, "--output")


def check_lines_output(output: str | None) -> None:
    """UserError unless JSON lines can be written to `output`."""
    if output is not None and not output.endswith(".jsonl") and not is_stream(output):
        raise UserError(f"--output must end in .jsonl; got {output}")


@contextlib.contextmanager
def lines_to(output: str | None) -> Iterator[tuple[Write, Progress]]:
    """What writes a line to the file `output`, or to standard output; and a progress bar that does not disturb it."""
    if output is None:
        yield sys.stdout.write, Progress(is_wanted=not sys.stdout.isatty())
    else:
        with written(output) as target:
            yield lambda line: target.write(line.encode()), Progress()


def report(output: str | None, what: str) -> None:
    """Say on standard output what is in the file `output` now. A pipe may be standard output, and gets only lines."""
    if output is not None and not is_stream(output):
        print(f"{what}: {output}")


def loaded(load: Callable[[], Model]) -> Model:
    """What `load` reads; UserError if it cannot, or if MHA_NATIVE_ISA names what this machine does not have."""
    try:
        _core.active_isa()
        return load()
    except OSError as error:
        raise UserError(f"cannot read {error.filename}: {reason(error)}" if error.filename else str(error)) from error
    except (TypeError, ValueError, ImportError) as error:
        raise UserError(str(error)) from error


def answers(
    compute: Callable[[Iterable[Input]], Iterator[Results]],
    inputs: Iterable[Input],
    source: Texts,
    progress: Progress,
) -> Iterator[tuple[list[Input], Results]]:
    """The inputs, which come from `source`, with what `compute` makes of them, some at a time.

    `compute` gives a result for each input in order, some at a time.
    """
    pending: deque[Input] = deque()  # what was read and has no result yet
    count = 0

    def remembered() -> Iterator[Input]:
        for item in inputs:
            pending.append(item)
            yield item

    try:
        with errors_of_models():
            for results in compute(remembered()):
                yield [pending.popleft() for _ in results], results
                count += len(results)
                progress.show(source.share_read, count)
    finally:
        progress.clear()


@contextlib.contextmanager
def errors_of_models() -> Iterator[None]:
    """As UserError: a tokenizer that fails, tokens beyond the table of the model, a prompt that it does not have."""
    try:
        yield
    except ValueError as error:
        raise UserError(str(error)) from error


def _standard_input() -> BinaryIO:
    if sys.stdin is None:
        raise UserError("cannot read standard input: it is closed")
    return sys.stdin.buffer


def _opened_file(path: str) -> BinaryIO:
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise UserError(f"cannot read {path}: {reason(error)}") from error


def _size_of(file: BinaryIO) -> int | None:
    """The size in bytes; None for a pipe."""
    try:
        return os.fstat(file.fileno()).st_size or None
    except (OSError, ValueError):
        return None

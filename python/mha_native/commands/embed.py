"""The command ``python -m mha_native embed``: sentence embeddings of texts, or of the lines of a file, as they come."""

import codecs
import contextlib
import json
import os
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from .. import _core
from ..models import SentenceEncoder
from .errors import UserError
from .show_heads import MAX_DRAWN, draw_heads, print_heads

MAX_COMPLAINTS = 10  # messages about lines that are not UTF-8; further lines are only counted
PATIENCE = 0.5  # seconds before the progress bar appears
PAUSE = 0.1  # seconds between two updates of the progress bar

Array = NDArray[np.float32]


def run(
    directory: str, dtype: str, weight_dtype: str | None, texts: list[str], path: str | None, output: str | None
) -> None:
    """Embeddings of `texts`, or if there is a `path` of the lines of that file, one after another to `output`.

    Raises
    ------
    UserError
        Before anything is written; if a disk fills up, `output` is as before.
    """
    if output is not None and not output.endswith((".npy", ".jsonl")):
        raise UserError(f"--output must end in .npy or .jsonl; got {output}")
    with contextlib.ExitStack() as stack:
        source = Texts([text.encode("utf-8", "surrogatepass") for text in texts], "text", len(texts))
        if path is not None:
            file = sys.stdin.buffer if path == "-" else stack.enter_context(_opened(path))
            source = Texts(file, f"{path}, line", _size_of(file))
        model = load(directory, dtype, weight_dtype)
        if output is None:
            _write(model, source, JsonLines(sys.stdout.write), Progress(is_wanted=not sys.stdout.isatty()))
            return
        try:
            with written_whole(Path(output)) as target:
                is_npy = output.endswith(".npy")
                sink = Npy(target, model.embed_dim) if is_npy else JsonLines(lambda line: target.write(line.encode()))
                _write(model, source, sink, Progress())
        except OSError as error:
            raise UserError(f"cannot write {output}: {error.strerror}") from error
    print(f"{source.count:,} embeddings of {model.embed_dim} features: {output}")


def explain(directory: str, dtype: str, weight_dtype: str | None, text: str, plot: str | None) -> None:
    """Print what each token of `text` attends to in each layer and head, and draw it to the file `plot`."""
    (readable,) = Texts([text.encode("utf-8", "surrogatepass")], "text", 1)
    model = load(directory, dtype, weight_dtype)
    tokens, weights = model.attention_weights(readable)  # [layers, H, T, T]
    if plot is not None:
        titles = [f"layer {i + 1}, head {h + 1}" for i in range(model.num_layers) for h in range(model.num_heads)]
        draw_heads(tokens, weights[..., :MAX_DRAWN, :MAX_DRAWN], titles, plot)
    print(f"{len(tokens)} tokens, {model.num_layers} layers of {model.num_heads} heads")
    for layer, of_layer in enumerate(weights):
        print(f"\nLayer {layer + 1}: what each token attends to most, and how much")
        print_heads(tokens, of_layer)
    if plot is not None:
        print(f"\nPlot of {'all' if len(tokens) <= MAX_DRAWN else f'the first {MAX_DRAWN}'} tokens: {plot}")


def load(directory: str, dtype: str, weight_dtype: str | None) -> SentenceEncoder:
    """The model; UserError if it cannot be loaded, or if MHA_NATIVE_ISA names what this machine does not have."""
    try:
        _core.active_isa()
        return SentenceEncoder.from_pretrained(directory, dtype=dtype, weight_dtype=weight_dtype)
    except (TypeError, ValueError, OSError, ImportError) as error:
        raise UserError(str(error)) from error


class Texts:
    """Texts from their bytes: the lines of a file, or what was typed. Iterable once.

    What is not UTF-8 is said with its number, and read with U+FFFD in its place, so that results still stand line by
    line. An empty line is a text, too.
    """

    def __init__(self, source: Iterable[bytes], place: str, size: int | None) -> None:
        self._source, self._place, self._size = source, place, size
        self._has_lines = hasattr(source, "read")
        self._bytes = self._damaged = 0
        self.count = 0

    def __iter__(self) -> Iterator[str]:
        try:
            for raw in self._source:
                self.count += 1
                self._bytes += len(raw)
                yield self._decoded(self._without_ending(raw) if self._has_lines else raw)
        except OSError as error:
            raise UserError(f"cannot read {self._place} {self.count + 1}: {error.strerror}") from error
        if self._damaged > MAX_COMPLAINTS:
            complain(f"{self._damaged - MAX_COMPLAINTS:,} more are not UTF-8")

    @property
    def share_read(self) -> float | None:
        """The part of the input that has been read, in 0 ... 1; None if the size of the input is not known."""
        done = self._bytes if self._has_lines else self.count
        return min(done / self._size, 1) if self._size else None

    def _without_ending(self, raw: bytes) -> bytes:
        start = codecs.BOM_UTF8 if self.count == 1 else b""
        return raw.removeprefix(start).removesuffix(b"\n").removesuffix(b"\r")

    def _decoded(self, raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            self._damaged += 1
            if self._damaged <= MAX_COMPLAINTS:
                complain(
                    f"{self._place} {self.count}: not UTF-8 at byte {error.start + 1} (0x{raw[error.start]:02x}); "
                    "U+FFFD stands in for what cannot be read"
                )
            return raw.decode(errors="replace")


class Sink(Protocol):
    """What embeddings are written to."""

    def write(self, texts: Iterable[str], rows: Array) -> None:
        """Write one row for each text."""

    def finish(self, count: int) -> None:
        """Called when all `count` rows have been written."""


class JsonLines:
    """A JSON object per line: the text and its embedding, with enough digits that reading gives the same bits."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write

    def write(self, texts: Iterable[str], rows: Array) -> None:
        """Write one row for each text."""
        template = ", ".join(["%.9g"] * rows.shape[1])
        for text, row in zip(texts, rows, strict=True):
            self._write(f'{{"text": {json.dumps(text)}, "embedding": [{template % tuple(row)}]}}\n')

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


class Progress:
    """A progress bar on the terminal, which appears after PATIENCE seconds."""

    def __init__(self, is_wanted: bool = True) -> None:
        self._is_wanted = is_wanted and sys.stderr.isatty()
        self._started = self._drawn = time.monotonic()
        self._visible = False

    def show(self, share: float | None, count: int) -> None:
        """Draw that this share of the input, and `count` texts, are done. `share` is None if the size is not known."""
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
        sys.stderr.write(f"{CLEAR_LINE}{words}")
        sys.stderr.flush()

    def clear(self) -> None:
        """Remove the bar."""
        if self._visible:
            sys.stderr.write(CLEAR_LINE)
            sys.stderr.flush()


CLEAR_LINE = "\r\x1b[K"  # to the start of the line, and erase to its end (ANSI)


def complain(sentence: str) -> None:
    """Print a sentence to standard error, in place of a progress bar if there is one."""
    print(f"{CLEAR_LINE if sys.stderr.isatty() else ''}mha_native: {sentence}", file=sys.stderr)


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A new file that replaces `path` in one step at the end. If anything fails before that, it is removed."""
    target = Path(os.path.realpath(path))  # follow a link to its file
    if target.is_dir():
        raise IsADirectoryError(None, "it is a directory")
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        with open(partial, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _write(model: SentenceEncoder, source: Texts, sink: Sink, progress: Progress) -> None:
    pending: deque[str] = deque()  # texts that were read and are not embedded yet
    count = 0

    def remembered() -> Iterator[str]:
        for text in source:
            pending.append(text)
            yield text

    try:
        for rows in model.encode_batches(remembered()):
            sink.write([pending.popleft() for _ in rows], rows)
            count += len(rows)
            progress.show(source.share_read, count)
        sink.finish(count)
    finally:
        progress.clear()


def _opened(path: str) -> BinaryIO:
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _size_of(file: BinaryIO) -> int | None:
    """The size in bytes; None for a pipe."""
    try:
        return os.fstat(file.fileno()).st_size or None
    except (OSError, ValueError):
        return None

"""The command ``python -m mha_native embed``: sentence embeddings of texts, or of the lines of a file, as they come."""

import codecs
import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from .. import _core
from .._progress import Progress
from ..models import SentenceEncoder
from .errors import UserError, complain, reason
from .output import Array, JsonLines, Npy, Sink, is_stream, refuse_to_replace, written
from .show_heads import MAX_DRAWN, draw_heads, print_heads

Encode: TypeAlias = Callable[[Iterable[str]], Iterator[Array]]  # texts to their embeddings, some at a time

MAX_COMPLAINTS = 10  # messages about lines that are not UTF-8; further lines are only counted


def run(
    directory: str,
    dtype: str,
    weight_dtype: str | None,
    prompt: Mapping[str, Any],
    texts: list[str],
    path: str | None,
    output: str | None,
) -> None:
    """Embeddings of `texts`, or if there is a `path` of the lines of that file, one after another to `output`.

    `prompt` has the arguments of `SentenceEncoder.encode_batches` by that say what stands before each of them.

    Raises
    ------
    UserError
        Before anything is written; if a disk fills up, `output` is as before.
    """
    if output is not None:
        _check_output(output)
        if path is not None:
            refuse_to_replace(0 if path == "-" else path, output, "--output")
    with contextlib.ExitStack() as stack:
        source = Texts([text.encode("utf-8", "surrogatepass") for text in texts], "text", len(texts))
        if path is not None:
            file = _standard_input() if path == "-" else stack.enter_context(_opened(path))
            source = Texts(file, f"{path}, line", _size_of(file))
        model = load(directory, dtype, weight_dtype)
        encode = partial(model.encode_batches, **{name: given for name, given in prompt.items() if given is not None})
        if output is None:
            _write(encode, source, JsonLines(sys.stdout.write), Progress(is_wanted=not sys.stdout.isatty()))
            return
        is_whole_file = not is_stream(output)
        with written(output) as target:
            is_npy = output.endswith(".npy")
            sink = Npy(target, model.embed_dim) if is_npy else JsonLines(lambda line: target.write(line.encode()))
            _write(encode, source, sink, Progress())
    if is_whole_file:  # a pipe may be standard output, and gets nothing but the lines
        print(f"{source.count:,} embeddings of {model.embed_dim} features: {output}")


def explain(directory: str, dtype: str, weight_dtype: str | None, text: str, plot: str | None) -> None:
    """Print what each token of `text` attends to in each layer and head, and draw it to the file `plot`."""
    (readable,) = Texts([text.encode("utf-8", "surrogatepass")], "text", 1)
    model = load(directory, dtype, weight_dtype)
    with _errors_of_tokens():
        tokens, weights = model.attention_weights(readable)  # [layers, H, T, T]
    if not tokens:
        raise UserError("the text has no tokens")
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
    except OSError as error:
        raise UserError(f"cannot read {error.filename}: {reason(error)}" if error.filename else str(error)) from error
    except (TypeError, ValueError, ImportError) as error:
        raise UserError(str(error)) from error


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
                yield self._decoded(self._without_ending(raw) if self._has_lines else raw)
        except OSError as error:
            raise UserError(f"cannot read {self.place} {self.count + 1}: {reason(error)}") from error
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
                    f"{self.place} {self.count}: not UTF-8 at byte {error.start + 1} (0x{raw[error.start]:02x}); "
                    "U+FFFD stands in for what cannot be read"
                )
            return raw.decode(errors="replace")


def _write(encode: Encode, source: Texts, sink: Sink, progress: Progress) -> None:
    pending: deque[str] = deque()  # texts that were read and are not embedded yet
    count = num_bad = first_bad = 0  # embeddings; those that are not finite; the first of those, counted from 1

    def remembered() -> Iterator[str]:
        for text in source:
            pending.append(text)
            yield text

    try:
        for rows in _embedded(encode, remembered()):
            sink.write([pending.popleft() for _ in rows], rows)
            bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
            if bad.size:
                first_bad = first_bad or count + int(bad[0]) + 1
                num_bad += bad.size
            count += len(rows)
            progress.show(source.share_read, count)
        sink.finish(count)
    finally:
        progress.clear()
    if num_bad:
        more = f", and {num_bad - 1:,} more are not" if num_bad > 1 else ""
        complain(f"the embedding of {source.place} {first_bad} is not finite{more}")


def _embedded(encode: Encode, texts: Iterable[str]) -> Iterator[Array]:
    with _errors_of_tokens():
        yield from encode(texts)


@contextlib.contextmanager
def _errors_of_tokens() -> Iterator[None]:
    """As UserError: a tokenizer that fails, tokens beyond the table of the model, a prompt that it does not have."""
    try:
        yield
    except ValueError as error:
        raise UserError(str(error)) from error


def _check_output(output: str) -> None:
    """UserError unless one of the formats can be written to `output`: JSON lines anywhere, .npy to a regular file."""
    if output.endswith(".npy") and is_stream(output):
        raise UserError(f"--output must be a regular file for .npy, whose beginning is written last; got {output}")
    if not output.endswith((".npy", ".jsonl")) and not is_stream(output):
        raise UserError(f"--output must end in .npy or .jsonl; got {output}")


def _standard_input() -> BinaryIO:
    if sys.stdin is None:
        raise UserError("cannot read standard input: it is closed")
    return sys.stdin.buffer


def _opened(path: str) -> BinaryIO:
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

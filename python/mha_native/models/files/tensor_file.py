"""A file with named tensors, each read on demand.

Files are read, not mapped into memory. If another program truncates a mapped file, the next access ends the process.
"""

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ... import _core
from ...functions.block_matrix import BlockMatrix
from .json_files import require_file

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on

# A function from the bytes of a tensor to its elements in float32, in any shape.
Reader: TypeAlias = Callable[[NDArray[np.uint8]], NDArray[np.float32]]


class TensorEntry(NamedTuple):
    """The description of a tensor in the header of a file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int  # the first byte, counted from the first byte of all tensors
    end: int


class TensorFiles(ABC):
    """The tensors of one or several files by their names, each read on demand. A context manager.

    Methods raise ValueError if a file has become shorter.
    """

    path: Path
    readable: Collection[str]  # the dtypes of tensors that are read
    described_by: str  # the source of the expected tensors, for messages
    entries: dict[str, TensorEntry]

    def __enter__(self) -> "Self":
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    @abstractmethod
    def bytes_of(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of the tensor `name`."""

    @abstractmethod
    def read(self, name: str) -> NDArray[np.float32]:
        """Return the tensor `name`, with a dtype of `readable`, in float32."""

    def blocks(self, name: str) -> BlockMatrix | None:
        """Return the matrix `name` in the blocks of the file; None for a tensor that has none."""
        return None


class TensorFile(TensorFiles):
    """The tensors of a file.

    Raises OSError or ValueError if the file cannot be read, or the header is damaged or names bytes beyond the end.
    """

    kind: str  # the name of the format

    def __init__(self, path: Path) -> None:
        self.path = path
        with contextlib.ExitStack() as stack:
            self._file = stack.enter_context(open(require_file(path), "rb"))
            try:
                header = self._read_header(self._file, os.fstat(self._file.fileno()).st_size)
            except ValueError as error:
                raise ValueError(f"{path} is not a valid {self.kind} file: {error}") from error
            self.entries, self._first_byte = header
            self._stack = stack.pop_all()

    @abstractmethod
    def _read_header(self, file: IO[bytes], file_bytes: int) -> tuple[dict[str, TensorEntry], int]:
        """Return the entries, and the first byte of the numbers. A ValueError does not name the file."""

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def bytes_of(self, name: str) -> NDArray[np.uint8]:
        entry = self.entries[name]
        raw = np.empty(entry.end - entry.begin, np.uint8)
        self._file.seek(self._first_byte + entry.begin)
        count = self._file.readinto(raw.data)
        if count != raw.nbytes:
            raise ValueError(f"{self.path} has been cut short: {name} has {count} of its {raw.nbytes} bytes")
        return raw

    def read(self, name: str) -> NDArray[Any]:
        entry = self.entries[name]
        raw = self.bytes_of(name)
        if are_bytes(name, entry.dtype):
            return raw.reshape(entry.shape)
        return PLAIN_READERS[entry.dtype](raw).reshape(entry.shape)


def _plain(raw: NDArray[np.uint8], dtype: str) -> NDArray[Any]:
    return raw.view(dtype).astype(np.float32, copy=False)


def _bfloat16(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    bits = raw.view("<u2").astype(np.uint16, copy=False)  # in the byte order of this machine
    return _core.convert(bits.view(_core.bfloat16()), "float32")


# Readers of plain numbers.
PLAIN_READERS: dict[str, Reader] = {
    "F32": partial(_plain, dtype="<f4"),
    "F16": partial(_plain, dtype="<f2"),
    "BF16": _bfloat16,
}


def are_bytes(name: str, dtype: str) -> bool:
    """Return whether the tensor `name` of a file has bytes, which are parts of a matrix in blocks."""
    return dtype == "U8" and name.endswith(("_blocks", "_scales"))

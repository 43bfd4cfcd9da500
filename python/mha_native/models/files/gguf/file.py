"""A GGUF file, open."""

import os
from collections.abc import Collection
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from ..entries import Entries
from ..json_files import require_file
from .element_types import READERS
from .header import read_header


class GGUFFile:
    """The metadata and the tensors of a GGUF file, each tensor read when it is asked for. A context manager.

    It is read, not mapped into memory: if another program cuts a mapped file short, the next access ends the process.

    Attributes
    ----------
    path : Path
    readable : collection of str
        The types of elements that `read` takes.
    described_by : str
        What says which tensors there should be, for messages.
    settings : Entries
        The metadata, to be read with checks.
    metadata : dict
        Values are int, float, bool and str, and arrays: lists of str, and arrays [N] of NumPy.
    entries : dict of str to TensorEntry
        Which tensors there are, by their names in the file.

    Raises
    ------
    OSError
        If the file cannot be opened or read.
    ValueError
        If the header is damaged, or speaks of more bytes than there are; in `read` if there are fewer by now.
    """

    readable: Collection[str] = READERS.keys()
    described_by = "its metadata"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open(require_file(path), "rb")  # noqa: SIM115  (closed by __exit__)
        try:
            header = read_header(self._file, os.fstat(self._file.fileno()).st_size)
        except ValueError as error:
            self._file.close()
            raise ValueError(f"{path} is no valid GGUF file: {error}") from error
        except BaseException:
            self._file.close()
            raise
        self.metadata, self.entries, self._first_byte = header
        self.settings = Entries(path, self.metadata)

    def __enter__(self) -> "GGUFFile":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def read(self, name: str) -> NDArray[np.float32]:
        """The tensor `name`, whose type is one of `readable`, in float32."""
        entry = self.entries[name]
        raw = np.empty(entry.end - entry.begin, np.uint8)
        self._file.seek(self._first_byte + entry.begin)
        count = self._file.readinto(raw.data)
        if count != raw.nbytes:
            raise ValueError(f"{self.path} has been cut short: {name} has {count} of its {raw.nbytes} bytes")
        return READERS[entry.dtype](raw).reshape(entry.shape)

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
    """The metadata and the tensors of a GGUF file, each tensor read on demand. A context manager.

    The file is read, not mapped into memory. If another program truncates a mapped file, the next access ends the
    process.

    Attributes
    ----------
    path : Path
    readable : collection of str
        The types of elements that `read` supports.
    described_by : str
        The source of the expected tensors, for messages.
    settings : Entries
        The metadata, for checked reads.
    metadata : dict
        Values are int, float, bool or str, lists of str, or arrays [N] of NumPy.
    entries : dict of str to TensorEntry
        The tensors, by their names in the file.

    Raises OSError or ValueError if the file cannot be read, or the header is damaged or names bytes beyond the end.
    `read` raises ValueError if the file has become shorter.
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
            raise ValueError(f"{path} is not a valid GGUF file: {error}") from error
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
        """Return the tensor `name`, with a type of `readable`, in float32."""
        entry = self.entries[name]
        raw = np.empty(entry.end - entry.begin, np.uint8)
        self._file.seek(self._first_byte + entry.begin)
        count = self._file.readinto(raw.data)
        if count != raw.nbytes:
            raise ValueError(f"{self.path} has been cut short: {name} has {count} of its {raw.nbytes} bytes")
        return READERS[entry.dtype](raw).reshape(entry.shape)

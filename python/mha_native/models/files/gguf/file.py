"""A GGUF file, open."""

import math
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from ....functions.block_matrix import BlockMatrix
from ..entries import Entries
from ..tensor_file import TensorEntry, TensorFile
from .element_types import BLOCKS, READABLE
from .header import read_header


class GGUFFile(TensorFile):
    """A GGUF file, as a `TensorFile`, with its metadata.

    The values of `metadata` are int, float, bool or str, lists of str, or arrays [N] of NumPy. `settings` reads them
    with checks.
    """

    kind = "GGUF"
    described_by = "its metadata"
    readable = READABLE

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.settings = Entries(path, self.metadata)

    def read(self, name: str) -> NDArray[np.float32]:
        entry = self.entries[name]
        if entry.dtype not in BLOCKS:
            return super().read(name)
        if 0 in entry.shape:
            return np.empty(entry.shape, np.float32)
        return self._rows(name).dequantize().reshape(entry.shape)

    def blocks(self, name: str) -> BlockMatrix | None:
        entry = self.entries[name]
        is_matrix = len(entry.shape) == 2 and 0 not in entry.shape
        return self._rows(name) if entry.dtype in BLOCKS and is_matrix else None

    def _rows(self, name: str) -> BlockMatrix:
        """Return the rows of a tensor of any number of axes."""
        entry = self.entries[name]
        rows = math.prod(entry.shape[:-1])
        return BlockMatrix(self.bytes_of(name).reshape(rows, -1), BLOCKS[entry.dtype], entry.shape[-1])

    def _read_header(self, file: IO[bytes], file_bytes: int) -> tuple[dict[str, TensorEntry], int]:
        self.metadata, entries, first_byte = read_header(file, file_bytes)
        return entries, first_byte

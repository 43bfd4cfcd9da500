"""A GGUF file, open."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from ....functions.block_matrix import BlockMatrix
from ..entries import Entries
from ..tensor_file import TensorEntry, TensorFile
from .element_types import BLOCKS, READABLE
from .header import read_header

# In the names of tensors of all experts of a layer; and the most experts that a layer may have: models have up to 512.
_STACKED = "_exps."
_MOST_EXPERTS = 4096


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
        return dict(_experts_apart(entries)), first_byte


def _experts_apart(entries: Mapping[str, TensorEntry]) -> Iterator[tuple[str, TensorEntry]]:
    """Yield the tensors, with the part of each expert in place of a tensor that stacks those of all experts.

    From ``blk.0.ffn_up_exps.weight`` [N, F, E] come ``blk.0.ffn_up_exps.0.weight`` [F, E] and so on.
    """
    for name, entry in entries.items():
        stem, separator, which = name.partition(_STACKED)
        if not separator or not entry.shape or entry.shape[0] > _MOST_EXPERTS or 0 in entry.shape:
            yield name, entry
            continue
        size = (entry.end - entry.begin) // entry.shape[0]
        for i in range(entry.shape[0]):
            begin = entry.begin + i * size
            yield f"{stem}{_STACKED}{i}.{which}", TensorEntry(entry.dtype, entry.shape[1:], begin, begin + size)

"""A GGUF file, open."""

from pathlib import Path
from typing import IO

from ..entries import Entries
from ..tensor_file import TensorEntry, TensorFile
from .element_types import READERS
from .header import read_header


class GGUFFile(TensorFile):
    """A GGUF file, as a `TensorFile`, with its metadata.

    The values of `metadata` are int, float, bool or str, lists of str, or arrays [N] of NumPy. `settings` reads them
    with checks.
    """

    kind = "GGUF"
    described_by = "its metadata"
    readable = READERS

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.settings = Entries(path, self.metadata)

    def _read_header(self, file: IO[bytes], file_bytes: int) -> tuple[dict[str, TensorEntry], int]:
        self.metadata, entries, first_byte = read_header(file, file_bytes)
        return entries, first_byte

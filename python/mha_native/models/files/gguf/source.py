"""A GGUF file as the source of a model."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....functions.block_matrix import BlockMatrix
from ..checkpoint import Checkpoint
from ..source import Matrix
from .architectures import Architecture
from .config import read_architecture, read_config, read_generation
from .file import GGUFFile
from .tokenizer import build_tokenizer, read_chat_template, read_tokenizer_config

# Matrices of one row that files have as vectors.
_VECTORS = ".ffn_gate_inp_shexp.weight"


class GGUFSource:
    """A model in a GGUF file, in the terms of a folder of Hugging Face: a `Source`.

    The metadata are read and checked at once, tensors and tokenizer on demand. `generation` has ``bos_token_id``,
    ``pad_token_id``, and ``eos_token_id``, an int or a list.

    Raises OSError or ValueError if the file cannot be read or is damaged, or if the metadata have unknown or
    unsupported entries.
    """

    has_tokenizer = True

    def __init__(self, path: Path) -> None:
        self.path = path
        with GGUFFile(path) as file:
            self._architecture = read_architecture(file)
            self.config: Mapping[str, Any] = read_config(file)
            self.generation: Mapping[str, Any] = read_generation(file)
            self.chat_template = read_chat_template(file)
            self.tokenizer_config: Mapping[str, Any] = read_tokenizer_config(file)

    def tokenizer(self) -> Any:
        """Return the ``tokenizers.Tokenizer`` of the file, without padding and truncation."""
        with GGUFFile(self.path) as file:
            return build_tokenizer(file)

    def tensors(self, shapes: Iterable[tuple[str, tuple[int, ...]]], prefix: str = "") -> "GGUFTensors":
        """Return the tensors of `shapes`; `prefix` has no effect for a GGUF file."""
        return GGUFTensors(self.path, shapes, self._architecture, self.config.get("head_dim", 0))


class GGUFTensors(Checkpoint):
    """The tensors of a GGUF file by their names in transformers, and in its layout."""

    def __init__(
        self, path: Path, shapes: Iterable[tuple[str, tuple[int, ...]]], architecture: Architecture, head_dim: int
    ) -> None:
        self._architecture, self._head_dim = architecture, head_dim
        super().__init__(path, (self._in_file(*entry) for entry in shapes), open_file=GGUFFile)

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        in_file = self._architecture.name_in_file(name)
        tensor = super().__getitem__(in_file)
        if in_file.endswith(_VECTORS):
            return tensor[np.newaxis]
        return self._architecture.as_in_transformers(in_file, tensor, self._head_dim)

    def matrix(self, name: str, transposed: bool = False) -> Matrix:
        in_file = self._architecture.name_in_file(name)
        blocks = self._blocks(in_file)
        if blocks is not None:  # the rows of a file are the output features
            rows = self._architecture.rows_in_transformers(in_file, blocks.data, self._head_dim)
            return BlockMatrix(rows, blocks.dtype, blocks.in_features)
        matrix = self[name]
        return matrix.T if transposed else matrix

    def __contains__(self, name: str) -> bool:
        return super().__contains__(self._architecture.name_in_file(name))

    def _in_file(self, name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        in_file = self._architecture.name_in_file(name)
        if in_file.endswith(_VECTORS):
            return in_file, shape[1:]
        return in_file, shape[::-1] if self._architecture.is_transposed(in_file) else shape

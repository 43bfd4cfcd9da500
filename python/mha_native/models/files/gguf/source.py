"""A GGUF file as the source of a model."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checkpoint import Checkpoint
from .architectures import Architecture
from .config import read_architecture, read_config, read_generation
from .file import GGUFFile
from .tokenizer import build_tokenizer, read_chat_template, read_tokenizer_config


class GGUFSource:
    """A model in a GGUF file, in the words of a folder of Hugging Face: a `Source`.

    The metadata are read and checked when the object is made; tensors and tokenizer when they are asked for.

    Attributes
    ----------
    path : Path
    config : dict
        What config.json would say, by its keys.
    generation : dict
        What generation_config.json would say: ``eos_token_id``, of which there may be several, ``bos_token_id`` and
        ``pad_token_id``.
    chat_template : str, optional
        In Jinja.
    tokenizer_config : dict
        What tokenizer_config.json would say.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    OSError
        If it cannot be opened or read.
    ValueError
        If it is damaged, or the metadata say what is not known here.
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
        """The ``tokenizers.Tokenizer`` of the file, which neither pads nor truncates."""
        with GGUFFile(self.path) as file:
            return build_tokenizer(file)

    def tensors(self, shapes: Iterable[tuple[str, tuple[int, ...]]], prefix: str = "") -> "GGUFTensors":
        """The tensors of `shapes`, in float32: a context manager.

        Names are those of transformers without `prefix`, which files of GGUF do not have.
        """
        return GGUFTensors(self.path, shapes, self._architecture, self.config.get("head_dim", 0))


class GGUFTensors:
    """The tensors of a GGUF file by their names in transformers, as they are there. A context manager.

    All names, shapes and types have been checked when it opens.
    """

    def __init__(
        self, path: Path, shapes: Iterable[tuple[str, tuple[int, ...]]], architecture: Architecture, head_dim: int
    ) -> None:
        self._architecture, self._head_dim = architecture, head_dim
        self._checkpoint = Checkpoint(path, (self._in_file(*entry) for entry in shapes), open_file=GGUFFile)

    def __enter__(self) -> "GGUFTensors":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._checkpoint.__exit__(kind, error, trace)

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        """A copy of the tensor, in float32."""
        in_file = self._architecture.name_in_file(name)
        return self._architecture.as_in_transformers(in_file, self._checkpoint[in_file], self._head_dim)

    def __contains__(self, name: str) -> bool:
        """Whether there is a tensor of this name, asked for or not."""
        return self._architecture.name_in_file(name) in self._checkpoint

    def _in_file(self, name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        in_file = self._architecture.name_in_file(name)
        return in_file, shape[::-1] if self._architecture.is_transposed(in_file) else shape

"""The files of a model, of any format."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...functions.block_matrix import BlockMatrix

# A matrix [out, in] of a linear map, or a word table.
Matrix: TypeAlias = NDArray[Any] | BlockMatrix

# Names and shapes of tensors.
Shapes: TypeAlias = Iterator[tuple[str, tuple[int, ...]]]


class Tensors(Protocol):
    """The tensors of a checkpoint, by name."""

    def __getitem__(self, name: str, /) -> NDArray[np.float32]: ...
    def __contains__(self, name: str, /) -> bool: ...

    def matrix(self, name: str, /, transposed: bool = False) -> Matrix:
        """Return the matrix `name`, [out, in]: in the blocks of the files, else in float32.

        `transposed`: the tensor is [in, out].
        """
        ...


class Arrays(dict[str, NDArray[Any]]):
    """Tensors in memory."""

    def matrix(self, name: str, transposed: bool = False) -> Matrix:
        """Return the matrix `name`, [out, in]. `transposed`: the tensor is [in, out]."""
        return self[name].T if transposed else self[name]


class Source(Protocol):
    """The files of one model, in the terms of a directory of transformers.

    `path` is the name of `config` in messages: config.json in the directory, or the one file of the model. `config`,
    `generation` and `tokenizer_config` are the entries of config.json, generation_config.json and
    tokenizer_config.json; without a file they are empty. `chat_template` is in Jinja.
    """

    @property
    def path(self) -> Path: ...
    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def generation(self) -> Mapping[str, Any]: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def tokenizer_config(self) -> Mapping[str, Any]: ...
    @property
    def has_tokenizer(self) -> bool: ...

    def tokenizer(self) -> Any:
        """Return the ``tokenizers.Tokenizer``, which neither pads nor truncates."""
        ...

    def tensors(
        self, shapes: Iterable[tuple[str, tuple[int, ...]]], prefix: str = ""
    ) -> AbstractContextManager[Tensors]:
        """Return the tensors of `shapes`, in float32, after checks of all names and shapes.

        `shapes` has the names of transformers without `prefix`, such as ``layers.0.self_attn.q_proj.weight`` for the
        prefix ``model.``. In the files of a directory a name may begin with the prefix or not.
        """
        ...

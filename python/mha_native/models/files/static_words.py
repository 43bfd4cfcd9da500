"""The word table of a static model, in the files of sentence-transformers or of model2vec."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...functions.messages import listed
from .checkpoint import Checkpoint
from .tensor_file import TensorFiles
from .weight_index import open_weights

_OF_MODEL2VEC = ("embeddings", "mapping", "weights")
_DTYPES = {"I8": "i1", "I32": "<i4", "I64": "<i8", "F32": "<f4", "F64": "<f8"}


def read_static_words(folder: Path) -> NDArray[np.float32]:
    """Return the word table [V, E] in the files of a folder.

    sentence-transformers writes the table ``embedding.weight``. model2vec writes ``embeddings``; optionally
    ``mapping`` [V], the row of each token, for tokens that share rows; and ``weights`` [V], factors of tokens.

    Raises OSError or ValueError if a file cannot be read or is damaged, or holds other tensors.
    """
    with open_weights(folder) as file:
        names = list(file.entries)
        if names == ["embedding.weight"]:
            return _table(folder, file, *names)
        if "embeddings" not in names or not set(names) <= set(_OF_MODEL2VEC):
            raise ValueError(
                f"{file.path} must hold embedding.weight, or embeddings and perhaps mapping and weights, as model2vec "
                f"writes them; got {listed(names) or 'nothing'}"
            )
        if file.entries["embeddings"].dtype == "I8":
            words = _numbers(file, "embeddings", 2, "I8").astype(np.float32)
        else:
            words = _table(folder, file, "embeddings")
        if "mapping" in names:
            rows = _numbers(file, "mapping", 1, "I32", "I64")
            if rows.size and not 0 <= rows.min() <= rows.max() < len(words):
                raise ValueError(f"{file.path}: mapping must have rows of embeddings, less than {len(words)}")
            words = words[rows]
        if "weights" in names:
            factors = _numbers(file, "weights", 1, "F32", "F64")
            if len(factors) != len(words) or not np.isfinite(factors).all():
                raise ValueError(f"{file.path}: weights must be {len(words)} finite numbers, one for each token")
            words = (words * factors[:, None]).astype(np.float32, copy=False)
        return words


def _table(folder: Path, file: TensorFiles, name: str) -> NDArray[np.float32]:
    _check_axes(file, name, 2)
    with Checkpoint(folder, [(name, file.entries[name].shape)]) as tensors:
        return tensors[name]


def _numbers(file: TensorFiles, name: str, axes: int, *dtypes: str) -> NDArray[Any]:
    """Return the tensor `name` with so many axes, in one of `dtypes`."""
    _check_axes(file, name, axes)
    entry = file.entries[name]
    if entry.dtype not in dtypes:
        raise ValueError(f"{file.path}: {name} must be {' or '.join(dtypes)}; got {entry.dtype}")
    return file.bytes_of(name).view(_DTYPES[entry.dtype]).reshape(entry.shape)


def _check_axes(file: TensorFiles, name: str, axes: int) -> None:
    shape = file.entries[name].shape
    if len(shape) != axes or 0 in shape:
        raise ValueError(f"{file.path}: {name} must have {axes} axes, and numbers; got the shape {list(shape)}")

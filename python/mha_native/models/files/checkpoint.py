"""The tensors of a checkpoint, by their names in the model."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...functions.block_matrix import BlockMatrix
from ...functions.messages import MOST_LISTED, listed, shown
from .block_scales import is_finite
from .source import Matrix
from .tensor_file import TensorFiles, are_bytes
from .weight_index import open_weights

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing from Python 3.11 on


class Checkpoint:
    """The tensors in the files of a folder, by the names of `shapes`, each read on demand. A context manager.

    `open_file` opens another format, with `folder` as the path of its file.

    All names, shapes and dtypes are checked first, so that a model is never loaded in part. In the files names may
    begin with `prefix`, or be older ones, such as ``gamma`` and ``beta`` of norms. Tensors with two names of one weight
    must be equal.

    Raises OSError or ValueError if a file cannot be read or is damaged, or if tensors are missing or have other shapes;
    the message names all of them. Reading a tensor raises ValueError if it has numbers that are not finite, or differs
    between its two names.
    """

    def __init__(
        self,
        folder: Path,
        shapes: Iterable[tuple[str, tuple[int, ...]]],
        prefix: str = "",
        open_file: Callable[[Path], TensorFiles] = open_weights,
    ) -> None:
        self._prefix = prefix
        self._file = open_file(folder)
        try:
            self._names = self._checked_names(shapes)  # name in the model -> names in the file
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.__exit__()

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        """Return a copy of the tensor `name`, in float32."""
        first, *others = self._names[name]
        tensor = self._file.read(first)
        if not np.isfinite([tensor.min(), tensor.max()]).all():  # either is NaN if there is a NaN
            index = np.unravel_index(np.argmin(np.isfinite(tensor)), tensor.shape)
            raise ValueError(
                f"{self._file.path}: {first} must hold finite numbers; got {tensor[index]} at {[int(i) for i in index]}"
            )
        for other in others:
            if not np.array_equal(tensor, self._file.read(other)):
                raise ValueError(
                    f"{self._file.path}: {first} and {other} are names of one tensor, and must hold the same numbers"
                )
        return tensor

    def matrix(self, name: str, transposed: bool = False) -> Matrix:
        """Return the matrix `name`, [out, in]: in the blocks of the files, else in float32.

        `transposed`: the tensor is [in, out].
        """
        blocks = None if transposed else self._blocks(name)
        if blocks is not None:
            return blocks
        matrix = self[name]
        return matrix.T if transposed else matrix

    def _blocks(self, name: str) -> BlockMatrix | None:
        """Return the matrix `name` in the blocks of the files; None if it has none."""
        first, *others = self._names[name]
        blocks = None if others else self._file.blocks(first)
        if blocks is not None and not is_finite(blocks):
            raise ValueError(f"{self._file.path}: {first} must hold finite numbers; got a scale that is not")
        return blocks

    def __contains__(self, name: str) -> bool:
        """Return whether the files have a tensor `name`, in `shapes` or not."""
        return name in self._present()

    def _present(self) -> dict[str, list[str]]:
        """Return the names in the files, by the names in the model."""
        present: dict[str, list[str]] = {}
        for name in self._file.entries:
            present.setdefault(_plain_name(name).removeprefix(self._prefix), []).append(name)
        return present

    def _checked_names(self, shapes: Iterable[tuple[str, tuple[int, ...]]]) -> dict[str, list[str]]:
        present = self._present()
        missing, misshapen, unreadable, names = [], [], [], {}
        for name, shape in shapes:
            if name not in present:
                missing.append(name)
                if len(missing) > MOST_LISTED:
                    break  # config.json may name any number of layers
                continue
            names[name] = present[name]
            for in_file in present[name]:
                entry = self._file.entries[in_file]
                if entry.shape != shape:
                    misshapen.append(f"{in_file} {shown(list(entry.shape))} instead of {list(shape)}")
                if entry.dtype not in self._file.readable and not are_bytes(in_file, entry.dtype):
                    unreadable.append(f"{in_file} {entry.dtype} instead of {' or '.join(self._file.readable)}")
        complaints = {
            "missing": missing,
            "in its place": self._in_place_of(missing[:1]),
            "of the wrong shape": misshapen,
            "of another dtype": unreadable,
        }
        if any(complaints.values()):
            words = "; ".join(f"{what}: {listed(found)}" for what, found in complaints.items() if found)
            raise ValueError(f"{self._file.path} does not hold the model of {self._file.described_by}: {words}")
        return names

    def _in_place_of(self, missing: Iterable[str]) -> list[str]:
        """Return the other parts of matrices of which the weight is missing: the files may be quantized."""
        stems = tuple(name.removesuffix("weight") for name in missing if name.endswith(".weight"))
        parts = (name for name in self._file.entries if not name.endswith(".bias"))
        return [name for name in parts if name.removeprefix(self._prefix).startswith(stems)]


# Other beginnings of names, in older files of GPT-NeoX and in files of Gemma 3 with images, and the ones read here.
_OTHER_BEGINNINGS = {
    "embed_out.": "lm_head.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "language_model.model.",
}


def _plain_name(name: str) -> str:
    """Return the present name of a tensor."""
    for other, plain in _OTHER_BEGINNINGS.items():
        if name.startswith(other):
            return plain + name.removeprefix(other)
    for old, new in ((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias")):
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name

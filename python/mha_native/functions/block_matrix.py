"""A matrix in the blocks of a GGUF file: small integers, with a scale for each block of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from .messages import in_the_name_of, name_of_type, shown
from .scalars import checked_integer

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The weights of a block and its bytes, by the names of the formats: the rows of cpp/include/mha/weight_formats.def.
BLOCK_FORMATS: Mapping[str, tuple[int, int]] = _core.block_formats()


@dataclass(frozen=True, eq=False, repr=False)
class BlockMatrix:
    """The matrix of a linear map in the blocks of a GGUF file, as one of its weights.

    Layers take it where they take an array [out_features, in_features] in float32, store the same numbers in the same
    format, and return the same bytes in ``state_dict``. A product reads the blocks as they are.

    Parameters
    ----------
    data : uint8 [out_features, bytes of a row]
        The rows as they are in the file. A matrix shares this memory.
    dtype : {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k", "iq4_nl", "mxfp4"}
        The format of the blocks, by its name in llama.cpp in lower case.
    in_features : int
        The weights of a row, a multiple of the weights of a block: 32, or 256 for names that end with "_k".

    Raises
    ------
    TypeError, ValueError
        If an argument breaks a rule.

    Examples
    --------
    >>> import numpy as np
    >>> import mha_native as mha
    >>> block = np.array([0.5], np.float16).tobytes() + bytes([0x98] * 16)  # 0.5 (8 - 8) and 0.5 (9 - 8)
    >>> matrix = mha.BlockMatrix(np.frombuffer(block * 4, np.uint8).reshape(4, 18), "q4_0", in_features=32)
    >>> matrix.shape, matrix.dequantize()[0, 14:18]
    ((4, 32), array([0. , 0. , 0.5, 0.5], dtype=float32))
    >>> layer = mha.Linear.from_weights(matrix)
    >>> layer.weight_dtype, layer(np.ones(32, np.float32))
    ('q4_0', array([8., 8., 8., 8.], dtype=float32))
    """

    data: NDArray[np.uint8]
    dtype: str
    in_features: int

    def __post_init__(self) -> None:
        data, dtype = self.data, self.dtype
        if not (isinstance(dtype, str) and dtype in BLOCK_FORMATS):
            known = ", ".join(map(repr, BLOCK_FORMATS))
            raise ValueError(f"BlockMatrix: dtype must be one of {known}; got {shown(dtype)}")
        if not (isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim == 2):
            given = f"{data.dtype} {list(data.shape)}" if isinstance(data, np.ndarray) else name_of_type(data)
            raise TypeError(f"BlockMatrix: data must be an array of uint8 with 2 axes; got {given}")
        features, size = BLOCK_FORMATS[dtype]
        columns = checked_integer("BlockMatrix", "in_features", self.in_features, 1)
        if columns % features:
            raise ValueError(f"BlockMatrix: in_features must be a multiple of {features} in {dtype}; got {columns}")
        if data.shape[1] != columns // features * size or not len(data):
            raise ValueError(
                f"BlockMatrix: data must be at least 1 row of {columns // features * size} bytes "
                f"for {columns} features in {dtype}; got {list(data.shape)}"
            )
        object.__setattr__(self, "data", np.ascontiguousarray(data))
        object.__setattr__(self, "in_features", columns)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the matrix in numbers, (out_features, in_features)."""
        return len(self.data), self.in_features

    @property
    def nbytes(self) -> int:
        """The bytes of the blocks."""
        return self.data.nbytes

    def dequantize(self, *, num_threads: int | None = None) -> NDArray[np.float32]:
        """Return the weights in float32 [out_features, in_features], rounded as readers of GGUF files round them."""
        with in_the_name_of("BlockMatrix.dequantize"):
            return _core.dequantize(self.data.view(np.int8), self.dtype, num_threads)

    def take(self, rows: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return the rows ``dequantize()[rows]`` [N, in_features], and dequantize no others.

        Parameters
        ----------
        rows : integer array [N]
            Row numbers, as for NumPy's indexing.
        """
        if not isinstance(rows, np.ndarray) or rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise TypeError(f"BlockMatrix.take: rows must be an array [N] of integers; got {shown(rows)}")
        count = len(self.data)
        if len(rows) and not -count <= rows.min() <= rows.max() < count:
            raise ValueError(f"BlockMatrix.take: rows must be less than {count}; got {rows.min()} to {rows.max()}")
        return _core.dequantize(self.data[rows].view(np.int8), self.dtype, None)

    def __repr__(self) -> str:
        return f"BlockMatrix({list(self.shape)}, dtype={self.dtype!r})"


def rows_of(matrix: Any, rows: slice) -> Any:
    """Return ``matrix[rows]`` of an array or a BlockMatrix, contiguous."""
    if not isinstance(matrix, BlockMatrix):
        return np.ascontiguousarray(matrix[rows])
    return BlockMatrix(matrix.data[rows], matrix.dtype, matrix.in_features)


def split_rows(matrix: Any, places: Sequence[int]) -> list[Any]:
    """Return the parts of an array or a BlockMatrix between rows, as ``numpy.split`` does."""
    if not isinstance(matrix, BlockMatrix):
        return np.split(matrix, places)
    return [BlockMatrix(part, matrix.dtype, matrix.in_features) for part in np.split(matrix.data, places)]


def joined_rows(matrices: Sequence[Any]) -> Any:
    """Return matrices [rows, columns] of one kind one below another; None if they differ in kind."""
    first = matrices[0]
    if len({getattr(matrix, "dtype", None) for matrix in matrices}) > 1:
        return None
    if not isinstance(first, BlockMatrix):
        return np.concatenate(matrices)
    return BlockMatrix(np.concatenate([matrix.data for matrix in matrices]), first.dtype, first.in_features)


def in_numbers(state: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """Return a state dict with each BlockMatrix as its numbers in float32."""
    return {name: array.dequantize() if isinstance(array, BlockMatrix) else array for name, array in state.items()}


def to_core(matrix: Any) -> Any:
    """Return a matrix as the core takes it: an array, or the bytes and the format of blocks."""
    return (matrix.data.view(np.int8), matrix.dtype) if isinstance(matrix, BlockMatrix) else matrix


def from_core(matrix: Any) -> Any:
    """Undo `to_core`."""
    if not isinstance(matrix, tuple):
        return matrix
    data, dtype = matrix
    features, size = BLOCK_FORMATS[dtype]
    return BlockMatrix(data.view(np.uint8), dtype, data.shape[1] // size * features)

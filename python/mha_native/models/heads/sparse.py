"""Sparse vectors: the features that are not zero, with their numbers."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...functions.needed_packages import pip_install


class SparseEmbeddings(NamedTuple):
    """Sparse vectors of N texts, in compressed rows.

    Parameters
    ----------
    offsets : int64 [N + 1]
        The numbers of text i are ``offsets[i]`` to ``offsets[i + 1] - 1``.
    indices : int32 [M]
        The features of the numbers, ascending in each text.
    values : float32 [M]
        The numbers that are not zero.
    features : int
        V, the features of a vector: those of the vocabulary.

    Examples
    --------
    >>> import numpy as np
    >>> from mha_native.models import SparseEmbeddings
    >>> found = SparseEmbeddings.of_dense(np.array([[0, 2, 0], [1, 0, 3]], np.float32))
    >>> found.row(1)
    (array([0, 2], dtype=int32), array([1., 3.], dtype=float32))
    >>> found.dot(found)
    array([[ 4.,  0.],
           [ 0., 10.]], dtype=float32)
    """

    offsets: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: NDArray[np.float32]
    features: int

    @classmethod
    def of_dense(cls, vectors: NDArray[np.float32]) -> "SparseEmbeddings":
        """Return the vectors of an array [N, V]."""
        rows, columns = np.nonzero(vectors)
        offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(vectors)))]).astype(np.int64)
        return cls(offsets, columns.astype(np.int32), vectors[rows, columns], vectors.shape[1])

    @classmethod
    def concatenated(cls, parts: Iterable["SparseEmbeddings"], features: int) -> "SparseEmbeddings":
        """Return the vectors of `parts`, one after another."""
        given = list(parts)
        counts = np.concatenate([np.zeros(1, np.int64), *(np.diff(part.offsets) for part in given)])
        indices = np.concatenate([np.empty(0, np.int32), *(part.indices for part in given)])
        values = np.concatenate([np.empty(0, np.float32), *(part.values for part in given)])
        return cls(np.cumsum(counts), indices, values, features)

    @property
    def num_texts(self) -> int:
        """N, the number of texts."""
        return len(self.offsets) - 1

    def row(self, i: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return the indices and the values of text `i`, as vector stores take them."""
        if not 0 <= i < self.num_texts:
            raise IndexError(f"SparseEmbeddings.row: i must be from 0 to {self.num_texts - 1}; got {i}")
        some = slice(self.offsets[i], self.offsets[i + 1])
        return self.indices[some], self.values[some]

    def texts(self, first: int, end: int) -> "SparseEmbeddings":
        """Return the vectors of texts `first` to `end` - 1."""
        offsets = self.offsets[first : end + 1]
        some = slice(offsets[0], offsets[-1])
        return SparseEmbeddings(offsets - offsets[0], self.indices[some], self.values[some], self.features)

    def largest(self, max_active_dims: int) -> "SparseEmbeddings":
        """Return the vectors with their `max_active_dims` numbers of largest magnitude, the first of equal ones."""
        kept = np.zeros(len(self.values), np.bool_)
        for first, end in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            order = np.argsort(-np.abs(self.values[first:end]), kind="stable")
            kept[first + order[:max_active_dims]] = True
        counts = np.minimum(np.diff(self.offsets), max_active_dims)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        return SparseEmbeddings(offsets, self.indices[kept], self.values[kept], self.features)

    def positive(self) -> "SparseEmbeddings":
        """Return the vectors with their numbers above 0."""
        kept = self.values > 0
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept, dtype=np.int64)])[self.offsets]
        return SparseEmbeddings(offsets, self.indices[kept], self.values[kept], self.features)

    def normalized(self) -> "SparseEmbeddings":
        """Return the vectors scaled to length 1; zeros stay."""
        texts = np.repeat(np.arange(self.num_texts), np.diff(self.offsets))
        lengths = np.sqrt(np.bincount(texts, np.square(self.values, dtype=np.float64), self.num_texts))
        values = (self.values / np.maximum(lengths, 1e-12)[texts]).astype(np.float32)
        return SparseEmbeddings(self.offsets, self.indices, values, self.features)

    def to_dense(self) -> NDArray[np.float32]:
        """Return the vectors as an array [N, V]."""
        found = np.zeros((self.num_texts, self.features), np.float32)
        found[np.repeat(np.arange(self.num_texts), np.diff(self.offsets)), self.indices] = self.values
        return found

    def to_scipy(self) -> Any:
        """Return the vectors as a ``scipy.sparse.csr_array`` [N, V]. ImportError without the package scipy."""
        try:
            from scipy.sparse import csr_array  # type: ignore[import-untyped, import-not-found, unused-ignore]
        except ImportError as error:
            raise ImportError(f"{error.name} is not installed: {pip_install('scipy')}") from error
        return csr_array((self.values, self.indices, self.offsets), (self.num_texts, self.features))

    def dot(self, others: "SparseEmbeddings") -> NDArray[np.float32]:
        """Return the scores [N, M] of these vectors with M others: sums of products."""
        if self.features != others.features:
            raise ValueError(f"SparseEmbeddings.dot: others must have {self.features} features; got {others.features}")
        scores = np.zeros((self.num_texts, others.num_texts), np.float32)
        one = np.zeros(self.features, np.float32)
        texts = np.repeat(np.arange(others.num_texts), np.diff(others.offsets))
        for i, row in enumerate(scores):
            indices, values = self.row(i)
            one[indices] = values
            row[:] = np.bincount(texts, others.values * one[others.indices], others.num_texts)
            one[indices] = 0
        return scores

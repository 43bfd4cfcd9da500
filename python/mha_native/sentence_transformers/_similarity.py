"""Similarity scores of embeddings, for all pairs of two collections or for pairs at the same index."""

from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..functions.messages import listed, shown
from ._tensors import as_array, as_tensor, is_tensor

Array = NDArray[Any]
_Score = Callable[[Array, Array], Array]

_LEAST_LENGTH = 1e-12  # a shorter embedding is divided by this instead of its length


class SimilarityFunction(Enum):
    """Similarity functions by name; a greater score means more similar.

    "cosine" of the angle, "dot" product, and negative "euclidean" and "manhattan" distance.

    Examples
    --------
    >>> from mha_native.sentence_transformers import SimilarityFunction
    >>> SimilarityFunction.to_similarity_fn("manhattan")([[0.0, 1.0]], [[0.0, 1.0], [2.0, 0.0]])
    array([[-0., -3.]])
    """

    COSINE = "cosine"
    DOT_PRODUCT = "dot"
    DOT = "dot"
    EUCLIDEAN = "euclidean"
    MANHATTAN = "manhattan"

    @staticmethod
    def to_similarity_fn(similarity_function: "str | SimilarityFunction") -> Callable[[Any, Any], Any]:
        """Return the function of two collections [N, E] and [M, E] that gives scores [N, M]."""
        score, _ = _SCORES[checked_name("SimilarityFunction.to_similarity_fn", similarity_function)]
        return lambda a, b: _scores(score, a, b, axes=2)

    @staticmethod
    def to_similarity_pairwise_fn(similarity_function: "str | SimilarityFunction") -> Callable[[Any, Any], Any]:
        """Return the function of two collections [N, E] that gives a score for each pair at the same index: [N]."""
        _, score = _SCORES[checked_name("SimilarityFunction.to_similarity_pairwise_fn", similarity_function)]
        return lambda a, b: _scores(score, a, b, axes=1)

    @staticmethod
    def possible_values() -> list[str]:
        """Return the names."""
        return [function.value for function in SimilarityFunction]


def checked_name(function: str, similarity: object) -> str:
    """Return the name of a function, given by name or as a SimilarityFunction. ValueError if it is unknown."""
    name: object = getattr(similarity, "value", similarity)
    if not isinstance(name, str) or name not in _SCORES:
        raise ValueError(f"{function}: similarity_fn_name must be one of {listed(_SCORES)}; got {shown(similarity)}")
    return name


def _scores(score: _Score, embeddings1: Any, embeddings2: Any, axes: int) -> Any:
    """Compute the scores: a tensor if either collection is a tensor or a list of tensors, else an array."""
    a, b = _numbers("embeddings1", embeddings1), _numbers("embeddings2", embeddings2)
    dtype = np.result_type(a, b)
    if axes == 2:
        a, b = np.atleast_2d(a), np.atleast_2d(b)
    _check_shapes(a.shape, b.shape, axes)
    scores = np.asarray(score(a.astype(dtype, copy=False), b.astype(dtype, copy=False)))
    if is_tensor(embeddings1) or is_tensor(embeddings2):
        return as_tensor("similarity", "embeddings", scores)
    return scores


def _numbers(name: str, embeddings: Any) -> Array:
    """Convert to float32 or wider, where products of 8-bit integers and of 16-bit numbers are exact."""
    try:
        array = as_array(embeddings)
        dtype = np.result_type(array, np.float32)
    except (TypeError, ValueError, RuntimeError):  # rows of several lengths, words, a tensor that has no elements
        dtype = np.dtype(object)
    if dtype.kind != "f" or array.ndim == 0:
        raise TypeError(f"SimilarityFunction: {name} must be numbers [N, E] or [E]; got {shown(embeddings)}")
    return array.astype(dtype, copy=False)


def _check_shapes(a: tuple[int, ...], b: tuple[int, ...], axes: int) -> None:
    """Raise ValueError for different numbers of features, or of embeddings where scores have one axis."""
    got = f"got {list(a)} and {list(b)}"
    if axes == 2 and (len(a), len(b)) != (2, 2):
        raise ValueError(f"SimilarityFunction: embeddings1 and embeddings2 must be [N, E] and [M, E]; {got}")
    if a[-1] != b[-1]:
        raise ValueError(f"SimilarityFunction: embeddings1 and embeddings2 must have as many features; {got}")
    if axes == 1 and any(n != m and 1 not in (n, m) for n, m in zip(a[-2::-1], b[-2::-1], strict=False)):
        raise ValueError(f"SimilarityFunction: embeddings1 and embeddings2 must be as many; {got}")


def _unit(rows: Array) -> Array:
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    units: Array = rows / np.maximum(lengths, _LEAST_LENGTH)
    return units


def _from_each(distance: _Score) -> _Score:
    """Make a function for all pairs from a function for pairs at the same index, one row of results at a time."""
    return lambda a, b: np.stack([distance(row, b) for row in a]) if len(a) else np.empty((0, len(b)), a.dtype)


def _dot(a: Array, b: Array) -> Array:
    return np.asarray((a * b).sum(axis=-1))


def _euclidean(a: Array, b: Array) -> Array:
    return -np.asarray(np.linalg.norm(a - b, axis=-1))


def _manhattan(a: Array, b: Array) -> Array:
    return -np.asarray(np.abs(a - b).sum(axis=-1))


# For all pairs, and for pairs at the same index.
_SCORES: dict[str, tuple[_Score, _Score]] = {
    "cosine": (lambda a, b: _unit(a) @ _unit(b).T, lambda a, b: _dot(_unit(a), _unit(b))),
    "dot": (lambda a, b: a @ b.T, _dot),
    "euclidean": (_from_each(_euclidean), _euclidean),
    "manhattan": (_from_each(_manhattan), _manhattan),
}

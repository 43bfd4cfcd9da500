"""Qdrant: sparse vectors of texts, by the methods of fastembed's models. Needs no other package."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..models import SparseEmbeddings
from ..models.text.inputs import checked_each, checked_texts
from ._argument_docs import with_argument_docs
from ._sparse_embedder import SparseFunction

__all__ = ["MhaNativeSparseEmbedding", "SparseVector"]

_SLAB = 256  # texts that are embedded at once


class SparseVector(NamedTuple):
    """A sparse vector, as fastembed's SparseEmbedding.

    Parameters
    ----------
    indices : int32 [M]
        Ascending.
    values : float32 [M]

    Examples
    --------
    >>> import numpy as np
    >>> from mha_native.interop.qdrant import SparseVector
    >>> SparseVector(np.array([2, 7], np.int32), np.array([1, 0.5], np.float32)).as_dict()
    {2: 1.0, 7: 0.5}
    """

    indices: NDArray[np.int32]
    values: NDArray[np.float32]

    def as_object(self) -> dict[str, Any]:
        """Return the arguments of ``qdrant_client.models.SparseVector``: lists of indices and values."""
        return {"indices": self.indices.tolist(), "values": self.values.tolist()}

    def as_dict(self) -> dict[int, float]:
        """Return the values by their indices."""
        return dict(zip(self.indices.tolist(), self.values.tolist(), strict=True))


@with_argument_docs
class MhaNativeSparseEmbedding(SparseFunction):
    """Sparse vectors for Qdrant by a model of SPLADE, with the methods of fastembed's SparseTextEmbedding.

    Parameters
    ----------
    model_name : str
        A directory, or the name of a model, as for `mha_native.sentence_transformers.SparseEncoder`.
    {prompts}
    {sparse}
    {sparse_kwargs}

    {errors}

    Examples
    --------
    >>> from mha_native.interop.qdrant import MhaNativeSparseEmbedding
    >>> model = MhaNativeSparseEmbedding("naver/splade-v3", max_active_dims=32)
    >>> vectors = list(model.embed(["The puppy wanted food.", "Stocks fell on Tuesday."]))
    >>> sorted(vectors[0].as_object())  # models.SparseVector(**vectors[0].as_object()) of qdrant_client
    ['indices', 'values']
    """

    def embed(self, documents: str | Iterable[str]) -> Iterator[SparseVector]:
        """Yield the vectors of documents, in order; they are read some at a time."""
        return self._vectors("embed", documents, self._embedder.documents)

    def query_embed(self, query: str | Iterable[str]) -> Iterator[SparseVector]:
        """Yield the vector of a query, or those of several."""
        return self._vectors("query_embed", query, self._embedder.queries)

    def _vectors(self, method: str, texts: Any, embed: Any) -> Iterator[SparseVector]:
        name = f"{type(self).__name__}.{method}"
        given = [texts] if isinstance(texts, str) else checked_texts(name, texts)
        rest = checked_each(f"{name}: texts", given)
        while slab := list(islice(rest, _SLAB)):
            found: SparseEmbeddings = embed(method, slab)
            for i in range(found.num_texts):
                yield SparseVector(*found.row(i))

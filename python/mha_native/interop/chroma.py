"""Chroma: the embedding function of a collection, which is stored with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..functions.messages import listed
from ..functions.needed_packages import needed_package
from ._argument_docs import with_argument_docs
from ._sparse_embedder import SparseEmbedder, SparseFunction, rows_of
from ._text_embedder import EmbedderOptions, TextEmbedder

with needed_package(__name__, "chromadb", "chroma"):
    from chromadb.base_types import SparseVector
    from chromadb.utils.embedding_functions import (
        EmbeddingFunction,
        SparseEmbeddingFunction,
        register_embedding_function,
        register_sparse_embedding_function,
    )

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack  # in typing from Python 3.11 on

__all__ = ["MhaNativeEmbeddingFunction", "MhaNativeSparseEmbeddingFunction"]

# Chroma's names of the similarity functions of sentence-transformers. It has no Manhattan distance; l2 is its default.
_SPACES = {"cosine": "cosine", "dot": "ip", "euclidean": "l2", "manhattan": "l2"}


class _Stored:
    """A function that Chroma stores with a collection: a name, and arguments."""

    _NAME: ClassVar[str]
    _KIND: ClassVar[type[TextEmbedder] | type[SparseEmbedder]]
    _embedder: TextEmbedder | SparseEmbedder

    @classmethod
    def name(cls) -> str:
        """Return the name by which Chroma registers and stores the class."""
        return cls._NAME

    @classmethod
    def build_from_config(cls, config: dict[str, Any]) -> Self:
        """Return the function that has this description."""
        cls.validate_config(config)
        return cls(**config)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments, as Chroma stores them with a collection."""
        return dict(self._embedder.settings)

    @classmethod
    def validate_config(cls, config: dict[str, Any]) -> None:
        """Raise TypeError or ValueError unless `config` describes a function of this class. No model is read."""
        name = f"{cls.__name__}.validate_config"
        if "model_name" not in config:
            raise ValueError(f"{name}: config must have model_name; it has {listed(map(str, config)) or 'nothing'}")
        if others := config.keys() - set(cls._KIND.SETTINGS):
            raise ValueError(f"{name}: config may have {listed(cls._KIND.SETTINGS)}; got {listed(sorted(others))}")
        cls._KIND(name, **config)


@register_embedding_function
@with_argument_docs
class MhaNativeEmbeddingFunction(_Stored, EmbeddingFunction):
    """The embedding function of a collection of Chroma, by a model of sentence-transformers.

    Parameters
    ----------
    model_name : str
        A directory, or the name of a model, as for `mha_native.sentence_transformers.SentenceTransformer`.
    {prompts}
    {embedder}
    {kwargs}

    {errors}

    Notes
    -----
    Chroma stores the arguments with a collection, and makes the function again when you open the collection. It finds
    the function by the name "mha_native", which importing this module registers. Equal descriptions in one process
    share a model. By default a collection has the distance of the model.

    Examples
    --------
    >>> import chromadb
    >>> from mha_native.interop.chroma import MhaNativeEmbeddingFunction
    >>> function = MhaNativeEmbeddingFunction("all-MiniLM-L6-v2")
    >>> collection = chromadb.EphemeralClient().create_collection("texts", embedding_function=function)
    >>> collection.add(ids=["a", "b"], documents=["The puppy wanted food.", "Stocks fell on Tuesday."])
    >>> collection.query(query_texts=["A dog was hungry."], n_results=1)["ids"]
    [['a']]
    """

    _NAME, _KIND = "mha_native", TextEmbedder
    _embedder: TextEmbedder

    def __init__(
        self,
        model_name: str,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        encode_kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[EmbedderOptions],
    ) -> None:
        self._embedder = TextEmbedder(
            type(self).__name__,
            model_name=model_name,
            query_prompt=query_prompt,
            document_prompt=document_prompt,
            model_kwargs=model_kwargs,
            encode_kwargs=encode_kwargs,
            **options,
        )
        self._embedder.load()

    def __call__(self, input: list[Any]) -> list[NDArray[np.float32]]:
        """Embed N documents, or N images as arrays [H, W, C]: N arrays float32 [E]."""
        embed = self._embedder.images if _are_images(input) else self._embedder.documents
        return _arrays(embed("__call__", input))

    def embed_query(self, input: list[Any]) -> list[NDArray[np.float32]]:
        """Embed N queries, texts or images: N arrays float32 [E]."""
        embed = self._embedder.images if _are_images(input) else self._embedder.queries
        return _arrays(embed("embed_query", input))

    def default_space(self) -> str:
        """Return the default distance of a collection: the distance of the model."""
        return _SPACES[self._embedder.load().similarity_fn_name]

    def supported_spaces(self) -> list[str]:
        """Return all distances of Chroma."""
        return ["cosine", "l2", "ip"]


@register_sparse_embedding_function
@with_argument_docs
class MhaNativeSparseEmbeddingFunction(_Stored, SparseFunction, SparseEmbeddingFunction):
    """The function of a sparse index of Chroma, by a model of SPLADE.

    Parameters
    ----------
    model_name : str
        A directory, or the name of a model, as for `mha_native.sentence_transformers.SparseEncoder`.
    {prompts}
    {sparse}
    {sparse_kwargs}

    {errors}

    Notes
    -----
    Chroma finds the function by the name "mha_native_sparse", which importing this module registers.

    Examples
    --------
    >>> from mha_native.interop.chroma import MhaNativeSparseEmbeddingFunction
    >>> function = MhaNativeSparseEmbeddingFunction("naver/splade-v3", max_active_dims=32)
    >>> len(function(["The puppy wanted food."])[0].indices) <= 32
    True
    """

    _NAME, _KIND = "mha_native_sparse", SparseEmbedder
    _embedder: SparseEmbedder

    def __call__(self, input: list[str]) -> list[SparseVector]:
        """Embed N documents."""
        return [SparseVector(*row) for row in rows_of(self._embedder.documents("__call__", input))]

    def embed_query(self, input: list[str]) -> list[SparseVector]:
        """Embed N queries."""
        return [SparseVector(*row) for row in rows_of(self._embedder.queries("embed_query", input))]


def _are_images(inputs: list[Any]) -> bool:
    return bool(inputs) and isinstance(inputs[0], np.ndarray)


def _arrays(embeddings: list[list[float]]) -> list[NDArray[np.float32]]:
    return [np.array(embedding, np.float32) for embedding in embeddings]

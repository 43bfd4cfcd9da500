"""Chroma: the embedding function of a collection, which is stored with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..functions.messages import listed
from ..functions.needed_packages import needed_package
from ._argument_docs import with_argument_docs
from ._sparse_embedder import SparseEmbedder, SparseOptions, rows_of
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
    from typing_extensions import Unpack  # in typing from Python 3.11 on

__all__ = ["MhaNativeEmbeddingFunction", "MhaNativeSparseEmbeddingFunction"]

# Chroma's names of the similarity functions of sentence-transformers. It has no Manhattan distance; l2 is its default.
_SPACES = {"cosine": "cosine", "dot": "ip", "euclidean": "l2", "manhattan": "l2"}


@register_embedding_function
@with_argument_docs
class MhaNativeEmbeddingFunction(EmbeddingFunction):
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

    @staticmethod
    def name() -> str:
        """Return the name by which Chroma registers and stores the class: "mha_native"."""
        return "mha_native"

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> MhaNativeEmbeddingFunction:
        """Return the function that has this description."""
        MhaNativeEmbeddingFunction.validate_config(config)
        return MhaNativeEmbeddingFunction(**config)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments, as Chroma stores them with a collection."""
        return dict(self._embedder.settings)

    @staticmethod
    def validate_config(config: dict[str, Any]) -> None:
        """Raise TypeError or ValueError unless `config` describes a function of this class. No model is read."""
        _validate("MhaNativeEmbeddingFunction.validate_config", config, TextEmbedder, EmbedderOptions)

    def default_space(self) -> str:
        """Return the default distance of a collection: the distance of the model."""
        return _SPACES[self._embedder.load().similarity_fn_name]

    def supported_spaces(self) -> list[str]:
        """Return all distances of Chroma."""
        return ["cosine", "l2", "ip"]


@register_sparse_embedding_function
@with_argument_docs
class MhaNativeSparseEmbeddingFunction(SparseEmbeddingFunction):
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

    def __init__(
        self,
        model_name: str,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[SparseOptions],
    ) -> None:
        self._embedder = SparseEmbedder(
            type(self).__name__,
            model_name=model_name,
            query_prompt=query_prompt,
            document_prompt=document_prompt,
            model_kwargs=model_kwargs,
            **options,
        )
        self._embedder.load()

    def __call__(self, input: list[str]) -> list[SparseVector]:
        """Embed N documents."""
        return [SparseVector(*row) for row in rows_of(self._embedder.documents("__call__", input))]

    def embed_query(self, input: list[str]) -> list[SparseVector]:
        """Embed N queries."""
        return [SparseVector(*row) for row in rows_of(self._embedder.queries("embed_query", input))]

    @staticmethod
    def name() -> str:
        """Return the name by which Chroma registers and stores the class: "mha_native_sparse"."""
        return "mha_native_sparse"

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> MhaNativeSparseEmbeddingFunction:
        """Return the function that has this description."""
        MhaNativeSparseEmbeddingFunction.validate_config(config)
        return MhaNativeSparseEmbeddingFunction(**config)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments, as Chroma stores them with a collection."""
        return dict(self._embedder.settings)

    @staticmethod
    def validate_config(config: dict[str, Any]) -> None:
        """Raise TypeError or ValueError unless `config` describes a function of this class. No model is read."""
        _validate("MhaNativeSparseEmbeddingFunction.validate_config", config, SparseEmbedder, SparseOptions)


def _validate(name: str, config: dict[str, Any], kind: Any, options: Any) -> None:
    if "model_name" not in config:
        raise ValueError(f"{name}: config must have model_name; it has {listed(map(str, config)) or 'nothing'}")
    known = (*kind.SETTINGS, *sorted(options.__optional_keys__))
    if others := config.keys() - known:
        raise ValueError(f"{name}: config may have {listed(known)}; got {listed(sorted(others))}")
    kind(name, **config)


def _are_images(inputs: list[Any]) -> bool:
    return bool(inputs) and isinstance(inputs[0], np.ndarray)


def _arrays(embeddings: list[list[float]]) -> list[NDArray[np.float32]]:
    return [np.array(embedding, np.float32) for embedding in embeddings]
